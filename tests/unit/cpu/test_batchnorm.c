/* Batch normalization forward: statistics, result and running statistics against float64 arithmetic
 * over many shapes, types and levels; values that would cancel or are not finite; batches of one or
 * no sample; independence of the thread count. */
#include "tests/unit/cpu/batchnorm_harness.h"

static void check_stats(shape s, tr_precision p, int isa, double mean, double spread)
{
    int x, stats;
    harness h = open_stats(s, p, isa, 1, &x, &stats);
    h_fill_range(&h, x, 3, mean - spread, mean + spread);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    double *values = h_values(&h, x), *want = moments(s, values), *got = h_values(&h, stats);
    const size_t C = (size_t)s.c;
    assert_true(got[0] == want[0]);
    for (size_t c = 0; c < C; c++) {
        const double std = sqrt(want[1 + C + c] / want[0]);
        assert_true(fabs(got[1 + c] - want[1 + c]) <= 2e-6 * std + 1e-14 * fabs(mean));
        assert_true(fabs(got[1 + C + c] - want[1 + C + c]) <= 2e-5 * want[1 + C + c]);
    }
    tr_free(values);
    tr_free(want);
    tr_free(got);
    h_close(&h);
}

static void stats_match(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check_stats(shapes[i], p, isa, 0.1, 1.0);
        check_stats(shapes[i], p, isa, 1e4, 200.0);
    }
}

/* A first row far from all others, and channels that hardly vary: where plain sums would cancel. */
static void stats_do_not_cancel(void **state)
{
    (void)state;
    const shape s = {400, 16, 0, 0};
    FOR_LEVELS(isa)
    {
        int x, stats;
        harness h = open_stats(s, TR_PRECISION_FP32, isa, 1, &x, &stats);
        for (size_t i = 0; i < h.tensors[x].count; i++) {
            double v = uniform(5, i, -1, 1);
            if (i % 16 < 4)
                v = i < 16 ? 1e5 : v;
            else if (i % 16 < 8)
                v = 1000 + 1e-2 * v;
            else if (i % 16 < 12)
                v = 7;
            h_put(&h, x, i, v);
        }
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        double *values = h_values(&h, x), *want = moments(s, values), *got = h_values(&h, stats);
        for (size_t c = 0; c < 16; c++) {
            assert_true(fabs(got[1 + c] - want[1 + c]) <= 2e-6 * sqrt(want[17 + c] / 400) + 1e-12);
            assert_true(fabs(got[17 + c] - want[17 + c]) <= 2e-5 * want[17 + c] + 1e-12);
        }
        for (size_t c = 8; c < 12; c++) assert_true(got[1 + 16 + c] == 0.0 && got[1 + c] == 7.0);
        tr_free(values);
        tr_free(want);
        tr_free(got);
        h_close(&h);
    }
}

static void check_forward(shape s, tr_precision p, int isa, tr_act act, bool residual, bool infer)
{
    int64_t d[4], C = s.c, n = 1 + 2 * C;
    const int ndim = dims_of(s, d);
    harness h = open_level(infer ? "batchnorm.infer" : "batchnorm", p, isa, 1);
    const int x = h_in(&h, h_activation(&h), ndim, d), w = h_param(&h, 1, &C),
              b = h_param(&h, 1, &C);
    const int stats = infer ? -1 : h_in(&h, TR_F64, 1, &n);
    const int rmean = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C);
    const int rvar = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C);
    int r = -1;
    if (residual)
        r = h_in(&h, h_activation(&h), ndim, d);
    else
        h_absent_in(&h);
    const int y = h_out(&h, h_activation(&h), ndim, d);
    h_fill_range(&h, x, 1, -1, 3);
    h_fill(&h, w, 2);
    h_fill(&h, b, 3);
    h_fill(&h, rmean, 4);
    h_fill_range(&h, rvar, 5, 0.5, 2);
    if (residual) h_fill(&h, r, 6);
    double *xs = h_values(&h, x), *m = moments(s, xs), *rm = h_values(&h, rmean),
           *rv = h_values(&h, rvar), *want = doubles(h.tensors[y].count);
    for (size_t i = 0; !infer && i < (size_t)n; i++) h_put(&h, stats, i, m[i]);
    for (size_t i = 0; i < h.tensors[y].count; i++) {
        const size_t c = channel(s, i);
        const double mean = infer ? rm[c] : m[1 + c],
                     var = infer ? rv[c] : m[1 + C + (int64_t)c] / m[0];
        double v = (xs[i] - mean) / sqrt(var + attrs.eps) * h_get(&h, w, c) + h_get(&h, b, c);
        if (residual) v += h_get(&h, r, i);
        want[i] = activate(act, v);
    }
    h_prepare(&h, &attrs, act);
    h_run(&h, false);
    /* x scale + shift rounds x scale: |x| / std is up to 60 where a channel has one value */
    expect(&h, y, want, tolerance(p) * (area(s) * (size_t)s.n > 1 ? 4 : 600), "y");
    for (size_t c = 0; c < (size_t)C; c++) {
        const double unbiased = m[0] > 1 ? m[1 + (size_t)C + c] / (m[0] - 1) : rv[c];
        const double mean = infer ? rm[c] : 0.75 * rm[c] + 0.25 * m[1 + c];
        const double var = infer ? rv[c] : 0.75 * rv[c] + 0.25 * unbiased;
        assert_true(fabs(h_get(&h, rmean, c) - mean) <= 1e-6 * (1 + fabs(mean)));
        assert_true(fabs(h_get(&h, rvar, c) - var) <= 1e-6 * (1 + fabs(var)));
    }
    tr_free(xs);
    tr_free(m);
    tr_free(rm);
    tr_free(rv);
    h_close(&h);
}

static void forward_matches(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        check_forward(shapes[i], p, isa, TR_ACT_NONE, false, false);
        check_forward(shapes[i], p, isa, TR_ACT_RELU, true, false);
        check_forward(shapes[i], p, isa, TR_ACT_GELU, false, true);
        check_forward(shapes[i], p, isa, TR_ACT_RELU, true, true);
    }
}

/* Runs "batchnorm" with C = 2 on the given statistics; returns the running mean and variance. */
static void run_states(int64_t batch, const double stats[5], bool recomputed, double out[4])
{
    int64_t d[4] = {batch, 2, 3, 3}, C = 2, n = 5;
    harness h = h_open("batchnorm", TR_PRECISION_FP32, true);
    const int x = h_in(&h, TR_F32, 4, d), w = h_param(&h, 1, &C), b = h_param(&h, 1, &C);
    const int s = h_in(&h, TR_F64, 1, &n), rm = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C),
              rv = h_in_role(&h, TR_ROLE_STATE, TR_F32, 1, &C);
    h_absent_in(&h);
    h_out(&h, TR_F32, 4, d);
    h_fill(&h, x, 1);
    h_fill(&h, w, 1);
    h_fill(&h, b, 1);
    for (size_t i = 0; i < 5; i++) h_put(&h, s, i, stats[i]);
    for (size_t i = 0; i < 2; i++) {
        h_put(&h, rm, i, 1);
        h_put(&h, rv, i, 2);
    }
    h.op.recomputed = recomputed;
    h_prepare(&h, &attrs, TR_ACT_NONE);
    h_run(&h, false);
    for (size_t i = 0; i < 2; i++) {
        out[i] = h_get(&h, rm, i);
        out[2 + i] = h_get(&h, rv, i);
    }
    h_close(&h);
}

static void states_of_odd_batches(void **state)
{
    (void)state;
    double got[4];
    const double empty[5] = {0}, two[5] = {2, 5, 9, 4, 6}, one[5] = {1, 5, 9, 0, 0};
    const double bad[5] = {2, NAN, 9, 4, INFINITY};
    run_states(0, empty, false, got); /* nobody has a sample */
    assert_true(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
    run_states(0, two, false, got); /* only others have */
    assert_true(got[0] == 2 && got[1] == 3 && got[2] == 2.5 && got[3] == 3);
    run_states(1, two, true, got);
    assert_true(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
    run_states(1, one, false, got); /* no unbiased variance of one value */
    assert_true(got[0] == 2 && got[1] == 3 && got[2] == 2 && got[3] == 2);
    run_states(1, bad, false, got); /* an overflow does not get into the states */
    assert_true(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
}

/* One NaN spoils its own channel and no other. */
static void nan_stays_in_its_channel(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    {
        int x, stats;
        harness h = open_stats((shape){3, 5, 6, 6}, TR_PRECISION_FP32, isa, 1, &x, &stats);
        h_fill(&h, x, 1);
        h_put(&h, x, 2 * 36 + 7, NAN);
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        for (size_t c = 0; c < 5; c++) {
            assert_true(isnan(h_get(&h, stats, 1 + c)) == (c == 2));
            assert_true(isnan(h_get(&h, stats, 6 + c)) == (c == 2));
        }
        h_close(&h);
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    const shape s = {6, 16, 64, 64}; /* several chunks */
    double *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        int x, stats;
        harness h = open_stats(s, TR_PRECISION_FP32, tr_cpu_isa(), threads, &x, &stats);
        h_fill(&h, x, 1);
        h_prepare(&h, &attrs, TR_ACT_NONE);
        h_run(&h, false);
        double *got = h_values(&h, stats);
        if (first) assert_memory_equal(first, got, 33 * sizeof *got);
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
        cmocka_unit_test(stats_match),
        cmocka_unit_test(stats_do_not_cancel),
        cmocka_unit_test(forward_matches),
        cmocka_unit_test(states_of_odd_batches),
        cmocka_unit_test(nan_stays_in_its_channel),
        cmocka_unit_test(threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
