/* Softmax and its gradient against float64 at every level; rows that overflow exp, rows with NaN.
 */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches), cmocka_unit_test(odd_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
