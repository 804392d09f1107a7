/* How much of a histogram of magnitudes a range is to cover. */
#include "optimize/quantize/quantize.h"

#include <math.h>

enum { BINS = TR_CALIBRATION_BINS, LEAST = 128 /* bins that a range covers at least */ };
_Static_assert(BINS % 8 == 0 && LEAST % 8 == 0, "ranges go by 8 bins");

static size_t by_share(const int64_t *h, double share)
{
    int64_t all = 0, seen = 0;
    for (size_t i = 0; i < BINS; i++) all += h[i];
    for (size_t i = 0; i < BINS; i++) {
        seen += h[i];
        if ((double)seen >= share * (double)all) return i + 1;
    }
    return BINS;
}

/* The divergence of what `n` bins hold, with what is beyond them in the last, and the same spread
 * evenly over `levels` groups, where it was anything. The first bin is left out: 0 has a step of
 * its own, and what is next to it would be taken for as frequent. */
static double divergence(const int64_t *h, size_t n, size_t levels, double beyond)
{
    double all = beyond, kept = 0, sum = 0;
    for (size_t i = 1; i < n; i++) all += (double)h[i], kept += (double)h[i];
    if (kept == 0) return INFINITY;
    for (size_t l = 0; l < levels; l++) {
        const size_t begin = l ? l * n / levels : 1, end = (l + 1) * n / levels;
        double mass = 0, filled = 0;
        for (size_t i = begin; i < end; i++) mass += (double)h[i], filled += h[i] > 0;
        for (size_t i = begin; i < end; i++) {
            const double p = ((double)h[i] + (i + 1 == n ? beyond : 0)) / all;
            const double q = h[i] > 0 ? mass / filled / kept : 1e-12;
            if (p > 0) sum += p * log(p / q);
        }
    }
    return sum;
}

static size_t by_entropy(const int64_t *h, size_t levels)
{
    size_t best = BINS;
    double least = INFINITY, beyond = 0;
    for (size_t n = BINS; n >= levels; n -= 8) {
        const double d = divergence(h, n, levels, beyond);
        if (d < least) least = d, best = n;
        for (size_t i = n - 8; i < n; i++) beyond += (double)h[i];
    }
    return best;
}

/* Of values in the middle of their bins. */
static double squared_error(const int64_t *h, size_t n, double steps)
{
    const double step = (double)n / steps;
    double sum = 0;
    for (size_t i = 0; i < BINS; i++) {
        if (h[i] == 0) continue;
        const double v = (double)i + 0.5, q = fmin(rint(v / step), steps) * step;
        sum += (double)h[i] * (v - q) * (v - q);
    }
    return sum;
}

static size_t by_error(const int64_t *h, double steps)
{
    size_t best = BINS;
    double least = INFINITY;
    for (size_t n = BINS; n >= LEAST; n -= 8) {
        const double error = squared_error(h, n, steps);
        if (error < least) least = error, best = n;
    }
    return best;
}

double tr_calibration_most(const tr_calibration *o, bool is_signed, double most,
                           const int64_t *histogram)
{
    size_t n = BINS;
    switch (o->kind) {
    case TR_CALIBRATE_MINMAX:
        break;
    case TR_CALIBRATE_PERCENTILE:
        n = by_share(histogram, o->percentile / 100);
        break;
    case TR_CALIBRATE_ENTROPY:
        n = by_entropy(histogram, 128);
        break;
    case TR_CALIBRATE_MSE:
        n = by_error(histogram, is_signed ? 127 : 255);
        break;
    }
    return most * (double)n / BINS;
}
