/* What batch normalization's loops do on the way in float32, a sum of gradients, a residual, relu,
 * is to the bit what comes of doing it apart, at every level: so that a graph's passes change no
 * result. The compiler chooses for each set of operands which products and sums it makes one
 * instruction of. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    size_t rows, C, n;
    float *dy, *dy2, *sum, *x, *y, *got, *want, *scale, *shift;
} arrays;

static float *floats(size_t n, uint32_t key)
{
    float *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = (float)tr_philox_at(key, TR_RNG_TEST, 3, i, 0).v[0] * 0x1p-31f - 1;
    return v;
}

static arrays open_arrays(size_t rows, size_t C)
{
    const size_t n = rows * C;
    arrays a = {.rows = rows, .C = C, .n = n};
    float **const of_rows[] = {&a.dy, &a.dy2, &a.sum, &a.x, &a.y, &a.got, &a.want};
    for (size_t k = 0; k < TR_COUNT(of_rows); k++) *of_rows[k] = floats(n, (uint32_t)k);
    for (size_t i = 0; i < n; i++) a.sum[i] = a.dy[i] + a.dy2[i];
    a.scale = floats(C, 10);
    a.shift = floats(C, 11);
    return a;
}

static void close_arrays(arrays *a)
{
    float *const all[] = {a->dy, a->dy2, a->sum, a->x, a->y, a->got, a->want, a->scale, a->shift};
    for (size_t k = 0; k < TR_COUNT(all); k++) tr_free(all[k]);
}

static void same_bits(const void *got, const void *want, size_t n, const char *what, int isa,
                      const arrays *a)
{
    if (memcmp(got, want, n) != 0)
        fail_msg("%s, level %d, %zu x %zu: not the same bits as apart", what, isa, a->rows, a->C);
}

/* Two gradients given and their sum; relu's mask in it and before it. */
static void check_gradients(const tr_cpu_loops *loops, int isa, const arrays *a)
{
    double *got[2] = {doubles(a->C), doubles(a->C)}, *want[2] = {doubles(a->C), doubles(a->C)};
    for (int relu = 0; relu < 2; relu++) {
        for (size_t i = 0; i < a->n; i++) a->want[i] = !relu || a->y[i] > 0 ? a->sum[i] : 0.0f;
        loops->bn_grad_stats(TR_F32, a->dy, a->dy2, relu ? a->y : NULL, a->x, a->shift, a->got,
                             a->rows, a->C, got[0], got[1]);
        same_bits(a->got, a->want, a->n * sizeof(float), "two gradients", isa, a);
        loops->bn_grad_stats(TR_F32, a->want, NULL, NULL, a->x, a->shift, NULL, a->rows, a->C,
                             want[0], want[1]);
        for (int k = 0; k < 2; k++)
            same_bits(got[k], want[k], a->C * sizeof(double), "sums", isa, a);
    }
    for (int k = 0; k < 2; k++) {
        tr_free(got[k]);
        tr_free(want[k]);
    }
}

static void check_residual(const tr_cpu_loops *loops, int isa, const arrays *a)
{
    loops->bn_apply(TR_F32, TR_ACT_RELU, a->x, a->C, a->dy, a->scale, a->shift, a->got, a->rows,
                    a->C);
    loops->bn_apply(TR_F32, TR_ACT_NONE, a->x, a->C, NULL, a->scale, a->shift, a->want, a->rows,
                    a->C);
    for (size_t i = 0; i < a->n; i++) {
        const float v = a->want[i] + a->dy[i];
        a->want[i] = v > 0 ? v : 0.0f;
    }
    same_bits(a->got, a->want, a->n * sizeof(float), "residual and relu", isa, a);
}

static void same_bits_as_apart(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 2, 3, 4, 6, 8, 15, 16, 17, 33, 64, 100, 513};
    static const size_t heights[] = {1, 3, 36, 197, 288};
    FOR_LEVELS(isa)
    for (size_t w = 0; w < TR_COUNT(widths); w++)
        for (size_t h = 0; h < TR_COUNT(heights); h++) {
            arrays a = open_arrays(heights[h], widths[w]);
            check_gradients(tr_cpu_loops_at(isa), isa, &a);
            check_residual(tr_cpu_loops_at(isa), isa, &a);
            close_arrays(&a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_as_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
