/* What batch normalization's loops store as bfloat16, bit for bit, at every level: whole vectors
 * round by instructions of their own there (loops/pairs.h). Every upper half with lower ones around
 * the tie, subnormals, infinities and NaN; any width, nothing behind it. */
#include "tests/unit/cpu/loop_levels.h"

enum { WIDE = 512, ROWS = 7, BEHIND = 64 };

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t lower_half(uint32_t upper, size_t k)
{
    static const uint32_t near[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    return k < TR_COUNT(near) ? near[k] : tr_philox_at(7, TR_RNG_TEST, upper, k, 0).v[0] & 0xffff;
}

enum { LOWER_HALVES = 8 };

static void expect_bits(tr_bf16 got, float f, const char *what, int isa)
{
    const tr_bf16 want = tr_f32_to_bf16(f);
    const bool same = isnan(f) ? isnan(tr_bf16_to_f32(got)) : got == want;
    if (!same) fail_msg("%s, level %d: %a became %04x, expected %04x", what, isa, f, got, want);
}

/* 1 * -0 + shift is shift, whatever it is. */
static void every_float_is_rounded(void **state)
{
    (void)state;
    float scale[WIDE], shift[WIDE];
    tr_bf16 x[WIDE], y[WIDE];
    for (size_t c = 0; c < WIDE; c++) scale[c] = -0.0f, x[c] = 0x3f80;
    FOR_LEVELS(isa)
    for (size_t k = 0; k < LOWER_HALVES; k++)
        for (uint32_t upper = 0; upper < 0x10000; upper += WIDE) {
            for (uint32_t c = 0; c < WIDE; c++)
                shift[c] = of_bits((upper + c) << 16 | lower_half(upper + c, k));
            tr_cpu_loops_at(isa)->bn_apply(TR_BF16, TR_ACT_NONE, x, WIDE, NULL, scale, shift, y, 1,
                                           WIDE);
            for (size_t c = 0; c < WIDE; c++) expect_bits(y[c], shift[c], "bn_apply", isa);
            tr_cpu_loops_at(isa)->bn_apply(TR_BF16, TR_ACT_RELU, x, WIDE, NULL, scale, shift, y, 1,
                                           WIDE);
            for (size_t c = 0; c < WIDE; c++)
                expect_bits(y[c], shift[c] < 0 ? 0.0f : shift[c], "bn_apply, relu", isa);
            tr_cpu_loops_at(isa)->bn_grad_input(TR_BF16, x, x, scale, scale, shift, y, 1, WIDE);
            for (size_t c = 0; c < WIDE; c++) expect_bits(y[c], shift[c], "bn_grad_input", isa);
        }
}

/* Any bits: zeros, subnormals, infinities and NaN among them. */
static tr_bf16 any_bits(uint32_t array, size_t i)
{
    static const tr_bf16 rare[] = {0,      0x8000, 1,      0x8001, 0x7f,   0x80,
                                   0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x7fff, 0xffff};
    const uint32_t r = tr_philox_at(array, TR_RNG_TEST, 2, i, 0).v[0];
    return r % 3 ? (tr_bf16)(r >> 16) : rare[(r >> 8) % TR_COUNT(rare)];
}

typedef struct {
    size_t n;
    tr_bf16 *dy, *dy2, *y, *x, *dz;
    float *mean;
    double *sum_d, *sum_dx;
} arrays;

static void open_arrays(arrays *a, size_t C)
{
    a->n = ROWS * C;
    tr_bf16 **const all[] = {&a->dy, &a->dy2, &a->y, &a->x, &a->dz};
    for (size_t k = 0; k < TR_COUNT(all); k++) {
        *all[k] = tr_alloc(TR_MEM_OTHER, a->n + BEHIND, sizeof **all[k]);
        assert_non_null(*all[k]);
        for (size_t i = 0; i < a->n + BEHIND; i++) (*all[k])[i] = any_bits((uint32_t)k, i);
    }
    a->mean = tr_alloc(TR_MEM_OTHER, C, sizeof *a->mean);
    assert_non_null(a->mean);
    for (size_t c = 0; c < C; c++) a->mean[c] = 0.5f;
    a->sum_d = doubles(C);
    a->sum_dx = doubles(C);
}

static void close_arrays(arrays *a)
{
    tr_free(a->dy);
    tr_free(a->dy2);
    tr_free(a->y);
    tr_free(a->x);
    tr_free(a->dz);
    tr_free(a->mean);
    tr_free(a->sum_d);
    tr_free(a->sum_dx);
}

static void check_gradient(int isa, size_t rows, size_t C, bool two, bool relu)
{
    arrays a;
    open_arrays(&a, C);
    tr_cpu_loops_at(isa)->bn_grad_stats(TR_BF16, a.dy, two ? a.dy2 : NULL, relu ? a.y : NULL, a.x,
                                        a.mean, a.dz, rows, C, a.sum_d, a.sum_dx);
    for (size_t i = 0; i < rows * C && (two || relu); i++) {
        float d = tr_bf16_to_f32(a.dy[i]);
        if (two) d += tr_bf16_to_f32(a.dy2[i]);
        if (relu && !(tr_bf16_to_f32(a.y[i]) > 0.0f)) d = 0.0f;
        expect_bits(a.dz[i], d, "bn_grad_stats", isa);
    }
    for (size_t i = rows * C; i < a.n + BEHIND; i++) assert_true(a.dz[i] == any_bits(4, i));
    /* into the first gradient's place */
    tr_cpu_loops_at(isa)->bn_grad_stats(TR_BF16, a.dy, two ? a.dy2 : NULL, relu ? a.y : NULL, a.x,
                                        a.mean, a.dy, rows, C, a.sum_d, a.sum_dx);
    for (size_t i = 0; i < rows * C && (two || relu); i++)
        assert_true(a.dy[i] == a.dz[i] || isnan(tr_bf16_to_f32(a.dz[i])));
    for (size_t i = rows * C; i < a.n + BEHIND; i++) assert_true(a.dy[i] == any_bits(0, i));
    close_arrays(&a);
}

static const size_t widths[] = {1, 2, 3, 8, 16, 17, 24, 33, 34, 63, 100, 130, 511, 513, 1037};

static void gradients_are_exact(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    for (size_t w = 0; w < TR_COUNT(widths); w++)
        for (size_t rows = 1; rows <= ROWS; rows += 2)
            for (int which = 0; which < 4; which++)
                check_gradient(isa, rows, widths[w], which & 1, which & 2);
}

/* scale 1, shift 0 and a residual: x + residual, rounded once; nothing behind the last row. */
static void sums_are_exact(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    for (size_t w = 0; w < TR_COUNT(widths); w++)
        for (size_t rows = 1; rows <= ROWS; rows++) {
            const size_t C = widths[w];
            arrays a;
            open_arrays(&a, C);
            float *one = tr_alloc(TR_MEM_OTHER, 2 * C, sizeof *one);
            assert_non_null(one);
            for (size_t c = 0; c < C; c++) one[c] = 1.0f, one[C + c] = -0.0f;
            tr_cpu_loops_at(isa)->bn_apply(TR_BF16, TR_ACT_RELU, a.x, C, a.dy, one, one + C, a.dz,
                                           rows, C);
            for (size_t i = 0; i < rows * C; i++) {
                const float v = tr_bf16_to_f32(a.x[i]) + tr_bf16_to_f32(a.dy[i]);
                expect_bits(a.dz[i], v < 0.0f ? 0.0f : v, "bn_apply, residual", isa);
            }
            tr_cpu_loops_at(isa)->bn_grad_input(TR_BF16, a.dy, a.x, one, one, one + C, a.dy2, rows,
                                                C);
            for (size_t i = 0; i < rows * C; i++)
                expect_bits(a.dy2[i], tr_bf16_to_f32(a.dy[i]) + tr_bf16_to_f32(a.x[i]),
                            "bn_grad_input", isa);
            for (size_t i = rows * C; i < a.n + BEHIND; i++)
                assert_true(a.dz[i] == any_bits(4, i) && a.dy2[i] == any_bits(1, i));
            tr_free(one);
            close_arrays(&a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_float_is_rounded),
        cmocka_unit_test(gradients_are_exact),
        cmocka_unit_test(sums_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
