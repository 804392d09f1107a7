/* Sums of 2 to 8 tensors, and products of two, against float64 at every level; fused activations;
 * in place over any input. */
#include "tests/unit/cpu/loop_levels.h"

static void check(int count, tr_precision p, int isa, int64_t n, tr_act act, int in_place)
{
    const int64_t d[4] = {n, 3, 2, 1};
    harness h = open_level("add", p, isa, 2);
    int in[TR_MAX_IN];
    for (int i = 0; i < count; i++) {
        in[i] = h_in(&h, h_activation(&h), 4, d);
        h_fill(&h, in[i], (uint32_t)i + 1);
    }
    const int y = h_out(&h, h_activation(&h), 4, d);
    double *want = doubles(h.tensors[y].count);
    for (size_t e = 0; e < h.tensors[y].count; e++) {
        for (int i = 0; i < count; i++) want[e] += h_get(&h, in[i], e);
        want[e] = activate(act, want[e]);
    }
    if (in_place >= 0) {
        tr_free(h.data[y]);
        h.data[y] = h.data[in[in_place]];
    }
    h_prepare(&h, NULL, act);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p) * 2, "sum");
    h_close(&h);
}

static void sums_match(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 5, 170, 171, 30000};
    FOR_LEVELS(isa)
    for (int count = 2; count <= TR_MAX_IN; count++)
        for (size_t s = 0; s < TR_COUNT(sizes); s++) FOR_PRECISIONS(p)
            {
                if (sizes[s] > 1000 && count > 3) continue;
                check(count, p, isa, sizes[s], TR_ACT_NONE, -1);
                check(count, p, isa, sizes[s], TR_ACT_RELU, count - 1);
                check(count, p, isa, sizes[s], TR_ACT_TANH, 0);
            }
}

static void nan_goes_through_relu(void **state)
{
    (void)state;
    const float a[3] = {NAN, 1, -2}, b[3] = {1, NAN, 1};
    float y[3];
    FOR_LEVELS(isa)
    {
        tr_cpu_loops_at(isa)->add(TR_F32, TR_ACT_RELU, 2, (const void *[]){a, b}, y, 3);
        assert_true(isnan(y[0]) && isnan(y[1]) && y[2] == 0);
    }
}

/* b of a's shape, or a factor for each channel. */
static void check_mul(tr_precision p, int isa, const int64_t a_dims[4], bool factors, bool in_place)
{
    const int64_t f_dims[4] = {a_dims[0], a_dims[1], 1, 1}, *b_dims = factors ? f_dims : a_dims;
    const size_t area = (size_t)(a_dims[2] * a_dims[3]), C = (size_t)a_dims[1];
    harness h = open_level("mul", p, isa, 2);
    const int a = h_in(&h, h_activation(&h), 4, a_dims), b = h_in(&h, h_activation(&h), 4, b_dims);
    const int y = h_out(&h, h_activation(&h), 4, a_dims);
    const size_t n = h.tensors[y].count;
    h_fill(&h, a, 1);
    h_fill(&h, b, 2);
    double *want = doubles(n);
    for (size_t i = 0; i < n; i++) want[i] = h_get(&h, a, i) * h_get(&h, b, factors ? i / area : i);
    if (in_place) {
        tr_free(h.data[y]);
        h.data[y] = h.data[a];
    }
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p), "product");
    h_close(&h);

    h = open_level("mul.grad_scale", p, isa, 2);
    const int dy = h_in(&h, h_activation(&h), 4, a_dims), x = h_in(&h, h_activation(&h), 4, a_dims);
    const int db = h_out(&h, h_activation(&h), 4, f_dims);
    h_fill(&h, dy, 1);
    h_fill(&h, x, 2);
    double *sums = doubles((size_t)a_dims[0] * C), *sizes = doubles((size_t)a_dims[0] * C);
    for (size_t i = 0; i < n; i++) {
        const double product = h_get(&h, dy, i) * h_get(&h, x, i);
        sums[i / area] += product;
        sizes[i / area] += fabs(product);
    }
    h_prepare(&h, NULL, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < h.tensors[db].count; i++)
        if (!(fabs(h_get(&h, db, i) - sums[i]) <=
              tolerance(p) * fabs(sums[i]) + 0x1p-20 * sizes[i]))
            fail_msg("the gradient of factor %zu is %g, not %g", i, h_get(&h, db, i), sums[i]);
    tr_free(sums);
    tr_free(sizes);
    h_close(&h);
}

static void products_match(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1},    {2, 3, 5, 7}, {3, 16, 2, 2},
                                        {1, 65, 9, 1},   {2, 8, 1, 1}, {2, 300, 3, 3},
                                        {1, 4, 150, 131}};
    FOR_LEVELS(isa)
    for (size_t s = 0; s < TR_COUNT(shapes); s++) FOR_PRECISIONS(p)
    for (int how = 0; how < 3; how++) check_mul(p, isa, shapes[s], how > 0, how == 2);
}

/* Anything else is refused when it is prepared: a factor a channel of what is stored plainly,
 * too. */
static void other_products_are_refused(void **state)
{
    (void)state;
    const int64_t a[4] = {2, 3, 4, 5}, rows[4] = {2, 1, 4, 5}, one[4] = {1, 3, 1, 1},
                  factors[4] = {2, 3, 1, 1};
    const int64_t *const others[] = {rows, one, factors};
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        harness h = open_level("mul", TR_PRECISION_FP32, TR_ISA_BASE, 1);
        const int x = h_in(&h, TR_F32, 4, a);
        h_in(&h, TR_F32, 4, others[i]);
        h_out(&h, TR_F32, 4, a);
        if (others[i] == factors) h_plain(&h, x);
        h_refused(&h, NULL);
        h_close(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_match), cmocka_unit_test(nan_goes_through_relu),
        cmocka_unit_test(products_match), cmocka_unit_test(other_products_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
