/* Percentiles and the bootstrap interval of times. */
#include "optimize/benchmark/benchmark.h"
#include "runtime/base/numbers.h"

#include <math.h>

enum { RESAMPLES = 400, THIN = 2000 };

/* Of n ascending values, 0 <= q <= 1. */
static double quantile(const double *v, size_t n, double q)
{
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    return i + 1 < n ? v[i] + (at - (double)i) * (v[i + 1] - v[i]) : v[n - 1];
}

/* The median of n values drawn from `v` with replacement: how often each was drawn says which is in
 * the middle. */
static double resampled_median(const double *v, size_t n, uint64_t key, uint64_t which,
                               uint32_t *drawn)
{
    for (size_t i = 0; i < n; i++) drawn[i] = 0;
    for (size_t i = 0; i < n; i += 4) {
        const tr_philox r = tr_philox_block(key, which, (uint32_t)(i / 4));
        for (size_t k = 0; k < 4 && i + k < n; k++) drawn[(size_t)(((uint64_t)r.v[k] * n) >> 32)]++;
    }
    const size_t low = (n - 1) / 2, high = n / 2; /* places of the middle, one or two */
    double sum = 0;
    size_t seen = 0;
    for (size_t i = 0; i < n && seen <= high; i++) {
        const size_t before = seen;
        seen += drawn[i];
        if (before <= low && low < seen) sum += v[i];
        if (before <= high && high < seen) sum += v[i];
    }
    return sum / 2;
}

static tr_status bootstrap(const double *seconds, size_t count, uint64_t seed, tr_spread *out)
{
    tr_status st = TR_OK;
    const size_t n = count < THIN ? count : THIN;
    double *v = tr_alloc(TR_MEM_OTHER, n + RESAMPLES, sizeof *v), *medians = v + n;
    uint32_t *drawn = tr_alloc(TR_MEM_OTHER, n, sizeof *drawn);
    TR_HAVE(v && drawn);
    for (size_t i = 0; i < n; i++)
        v[i] = quantile(seconds, count, n > 1 ? (double)i / (double)(n - 1) : 0);
    const uint64_t key = tr_philox_key(seed, TR_RNG_BOOTSTRAP, 0);
    for (uint64_t i = 0; i < RESAMPLES; i++) medians[i] = resampled_median(v, n, key, i, drawn);
    tr_sort(medians, RESAMPLES);
    out->low = quantile(medians, RESAMPLES, 0.025);
    out->high = quantile(medians, RESAMPLES, 0.975);
out:
    tr_free(v);
    tr_free(drawn);
    return st;
}

tr_status tr_spread_of(double *seconds, size_t n, uint64_t seed, tr_spread *out)
{
    double sum = 0, squares = 0;
    *out = (tr_spread){.runs = n};
    if (n == 0) return TR_FAIL(TR_INTERNAL, "nothing was measured");
    tr_sort(seconds, n);
    for (size_t i = 0; i < n; i++) sum += seconds[i];
    out->mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (seconds[i] - out->mean) * (seconds[i] - out->mean);
    out->deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    for (int p = 0; p < TR_PERCENTS; p++) out->percent[p] = quantile(seconds, n, p / 100.0);
    return bootstrap(seconds, n, seed, out);
}
