/* Layer normalization and RMSNorm: forward and gradients against float64 at every level; central
 * differences; accumulation; independence of the thread count. */
#include "tests/unit/cpu/loop_levels.h"

static tr_layernorm_attrs attrs = {.eps = 1e-5}; /* `rms` changes from one test to the next */

static const int64_t shapes[][3] = {{1, 1, 2},   {3, 1, 7},    {5, 4, 16},   {2, 3, 100},
                                    {9, 1, 513}, {300, 1, 64}, {2, 2, 5000}, {1200, 1, 130}};

/* y and dx, dw, db for the loss sum dy * y; all float64. */
static void reference(size_t rows, size_t D, const double *x, const double *w, const double *b,
                      const double *dy, double *y, double *dx, double *dw, double *db)
{
    for (size_t r = 0; r < rows; r++) {
        const double *xr = x + r * D, *g = dy ? dy + r * D : NULL;
        double mean = 0, var = 0, sum = 0, sum_x = 0;
        for (size_t i = 0; i < D && !attrs.rms; i++) mean += xr[i] / (double)D;
        for (size_t i = 0; i < D; i++) var += (xr[i] - mean) * (xr[i] - mean) / (double)D;
        const double inv = 1 / sqrt(var + attrs.eps);
        for (size_t i = 0; i < D; i++) {
            const double xhat = (xr[i] - mean) * inv;
            if (y) y[r * D + i] = xhat * w[i] + (b ? b[i] : 0);
            if (!g) continue;
            sum += g[i] * w[i] / (double)D;
            sum_x += g[i] * w[i] * xhat / (double)D;
            dw[i] += g[i] * xhat;
            db[i] += g[i];
        }
        if (attrs.rms) sum = 0;
        for (size_t i = 0; g && i < D; i++)
            dx[r * D + i] = inv * (g[i] * w[i] - sum - (xr[i] - mean) * inv * sum_x);
    }
}

static void check(const int64_t *s, tr_precision p, int isa, double at)
{
    const int ndim = s[1] == 1 ? 2 : 3;
    const int64_t d3[3] = {s[0], s[1], s[2]}, d2[2] = {s[0], s[2]}, D = s[2];
    const int64_t *d = ndim == 2 ? d2 : d3, sd[2] = {s[0] * s[1], 2};
    const size_t rows = (size_t)sd[0], n = rows * (size_t)D;
    harness h = open_level(attrs.rms ? "rmsnorm" : "layernorm", p, isa, 2);
    const tr_dtype t = h_activation(&h);
    int x = h_in(&h, t, ndim, d), w = h_param(&h, 1, &D);
    const int b = attrs.rms ? -1 : h_param(&h, 1, &D);
    const int y = h_out(&h, t, ndim, d), st = h_out(&h, TR_F32, 2, sd);
    h_fill_range(&h, x, 1, at - 2, at + 2);
    h_fill(&h, w, 2);
    if (b >= 0) h_fill(&h, b, 3);
    double *xs = h_values(&h, x), *ws = h_values(&h, w), *bs = b < 0 ? NULL : h_values(&h, b),
           *want = doubles(n);
    reference(rows, (size_t)D, xs, ws, bs, NULL, want, NULL, NULL, NULL);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    /* the mean is rounded to float32: |at| * 2^-24 of it */
    expect(&h, y, want, tolerance(p) * (8 + at / 2), "y");
    double *stats = h_values(&h, st);
    h_close(&h);

    h = open_level(attrs.rms ? "rmsnorm.grad" : "layernorm.grad", p, isa, 2);
    const int dy = h_in(&h, t, ndim, d);
    x = h_in(&h, t, ndim, d);
    w = h_param(&h, 1, &D);
    const int in_stats = h_in(&h, TR_F32, 2, sd), dx = h_out(&h, t, ndim, d),
              dw = h_grad(&h, 1, &D), db = attrs.rms ? -1 : h_grad(&h, 1, &D);
    h_fill(&h, dy, 4);
    for (size_t i = 0; i < n; i++) h_put(&h, x, i, xs[i]);
    for (size_t i = 0; i < (size_t)D; i++) h_put(&h, w, i, ws[i]);
    for (size_t i = 0; i < 2 * rows; i++) h_put(&h, in_stats, i, stats[i]);
    double *dys = h_values(&h, dy), *want_dx = doubles(n), *want_dw = doubles((size_t)D),
           *want_db = doubles((size_t)D);
    reference(rows, (size_t)D, xs, ws, NULL, dys, NULL, want_dx, want_dw, want_db);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    if (D > 2 || attrs.rms) expect(&h, dx, want_dx, tolerance(p) * (16 + at / 2), "dx");
    if (D <= 2 && !attrs.rms) tr_free(want_dx); /* y is +-1: dx is nothing but rounding */
    double *once = h_values(&h, dw);
    const double room = 1e-6 * (8 + sqrt((double)rows)) * (1 + at / 8);
    h_close_to(once, want_dw, NULL, (size_t)D, room, "dweight");
    if (db >= 0)
        expect(&h, db, want_db, room, "dbias");
    else
        tr_free(want_db);
    h_run(&h, true);
    for (size_t i = 0; i < (size_t)D; i++) assert_true(h_get(&h, dw, i) == 2 * once[i]);
    tr_free(once);
    tr_free(want_dw);
    tr_free(dys);
    tr_free(stats);
    tr_free(xs);
    tr_free(ws);
    tr_free(bs);
    h_close(&h);
}

static void matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check(shapes[i], p, isa, 0);
        check(shapes[i], p, isa, p == TR_PRECISION_BF16 ? 3 : 30);
    }
}

static void rms_matches(void **state)
{
    attrs.rms = true;
    matches(state);
    attrs.rms = false;
}

static void reference_is_the_derivative(void **state)
{
    (void)state;
    enum { ROWS = 3, D = 6, N = ROWS * D };
    double x[N], w[D], dy[N], dx[N], dw[D] = {0}, db[D] = {0}, y[N];
    for (size_t i = 0; i < N; i++) x[i] = uniform(1, i, -2, 2), dy[i] = uniform(2, i, -1, 1);
    for (size_t i = 0; i < D; i++) w[i] = uniform(3, i, 0.5, 2);
    reference(ROWS, D, x, w, NULL, dy, NULL, dx, dw, db);
    for (size_t k = 0; k < N + D; k++) {
        double *at = k < N ? x + k : w + (k - N), keep = *at, sum[2] = {0};
        for (int side = 0; side < 2; side++) {
            *at = keep + (side ? -1e-5 : 1e-5);
            reference(ROWS, D, x, w, NULL, NULL, y, NULL, NULL, NULL);
            for (size_t i = 0; i < N; i++) sum[side] += y[i] * dy[i];
        }
        *at = keep;
        assert_true(fabs((sum[0] - sum[1]) / 2e-5 - (k < N ? dx[k] : dw[k - N])) < 1e-8);
    }
}

static void reference_of_rms_is_the_derivative(void **state)
{
    attrs.rms = true;
    reference_is_the_derivative(state);
    attrs.rms = false;
}

static void threads_change_nothing(void **state)
{
    (void)state;
    const int64_t d[2] = {3000, 64}, sd[2] = {3000, 2}, D = 64;
    double *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        harness h = h_open_with("layernorm.grad", TR_PRECISION_FP32, true, threads);
        h_fill(&h, h_in(&h, TR_F32, 2, d), 1);
        h_fill(&h, h_in(&h, TR_F32, 2, d), 2);
        h_fill(&h, h_param(&h, 1, &D), 3);
        h_fill_range(&h, h_in(&h, TR_F32, 2, sd), 4, 0.5, 1);
        h_out(&h, TR_F32, 2, d);
        const int dw = h_grad(&h, 1, &D);
        h_grad(&h, 1, &D);
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        double *got = h_values(&h, dw);
        if (first) assert_memory_equal(first, got, 64 * sizeof *got);
        if (first)
            tr_free(got);
        else
            first = got;
        h_close(&h);
    }
    tr_free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches),
        cmocka_unit_test(rms_matches),
        cmocka_unit_test(reference_is_the_derivative),
        cmocka_unit_test(reference_of_rms_is_the_derivative),
        cmocka_unit_test(threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
