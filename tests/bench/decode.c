/* Generation of a config's model, values by its seed, one id a step and sequence, beside the time
 * that its bytes take.
 *
 *     bench_decode CONFIG PRECISION THREADS [SEQUENCES [PAST [cpu]]]
 *
 * The bound: the very arrays that a step's kernels read, weights as they are packed (of an
 * embedding nothing) and the rows before, read by as many threads and nothing done with them, a
 * half by each where there are two, measured in turns with the steps. So as much of them is in a
 * cache as when steps read them, which a buffer of another size says nothing of. Of two ways to
 * read, with and without asking ahead, the faster counts. cpu: by the processor's time, of one
 * thread, where the machine is busy with other work. Prints medians of rounds: ids a second, of the
 * bound, and the ops that take longest. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "optimize/sample/sample.h"
#include "runtime/config/config.h"
#include "trainer/stages/stages.h"

enum { ROUNDS = 9, STEPS = 8, MOST = 64 };

static tr_status from_config(const char *file, tr_network **out)
{
    tr_status st = TR_OK;
    tr_variant_def stages[TR_STAGES + 1];
    tr_config *c = NULL;
    tr_model *m = NULL;
    char *text = NULL;
    size_t n;
    tr_stages_known(stages);
    TR_TRY(tr_read_text(file, &text, &n));
    TR_TRY(tr_config_open(file, text, n, NULL, 0, stages, &c));
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_network_open(m, out));
    m = (*out)->model;
    tr_model_init_params(m, 1, (*out)->params, 0, m->flat_count);
    tr_model_init_states(m, (*out)->states);
out:
    tr_config_close(c);
    tr_free(text);
    return st;
}

static clockid_t used = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The bound ------------------------------------------------------------------------------- */

typedef struct {
    const char *at;
    size_t nbytes;
} piece;

typedef struct {
    piece *v;
    size_t count;
    double nbytes;
} pieces;

static tr_status add_piece(pieces *l, const void *at, size_t nbytes)
{
    piece *grown = tr_realloc(TR_MEM_OTHER, l->v, l->count + 1, sizeof *grown);
    if (!grown) return tr_last_status();
    l->v = grown;
    l->v[l->count++] = (piece){at, nbytes};
    l->nbytes += (double)nbytes;
    return TR_OK;
}

/* What is held for `rows` rows: of each sequence and head the first ones. */
static tr_status add_held(pieces *l, const tr_tensor *t, const char *at, int64_t rows)
{
    const size_t heads = (size_t)(t->dims[0] * t->dims[1]), all = t->nbytes / heads;
    tr_status st = TR_OK;
    for (size_t h = 0; h < heads; h++)
        TR_TRY(add_piece(l, at + h * all, all / (size_t)t->dims[2] * (size_t)rows));
out:
    return st;
}

/* All that a step reads but what it has just written itself. */
static tr_status find_reads(tr_decoder *d, int64_t rows, pieces *l)
{
    tr_plan *p = tr_decoder_plan(d);
    const tr_graph *g = tr_plan_graph(p);
    tr_status st = TR_OK;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        bool looks_up = false;
        for (int k = 0; k < op->nin; k++)
            if (op->in[k] >= 0)
                looks_up |=
                    g->tensors[op->in[k]].role == TR_ROLE_INPUT && g->tensors[op->in[k]].index == 0;
        for (int k = 0; !looks_up && k < op->nin; k++) {
            size_t nbytes;
            const void *at = tr_plan_read_at(p, i, k, &nbytes);
            const tr_tensor *t = at ? &g->tensors[op->in[k]] : NULL;
            if (t && t->role == TR_ROLE_PARAM)
                TR_TRY(add_piece(l, at, nbytes));
            else if (t && t->role == TR_ROLE_HELD && t->ndim == 4)
                TR_TRY(add_held(l, t, at, rows));
        }
    }
out:
    return st;
}

/* Four sums that do not wait for each other, of as wide words as there are. */
typedef uint64_t word __attribute__((vector_size(64), aligned(1)));
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t
read_piece(const char *at, size_t nbytes, size_t ahead)
{
    word s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    uint64_t sum = 0;
    size_t i = 0;
    for (; i + 4 * sizeof(word) <= nbytes; i += 4 * sizeof(word)) {
        const word *w = (const word *)(const void *)(at + i);
        if (ahead)
            for (size_t k = 0; k < 4; k++) __builtin_prefetch(at + i + ahead + k * sizeof(word));
        s0 += w[0], s1 += w[1], s2 += w[2], s3 += w[3];
    }
    s0 += s1 + s2 + s3;
    for (size_t k = 0; k < sizeof(word) / sizeof(uint64_t); k++) sum += s0[k];
    for (; i < nbytes; i++) sum += (unsigned char)at[i];
    return sum;
}

/* Seconds of reading all. */
static double read_all(const pieces *l, int threads, size_t ahead)
{
    const double began = now();
    uint64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    for (size_t i = 0; i < l->count; i++) {
        const size_t n = l->v[i].nbytes, me = (size_t)omp_get_thread_num();
        const size_t each = tr_align_up(n / (size_t)threads + 1, 64);
        const size_t from = me * each < n ? me * each : n, to = from + each < n ? from + each : n;
        sum += read_piece(l->v[i].at + from, to - from, ahead);
    }
    if (sum == 1) printf("?\n"); /* every one of them counts */
    return now() - began;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static tr_status step(tr_decoder *d, int64_t sequences)
{
    static int32_t ids[MOST];
    static bool live[MOST];
    const float *logits;
    for (int64_t s = 0; s < sequences; s++) ids[s] = (int32_t)s + 1, live[s] = true;
    return tr_decoder_step(d, ids, live, &logits);
}

static tr_status print_ops(tr_decoder *d, int64_t sequences)
{
    tr_plan *p = tr_decoder_plan(d);
    const size_t n = tr_plan_rows(p);
    tr_status st = TR_OK;
    double *seconds = tr_alloc(TR_MEM_OTHER, n, sizeof *seconds);
    TR_HAVE(seconds);
    TR_TRY(tr_plan_time_ops(p, true));
    for (int i = 0; i < STEPS; i++) {
        TR_TRY(step(d, sequences));
        TR_TRY(tr_plan_op_seconds(p, seconds));
    }
    for (size_t shown = 0; shown < 8; shown++) {
        size_t most = 0;
        for (size_t i = 0; i < n; i++)
            if (seconds[i] > seconds[most]) most = i;
        const tr_plan_row r = tr_plan_row_at(p, most);
        printf("  %-24s %-12s %-16s %8.1f us %8.2f GB/s\n", r.layer, r.op, r.impl,
               seconds[most] / STEPS * 1e6, r.bytes * STEPS / seconds[most] / 1e9);
        seconds[most] = 0;
    }
out:
    tr_free(seconds);
    return st;
}

static tr_status measure(const char *config, tr_precision precision, int threads, int64_t sequences,
                         int64_t past)
{
    tr_status st = TR_OK;
    tr_network *n = NULL;
    tr_decoder *d = NULL;
    void *cpu = NULL;
    pieces reads = {0};
    enum { AHEAD = 8192, WAYS = 2 };
    double bound[WAYS][ROUNDS] = {{0}}, seconds[ROUNDS], prompt = 0;
    int32_t *ids = NULL;
    const int32_t *rows[MOST];
    size_t counts[MOST];
    TR_TRY(from_config(config, &n));
    TR_TRY(tr_cpu_backend.open(&(tr_backend_options){0}, &cpu));
    const int64_t chunk = past < 128 ? past : 128;
    const tr_decoder_options o = {.backend = &tr_cpu_backend,
                                  .backend_ctx = cpu,
                                  .threads = threads,
                                  .precision = precision,
                                  .sequences = sequences,
                                  .rows = past + (ROUNDS + 2) * STEPS,
                                  .chunk = chunk};
    TR_TRY(tr_decoder_open(n, &o, &d));
    tr_network_close(n);
    n = NULL;
    TR_HAVE(ids = tr_alloc(TR_MEM_OTHER, (size_t)past + 1, sizeof *ids));
    for (int64_t s = 0; s < sequences; s++) rows[s] = ids, counts[s] = (size_t)past;
    TR_TRY(tr_decoder_reset(d));
    const double began = now();
    if (past > 0) TR_TRY(tr_decoder_feed(d, rows, counts));
    prompt = now() - began;
    for (int i = 0; i < STEPS; i++) TR_TRY(step(d, sequences));
    TR_TRY(find_reads(d, past + ROUNDS / 2 * STEPS, &reads));
    for (int r = 0; r < ROUNDS; r++) {
        for (int w = 0; w < WAYS; w++)
            for (int i = 0; i < STEPS; i++)
                bound[w][r] += read_all(&reads, threads, w ? AHEAD : 0) / STEPS;
        const double from = now();
        for (int i = 0; i < STEPS; i++) TR_TRY(step(d, sequences));
        seconds[r] = (now() - from) / STEPS;
    }
    const double plain = median(bound[0], ROUNDS), asked = median(bound[1], ROUNDS);
    const double least = plain < asked ? plain : asked, each = median(seconds, ROUNDS);
    printf(
        "%s: %.1f ids/s a sequence, %.3f ms a step, which reads %.1f MB; reading them alone takes "
        "%.3f ms, %.2f GB/s: bound %.1f ids/s, %.0f %% of it; prompt %.1f ids/s\n",
        precision == TR_PRECISION_BF16 ? "bf16" : "fp32", 1 / each, each * 1e3, reads.nbytes / 1e6,
        least * 1e3, reads.nbytes / least / 1e9, 1 / least, 100 * least / each,
        past > 0 ? (double)(past * sequences) / prompt : 0.0);
    TR_TRY(print_ops(d, sequences));
out:
    tr_free(reads.v);
    tr_free(ids);
    tr_decoder_close(d);
    tr_network_close(n);
    if (cpu) tr_cpu_backend.close(cpu);
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_decode CONFIG fp32|bf16 THREADS [SEQUENCES [PAST [cpu]]]\n");
        return 2;
    }
    const tr_precision precision =
        strcmp(argv[2], "bf16") == 0 ? TR_PRECISION_BF16 : TR_PRECISION_FP32;
    const int64_t sequences = argc > 4 ? atoll(argv[4]) : 1, past = argc > 5 ? atoll(argv[5]) : 512;
    if (sequences < 1 || sequences > MOST || past < 0) return 2;
    if (argc > 6) used = CLOCK_PROCESS_CPUTIME_ID;
    const tr_status st = measure(argv[1], precision, atoi(argv[3]), sequences, past);
    if (st != TR_OK) fprintf(stderr, "%s\n", tr_last_error()->text);
    return st == TR_OK ? 0 : 1;
}
