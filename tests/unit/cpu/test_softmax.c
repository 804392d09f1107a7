/* Softmax and its gradient against float64 at every level; rows that overflow exp, rows with
 * NaN. */
#include "tests/unit/cpu/loop_levels.h"

static const int64_t shapes[][4] = {{1, 1, 0, 0},    {5, 10, 0, 0},   {3, 17, 4, 5},
                                    {64, 100, 0, 0}, {2, 5000, 0, 0}, {900, 128, 0, 0}};

static void reference(size_t D, const double *x, double *y)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < D; i++) top = fmax(top, x[i]);
    for (size_t i = 0; i < D; i++) sum += y[i] = exp(x[i] - top);
    for (size_t i = 0; i < D; i++) y[i] /= sum;
}

/* Offset of element j of row r, in logical order. */
static size_t place(const int64_t *s, size_t r, size_t j)
{
    const size_t area = s[2] ? (size_t)(s[2] * s[3]) : 1;
    return (r / area * (size_t)s[1] + j) * area + r % area;
}

static void check(const int64_t *s, tr_precision p, int isa, double spread)
{
    const int ndim = s[2] ? 4 : 2;
    const size_t D = (size_t)s[1];
    harness f = open_level("softmax", p, isa, 2), b = open_level("softmax.grad", p, isa, 2);
    const tr_dtype t = h_activation(&f);
    const int x = h_in(&f, t, ndim, s), y = h_out(&f, t, ndim, s);
    const int dy = h_in(&b, t, ndim, s), saved = h_in(&b, t, ndim, s), dx = h_out(&b, t, ndim, s);
    h_fill_range(&f, x, 1, -spread, spread);
    h_fill(&b, dy, 2);
    const size_t n = f.tensors[x].count, rows = n / D;
    double *row = doubles(D), *out = doubles(D), *want = doubles(n), *want_dx = doubles(n);
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < D; j++) row[j] = h_get(&f, x, place(s, r, j));
        reference(D, row, out);
        double dot = 0;
        for (size_t j = 0; j < D; j++) {
            want[place(s, r, j)] = out[j];
            h_put(&b, saved, place(s, r, j), out[j]);
            dot += h_get(&b, dy, place(s, r, j)) * h_get(&b, saved, place(s, r, j));
        }
        for (size_t j = 0; j < D; j++)
            want_dx[place(s, r, j)] =
                h_get(&b, saved, place(s, r, j)) * (h_get(&b, dy, place(s, r, j)) - dot);
    }
    h_prepare(&f, NULL, TR_ACT_NONE);
    h_prepare(&b, NULL, TR_ACT_NONE);
    h_run(&f, false);
    h_run(&b, false);
    expect(&f, y, want, tolerance(p), "y");
    expect(&b, dx, want_dx, tolerance(p), "dx");
    tr_free(row);
    tr_free(out);
    h_close(&f);
    h_close(&b);
}

/* One op of a chain by hand: what `from` holds goes in, in logical order, the result comes back.
 * All tensors have four dimensions (out_dims: else) and are stored as they are written. */
static double *plain_op(const char *op, tr_precision p, int isa, const void *attrs,
                        const int64_t *d, int nin, double *const *from, int out_ndim,
                        const int64_t *out_dims)
{
    harness h = open_level(op, p, isa, 2);
    for (int i = 0; i < nin; i++) {
        const int in = h_plain(&h, h_in(&h, h_activation(&h), 4, d));
        for (size_t e = 0; e < h.tensors[in].count; e++) h_put(&h, in, e, from[i][e]);
    }
    const int y = h_plain(&h, h_out(&h, h_activation(&h), out_ndim, out_dims));
    h_prepare(&h, attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *v = h_values(&h, y);
    h_close(&h);
    return v;
}

/* The heads of an attention, (N, heads, queries, keys): four dimensions that are no image. Softmax
 * goes over the keys; sums, activations, concatenation and flatten keep the order. */
static void four_plain_dimensions(void **state)
{
    (void)state;
    const int64_t d[4] = {2, 3, 5, 7}, flat[2] = {2, 105}, twice[4] = {2, 6, 5, 7};
    const size_t n = 210, D = 7;
    FOR_LEVELS(isa) FOR_PRECISIONS(p)
    {
        double *x = doubles(n), *want = doubles(n);
        for (size_t i = 0; i < n; i++) /* exact in every type */
            x[i] = floor(uniform(1, i, -32, 32)) / 8;
        for (size_t r = 0; r < n / D; r++) reference(D, x + r * D, want + r * D);
        double *y = plain_op("softmax", p, isa, NULL, d, 1, &x, 4, d);
        h_close_to(y, want, NULL, n, tolerance(p), "softmax");
        double *const both[2] = {x, y};
        double *sum = plain_op("add", p, isa, NULL, d, 2, both, 4, d);
        for (size_t i = 0; i < n; i++) want[i] = x[i] + y[i];
        h_close_to(sum, want, NULL, n, tolerance(p) * 2, "add");
        double *act = plain_op("relu", p, isa, NULL, d, 1, &sum, 4, d);
        for (size_t i = 0; i < n; i++) assert_true(act[i] == fmax(sum[i], 0));
        const tr_concat_attrs width = {.axis = 1, .width = {3, 3}};
        double *const halves[2] = {act, x};
        double *joined = plain_op("concat", p, isa, &width, d, 2, halves, 4, twice);
        for (size_t i = 0; i < 2 * n; i++) {
            const size_t sample = i / 210, at = i % 210;
            assert_true(joined[i] == halves[at / 105][sample * 105 + at % 105]);
        }
        double *row = plain_op("flatten", p, isa, NULL, d, 1, &act, 2, flat);
        for (size_t i = 0; i < n; i++) assert_true(row[i] == act[i]);
        double *const all[] = {x, want, y, sum, act, joined, row};
        for (size_t i = 0; i < TR_COUNT(all); i++) tr_free(all[i]);
    }
}

/* What is made for images alone says so. */
static void plain_dimensions_are_no_image(void **state)
{
    (void)state;
    const int64_t d[4] = {2, 3, 4, 4}, half[4] = {2, 3, 2, 2};
    const tr_pool2d_attrs pool = {.kernel = {2, 2}, .stride = {2, 2}};
    harness h = open_level("avgpool2d", TR_PRECISION_FP32, TR_ISA_BASE, 1);
    h_plain(&h, h_in(&h, TR_F32, 4, d));
    h_plain(&h, h_out(&h, TR_F32, 4, half));
    h_refused(&h, &pool);
    h_close(&h);
    h = open_level("batchnorm.stats", TR_PRECISION_FP32, TR_ISA_BASE, 1);
    h_plain(&h, h_in(&h, TR_F32, 4, d));
    h_out(&h, TR_F64, 1, (int64_t[]){7});
    h_refused(&h, NULL);
    h_close(&h);
}

static void matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check(shapes[i], p, isa, 3);
        check(shapes[i], p, isa, 1000);
    }
}

static void odd_rows(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    {
        float x[4 * 20], y[4 * 20];
        for (size_t i = 0; i < 80; i++) x[i] = (float)(i % 7);
        x[20 + 19] = NAN;
        x[40] = INFINITY;
        for (size_t i = 60; i < 79; i++) x[i] = -INFINITY;
        tr_cpu_loops_at(isa)->softmax(TR_F32, x, y, 4, 20);
        for (size_t i = 0; i < 20; i++) {
            assert_true(isfinite(y[i]));
            assert_true(isnan(y[20 + i]));
            assert_true(i == 0 ? isnan(y[40]) : true);
            assert_true(y[60 + i] == (i == 19 ? 1.0f : 0.0f));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(four_plain_dimensions),
                                       cmocka_unit_test(plain_dimensions_are_no_image),
                                       cmocka_unit_test(matches), cmocka_unit_test(odd_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
