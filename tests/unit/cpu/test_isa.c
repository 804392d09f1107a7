/* The tables of loops: which level runs, and that all levels agree: bit for bit where nothing is
 * rounded twice, else to within a rounding. Loops that no op test covers on their own (casts,
 * column sums, transposition) are held to float64 here. */
#include "tests/unit/cpu/loop_levels.h"

enum { N = 5000 };

static float *values(uint32_t seed, double low, double high)
{
    float *v = tr_alloc(TR_MEM_OTHER, N, sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < N; i++) v[i] = (float)uniform(seed, i, low, high);
    return v;
}

static void levels_are_bounded(void **state)
{
    (void)state;
    assert_in_range(tr_cpu_isa(), TR_ISA_BASE, TR_ISA_AVX512);
    assert_string_equal(tr_cpu_loops_at(TR_ISA_BASE)->name, "base");
    for (int isa = TR_ISA_BASE; isa <= TR_ISA_AVX512; isa++) {
        void *ctx;
        const tr_backend_options o = {.isa = isa};
        assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
        const tr_cpu *cpu = ctx;
        assert_int_equal(cpu->isa, isa < tr_cpu_isa() ? isa : tr_cpu_isa());
        assert_ptr_equal(cpu->loops, tr_cpu_loops_at(cpu->isa));
        tr_cpu_backend.close(ctx);
    }
}

/* Every float whose low half lies at a rounding boundary, for all 65536 high halves. */
static void casts_round_to_even(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { COUNT = 65536 };
    float *src = tr_alloc(TR_MEM_OTHER, COUNT, sizeof *src),
          *back = tr_alloc(TR_MEM_OTHER, COUNT, 4);
    tr_bf16 *dst = tr_alloc(TR_MEM_OTHER, COUNT, sizeof *dst);
    assert_true(src && dst && back);
    FOR_LEVELS(isa) for (size_t k = 0; k < TR_COUNT(low); k++)
    {
        const tr_cpu_loops *l = tr_cpu_loops_at(isa);
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t bits = i << 16 | low[k];
            memcpy(src + i, &bits, 4);
        }
        l->cast_bf16(dst, src, COUNT);
        for (size_t i = 0; i < COUNT; i++) assert_int_equal(dst[i], tr_f32_to_bf16(src[i]));
        l->cast_f32(back, dst, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            const float want = tr_bf16_to_f32(dst[i]);
            assert_memory_equal(back + i, &want, 4);
        }
        l->cast_bf16(dst, src + 3, 5); /* short and not aligned */
        for (size_t i = 0; i < 5; i++) assert_int_equal(dst[i], tr_f32_to_bf16(src[3 + i]));
    }
    tr_free(src);
    tr_free(dst);
    tr_free(back);
}

static void column_sums_match(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},     {7, 3, 3},     {65, 16, 16},
                                       {100, 33, 40}, {3, 700, 701}, {1250, 4, 4}};
    float *x = values(1, -1, 1), sums[701];
    tr_bf16 half[N];
    for (size_t i = 0; i < N; i++) half[i] = tr_f32_to_bf16(x[i]);
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(shapes); s++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const size_t rows = shapes[s][0], cols = shapes[s][1], stride = shapes[s][2];
            for (int again = 0; again < 2; again++) {
                tr_cpu_loops_at(isa)->column_sums(bf16 ? TR_BF16 : TR_F32, bf16 ? (void *)half : x,
                                                  rows, cols, stride, sums, again);
                for (size_t c = 0; c < cols; c++) {
                    double want = 0;
                    for (size_t r = 0; r < rows; r++)
                        want += bf16 ? tr_bf16_to_f32(half[r * stride + c]) : x[r * stride + c];
                    want *= again + 1;
                    assert_true(fabs(sums[c] - want) <= 1e-6 * (2 + sqrt((double)rows)));
                }
            }
        }
    tr_free(x);
}

/* Elements of bfloat16 are summed two at a time, in the order of those of float32. */
static void column_sums_of_both_types_match(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{7, 3}, {65, 16}, {100, 33}, {6, 701}, {67, 70}};
    float *x = values(1, -1, 1), of_float32[701], of_bf16[701];
    tr_bf16 half[N];
    for (size_t i = 0; i < N; i++) half[i] = tr_f32_to_bf16(x[i]);
    for (size_t i = 0; i < N; i++) x[i] = tr_bf16_to_f32(half[i]);
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(shapes); s++) {
        const size_t rows = shapes[s][0], cols = shapes[s][1];
        const tr_cpu_loops *l = tr_cpu_loops_at(isa);
        l->column_sums(TR_F32, x, rows, cols, cols, of_float32, false);
        l->column_sums(TR_BF16, half, rows, cols, cols, of_bf16, false);
        assert_memory_equal(of_bf16, of_float32, cols * sizeof *of_bf16);
    }
    tr_free(x);
}

static void transpose_moves_everything(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 5}, {16, 16}, {17, 33}, {64, 49}, {2, 500}};
    uint32_t x[4000], y[4000];
    uint16_t a[4000], b[4000];
    for (size_t i = 0; i < 4000; i++)
        x[i] = (uint32_t)i * 2654435761u, a[i] = (uint16_t)(i * 40503u);
    FOR_LEVELS(isa) for (size_t s = 0; s < TR_COUNT(shapes); s++)
    {
        const size_t rows = shapes[s][0], cols = shapes[s][1];
        tr_cpu_loops_at(isa)->transpose(4, x, y, rows, cols);
        tr_cpu_loops_at(isa)->transpose(2, a, b, rows, cols);
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++) {
                assert_int_equal(y[c * rows + r], x[r * cols + c]);
                assert_int_equal(b[c * rows + r], a[r * cols + c]);
            }
    }
}

/* Largest difference from the base level, relative to 1 + |value|. */
static double apart(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]) / (1 + fabs((double)a[i])));
    return worst;
}

/* Runs loops that are compared as a whole, into y[6]. */
static void run_all(const tr_cpu_loops *l, const float *x, const float *g, float *const y[6])
{
    enum { C = 20, ROWS = N / C };
    double mean[C], m2[C];
    float scale[C], shift[C];
    l->bn_stats(TR_F32, x, ROWS, C, mean, m2);
    for (size_t c = 0; c < C; c++) {
        scale[c] = (float)(1 / sqrt(m2[c] / ROWS));
        shift[c] = (float)-mean[c] * scale[c];
    }
    l->bn_apply(TR_F32, TR_ACT_RELU, x, C, g, scale, shift, y[0], ROWS, C);
    l->bn_grad_input(TR_F32, g, x, scale, shift, scale, y[1], ROWS, C);
    l->act(TR_F32, TR_ACT_GELU, x, y[2], N);
    l->act_grad(TR_F32, TR_ACT_SILU, g, x, y[3], N);
    l->softmax(TR_F32, x, y[4], N / 50, 50);
    l->add(TR_F32, TR_ACT_TANH, 3, (const void *[]){x, g, y[2]}, y[5], N);
}

static void levels_agree(void **state)
{
    (void)state;
    float *x = values(1, -2, 3), *g = values(2, -1, 1), *base[6], *other[6];
    for (uint32_t i = 0; i < 6; i++) {
        base[i] = values(i, 0, 0);
        other[i] = values(i, 0, 0);
    }
    run_all(tr_cpu_loops_at(TR_ISA_BASE), x, g, base);
    FOR_LEVELS(isa)
    {
        run_all(tr_cpu_loops_at(isa), x, g, other);
        for (size_t i = 0; i < 6; i++) assert_true(apart(base[i], other[i], N) <= 4e-7);
    }
    for (size_t i = 0; i < 6; i++) {
        tr_free(base[i]);
        tr_free(other[i]);
    }
    tr_free(x);
    tr_free(g);
}

/* A NaN is one whose first bit says that it is quiet, as a store makes it. */
static void quiet(tr_bf16 *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((v[i] & 0x7fff) > 0x7f80) v[i] |= 0x40;
}

/* Every bfloat16 there is, beside others: zeros of both signs, infinities, subnormals, NaN. */
static void maxima_are_the_same(void **state)
{
    (void)state;
    enum { COUNT = 65536 };
    static const size_t channels[] = {1, 16, 24, 64, 97};
    tr_bf16 *x = tr_alloc(TR_MEM_OTHER, COUNT, sizeof *x), *y[2];
    uint8_t *places[2];
    for (int k = 0; k < 2; k++) {
        y[k] = tr_alloc(TR_MEM_OTHER, 2 * COUNT, sizeof *y[k]);
        places[k] = tr_alloc(TR_MEM_OTHER, 2 * COUNT, 1);
        assert_true(x && y[k] && places[k]);
    }
    FOR_LEVELS(isa)
    for (size_t c = 0; c < TR_COUNT(channels); c++)
        for (uint32_t seed = 0; seed < 4; seed++) {
            const size_t C = channels[c];
            const int64_t H = 8, W = (int64_t)(COUNT / 8 / C);
            tr_cpu_pool p = {.type = TR_BF16,
                             .C = C,
                             .H = H,
                             .W = W,
                             .kernel = {3, 2},
                             .stride = {2, 1},
                             .padding = {1, 1}};
            p.OH = (H + 2 - 3) / 2 + 1;
            p.OW = W + 2 - 2 + 1;
            const size_t n = (size_t)(p.OH * p.OW) * C;
            assert_true(n <= 2 * COUNT);
            /* an odd factor goes through all of them; every fourth time of few kinds, so that many
             * are equal */
            for (uint32_t i = 0; i < COUNT; i++)
                x[i] = (tr_bf16)(seed == 3 ? (i * 2654435761u >> 13 & 1) << 15
                                           : i * (2 * seed + 40503u));
            for (int k = 0; k < 2; k++) {
                tr_cpu_loops_at(k ? isa : TR_ISA_BASE)
                    ->max_pool(&p, x, y[k], places[k], 0, (size_t)p.OH);
                quiet(y[k], n);
            }
            assert_memory_equal(y[0], y[1], n * sizeof *y[0]);
            assert_memory_equal(places[0], places[1], n);
        }
    for (int k = 0; k < 2; k++) {
        tr_free(y[k]);
        tr_free(places[k]);
    }
    tr_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_bounded),
        cmocka_unit_test(casts_round_to_even),
        cmocka_unit_test(column_sums_match),
        cmocka_unit_test(column_sums_of_both_types_match),
        cmocka_unit_test(transpose_moves_everything),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(maxima_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
