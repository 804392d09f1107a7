/* Products of sketched layers, in answers of few samples and in training: against double arithmetic
 * on the whole matrix (tr_sketch_matrix), odd sizes, types, activations, threads and levels; which
 * kernel computes which batch; that a pack of a layout of oneDNN's own leaves nothing behind. */
#include "runtime/graph/model.h"
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t in, out, terms, rank;
} shape;

static const shape shapes[] = {{1, 1, 1, 1},      {5, 3, 1, 2},     {33, 70, 3, 11},
                               {64, 65, 1, 32},   {130, 31, 2, 24}, {257, 40, 4, 9},
                               {2100, 200, 1, 48}};

/* (rows, columns) of the whole matrix as the kernel's type has it; of tr_alloc. */
static double *matrix_of(const harness *h, const tr_sketch *s, int w, int64_t out, int64_t in)
{
    const size_t count = (size_t)(out * in);
    float *made = tr_alloc(TR_MEM_OTHER, count, sizeof *made);
    double *m = doubles(count);
    tr_sketch_matrix(s, h->data[w], out, in, made);
    for (size_t i = 0; i < count; i++)
        m[i] = h->graph.precision == TR_PRECISION_BF16
                   ? (double)tr_bf16_to_f32(tr_f32_to_bf16(made[i]))
                   : (double)made[i];
    tr_free(made);
    return m;
}

static void check(const shape *s, bool up, int64_t rows, tr_precision precision, tr_act act,
                  int isa, int threads, tr_mode mode)
{
    const int64_t k = s->terms * s->rank, in = up ? 2 * k : s->in, out = up ? s->out : 2 * k;
    const tr_linear_attrs attrs = {.out = out,
                                   .bias = up && k % 2,
                                   .sketch = {.side = up ? TR_SKETCH_UP : TR_SKETCH_DOWN,
                                              .terms = s->terms,
                                              .rank = s->rank,
                                              .seed = 77}};
    harness h = open_level(up ? "sklinear" : "sklinear.down", precision, isa, threads);
    ((tr_cpu *)h.team)->isa = isa;
    h.graph.mode = mode;
    const int x = h_in(&h, h_activation(&h), 2, (int64_t[]){rows, in});
    const int w = h_param(&h, 2, up ? (int64_t[]){s->out, k} : (int64_t[]){k, s->in});
    int b = -1;
    if (attrs.bias)
        b = h_param(&h, 1, (int64_t[]){out});
    else
        h_absent_in(&h);
    const int y = h_out(&h, h_activation(&h), 2, (int64_t[]){rows, out});
    h_fill(&h, x, 1);
    h_fill(&h, w, 2);
    if (b >= 0) h_fill(&h, b, 3);
    h_prepare(&h, &attrs, act);
    assert_int_equal(strcmp(h.kernel->impl, "signs as bits") == 0,
                     mode == TR_MODE_INFER && rows == 1 && isa >= TR_ISA_AVX512);
    h_run(&h, false);
    double *m = matrix_of(&h, &attrs.sketch, w, out, in), *xs = h_values(&h, x);
    double *want = h_values(&h, y), *size = h_values(&h, y);
    for (int64_t i = 0; i < rows * out; i++) {
        const double bias = b < 0 ? 0 : h_get(&h, b, (size_t)(i % out));
        double sum = bias, all = fabs(bias);
        for (int64_t c = 0; c < in; c++) {
            const double p = m[i % out * in + c] * xs[i / out * in + c];
            sum += p;
            all += fabs(p);
        }
        want[i] = activate(act, sum);
        /* the signs' unit is rounded to bfloat16 in a matrix of it, and not beside bits */
        size[i] =
            all * (precision == TR_PRECISION_BF16 ? 1 + 0x1p-9 * 0x1p24 / (double)(in + 1) : 1);
    }
    h_check_sums(&h, y, want, size, (double)in + 1, act == TR_ACT_NONE ? 0 : 2e-6, "y");
    tr_free(m);
    tr_free(xs);
    tr_free(want);
    tr_free(size);
    h_close(&h);
}

static void test_products(void **state)
{
    (void)state;
    static const tr_act acts[] = {TR_ACT_NONE, TR_ACT_RELU, TR_ACT_GELU_TANH};
    FOR_LEVELS(isa)
    FOR_PRECISIONS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (int64_t rows = 1; rows <= 3; rows++) {
            if (p == TR_PRECISION_BF16 && isa < TR_ISA_AVX512) continue; /* oneDNN's need it */
            const int threads = 1 + (int)(i + (size_t)rows) % 2;
            check(&shapes[i], false, rows, p, TR_ACT_NONE, isa, threads, TR_MODE_INFER);
            check(&shapes[i], true, rows, p, acts[(i + (size_t)rows) % 3], isa, threads,
                  TR_MODE_INFER);
            check(&shapes[i], rows % 2, rows, p, TR_ACT_NONE, isa, threads, TR_MODE_TRAIN);
        }
}

/* Every element turned or not, whatever stands behind the last whole vector; added or not. */
static void test_signed_sums(void **state)
{
    (void)state;
    enum { WORDS = 70, ROWS = 150, GROUPS = ROWS / TR_SIGN_ROWS + 1 };
    static float x[32 * WORDS], tables[8 * WORDS * 16], y[ROWS], before[ROWS];
    static uint32_t signs[GROUPS * TR_SIGN_ROWS * WORDS];
    for (size_t i = 0; i < TR_COUNT(x); i++)
        x[i] = tr_uniform(tr_philox_at(1, TR_RNG_TEST, 0, i, 0).v[0]) - 0.25f;
    for (size_t i = 0; i < TR_COUNT(signs); i++)
        signs[i] = tr_philox_at(1, TR_RNG_TEST, 1, i, 0).v[0];
    FOR_LEVELS(isa)
    for (size_t words = 1; words <= WORDS; words += words < 3 ? 1 : 33)
        for (size_t rows = 1; rows <= ROWS; rows += rows < 3 ? 1 : 7)
            for (int add = 0; add < 2; add++) {
                const tr_cpu_loops *loops = tr_cpu_loops_at(isa);
                for (size_t r = 0; r < ROWS; r++) y[r] = before[r] = (float)r + 0.5f;
                loops->sign_tables(x, 32 * words, tables);
                loops->signed_sums(tables, signs, words, rows, 0.125f, add, y);
                for (size_t r = 0; r < ROWS; r++) {
                    double want = add || r >= rows ? (double)before[r] : 0, size = fabs(want);
                    for (size_t e = 0; r < rows && e < 32 * words; e++) {
                        const size_t group = r / TR_SIGN_ROWS, lane = r % TR_SIGN_ROWS;
                        const size_t word = (group * words + e / 32) * TR_SIGN_ROWS + lane;
                        const bool minus = signs[word] >> (e % 32) & 1;
                        want += 0.125 * (double)(minus ? -x[e] : x[e]);
                        size += 0.125 * fabs((double)x[e]);
                    }
                    assert_true(fabs((double)y[r] - want) <= size * 0x1p-20);
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_signed_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
