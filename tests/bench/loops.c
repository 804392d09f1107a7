/* How fast the CPU's loops of batch normalization and pooling move what they must, beside copying.
 *
 *     bench_loops
 *
 * One thread. A case's arrays take 384 KB (a core's second-level cache), 2 MB, 16 MB or 96 MB each,
 * and are walked in the pieces that kernels call a loop with; each begins elsewhere within a page,
 * as the arena's tensors do. Prints GB/s, read and written, and behind it the share of the better
 * of memcpy and a plain loop, in the same round; the fastest of the rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/internal.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/ops/loop_kernel.h"

enum { ARRAYS = 4, APART = 1280, ROUNDS = 12 };
enum { SIDE = 32 }; /* of the pooled images */

typedef struct {
    const tr_cpu_loops *loops;
    tr_dtype type;
    size_t C, rows, size; /* of an element: bytes */
    char *array[ARRAYS];
    double mean[64], m2[64];
    float scale[64], shift[64];
} bench;

/* Vectorized, and not made a memcpy of. */
#ifdef __clang__
#define A_LOOP __attribute__((no_builtin("memcpy")))
#else
#define A_LOOP __attribute__((optimize("O3", "no-tree-loop-distribute-patterns")))
#endif
A_LOOP static void plain_copy(uint64_t *restrict y, const uint64_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = x[i];
}

static void copy(bench *b, char *const v[ARRAYS])
{
    memcpy(v[1], v[0], b->rows * b->C * b->size);
}

static void plain(bench *b, char *const v[ARRAYS])
{
    plain_copy((uint64_t *)v[1], (const uint64_t *)v[0], b->rows * b->C * b->size / 8);
}

static void stats(bench *b, char *const v[ARRAYS])
{
    b->loops->bn_stats(b->type, v[0], b->rows, b->C, b->mean, b->m2);
}

static void apply(bench *b, char *const v[ARRAYS])
{
    b->loops->bn_apply(b->type, TR_ACT_RELU, v[0], b->C, NULL, b->scale, b->shift, v[1], b->rows,
                       b->C);
}

static void grad_stats(bench *b, char *const v[ARRAYS])
{
    b->loops->bn_grad_stats(b->type, v[0], NULL, v[2], v[3], b->shift, v[1], b->rows, b->C, b->mean,
                            b->m2);
}

static void grad_stats_sum(bench *b, char *const v[ARRAYS])
{
    b->loops->bn_grad_stats(b->type, v[0], v[1], v[2], v[3], b->shift, v[0], b->rows, b->C, b->mean,
                            b->m2);
}

static void grad_input(bench *b, char *const v[ARRAYS])
{
    b->loops->bn_grad_input(b->type, v[0], v[2], b->scale, b->scale, b->shift, v[1], b->rows, b->C);
}

static tr_cpu_pool pooling(const bench *b)
{
    return (tr_cpu_pool){.type = b->type,
                         .C = b->C,
                         .H = SIDE,
                         .W = SIDE,
                         .OH = SIDE / 2,
                         .OW = SIDE / 2,
                         .kernel = {2, 2},
                         .stride = {2, 2}};
}

static void max_pool(bench *b, char *const v[ARRAYS])
{
    const tr_cpu_pool p = pooling(b);
    b->loops->max_pool(&p, v[0], v[1], v[2], 0, b->rows / SIDE / 2);
}

static void max_pool_grad(bench *b, char *const v[ARRAYS])
{
    const tr_cpu_pool p = pooling(b);
    b->loops->max_pool_grad(&p, v[1], v[2], v[0], 0, b->rows / SIDE);
}

static void avg_pool(bench *b, char *const v[ARRAYS])
{
    const tr_cpu_pool p = pooling(b);
    b->loops->avg_pool(&p, v[0], v[1], 0, b->rows / SIDE / 2);
}

static void avg_pool_grad(bench *b, char *const v[ARRAYS])
{
    const tr_cpu_pool p = pooling(b);
    b->loops->avg_pool_grad(&p, v[1], v[0], 0, b->rows / SIDE);
}

/* moved: elements read and written for each of the array's; index: bytes of indices for each. */
static const struct {
    const char *name;
    double moved, index;
    void (*run)(bench *b, char *const v[ARRAYS]);
} cases[] = {
    {"memcpy", 2, 0, copy},
    {"plain copy", 2, 0, plain},
    {"bn_stats", 1, 0, stats},
    {"bn_apply", 2, 0, apply},
    {"bn_grad_stats", 4, 0, grad_stats},
    {"bn_grad_stats, two gradients", 5, 0, grad_stats_sum},
    {"bn_grad_input", 3, 0, grad_input},
    {"max_pool 2x2", 1.25, 0.25, max_pool},
    {"max_pool_grad 2x2", 1.25, 0.25, max_pool_grad},
    {"avg_pool 2x2", 1.25, 0, avg_pool},
    {"avg_pool_grad 2x2", 1.25, 0, avg_pool_grad},
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes a second of passes over `total` bytes of each array, in pieces. */
static double rate(bench *b, size_t which, size_t total, int passes)
{
    const size_t piece = least(total, TR_CHUNK * b->size), n = total / piece;
    const double begin = tr_now();
    b->rows = piece / b->size / b->C;
    for (int p = 0; p < passes; p++)
        for (size_t i = 0; i < n; i++) {
            char *v[ARRAYS];
            for (int k = 0; k < ARRAYS; k++) v[k] = b->array[k] + i * piece;
            cases[which].run(b, v);
        }
    const double elements = (double)(total / b->size) * passes;
    return elements * (cases[which].moved * (double)b->size + cases[which].index) /
           (tr_now() - begin);
}

static void run(bench *b, size_t total, int passes)
{
    double best[TR_COUNT(cases)] = {0};
    for (int k = 0; k < ARRAYS; k++)
        for (size_t i = 0; i < total / 2; i++)
            ((uint16_t *)b->array[k])[i] =
                (uint16_t)(0x3c00 + (i * 2654435761u >> 8) % 0x180 + (i / 7 % 2 ? 0x8000 : 0));
    memset(b->array[2], 0, total / 4); /* the indices */
    for (int r = 0; r < ROUNDS; r++)
        for (size_t c = 0; c < TR_COUNT(cases); c++) {
            const double now = rate(b, c, total, passes);
            if (now > best[c]) best[c] = now;
        }
    const double copied = best[0] > best[1] ? best[0] : best[1];
    for (size_t c = 0; c < TR_COUNT(cases); c++)
        printf("%4s %3zu channels %8zu KB  %-30s %7.2f GB/s %5.2f\n",
               b->type == TR_BF16 ? "bf16" : "fp32", b->C, total >> 10, cases[c].name,
               best[c] * 1e-9, best[c] / copied);
}

int main(void)
{
    static const size_t sizes[] = {384 << 10, 2 << 20, 16 << 20, 96 << 20};
    bench b = {.loops = tr_cpu_loops_at(tr_cpu_isa())};
    for (int k = 0; k < ARRAYS; k++) {
        b.array[k] = tr_alloc(TR_MEM_OTHER, sizes[TR_COUNT(sizes) - 1] + 2 * ARRAYS * APART, 1);
        if (!b.array[k]) return 1;
        b.array[k] += k * APART;
    }
    for (int c = 0; c < 64; c++) b.scale[c] = 1, b.shift[c] = 0.1f;
    for (int type = 0; type < 2; type++)
        for (b.C = 16; b.C <= 64; b.C *= 4)
            for (size_t s = 0; s < TR_COUNT(sizes); s++) {
                b.type = type ? TR_BF16 : TR_F32;
                b.size = type ? 2 : 4;
                run(&b, sizes[s], s == 0 ? 200 : s == 1 ? 32 : s == 2 ? 4 : 1);
            }
    for (int k = 0; k < ARRAYS; k++) tr_free(b.array[k] - k * APART);
    return 0;
}
