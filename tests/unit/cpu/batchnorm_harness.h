/* For tests of batch normalization: shapes, moments in float64, a share's statistics. */
#ifndef TR_TEST_BATCHNORM_HARNESS_H
#define TR_TEST_BATCHNORM_HARNESS_H

#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t n, c, h, w;
} shape;

/* below, at and beyond a vector; folded rows with and without left-overs; several tiles; one
 * value */
static const shape shapes[] = {{1, 1, 1, 1},   {5, 1, 3, 7},   {4, 3, 9, 5},   {3, 10, 4, 4},
                               {2, 16, 8, 8},  {7, 17, 3, 5},  {3, 31, 5, 5},  {2, 33, 9, 9},
                               {4, 64, 6, 6},  {3, 100, 5, 3}, {2, 127, 4, 4}, {2, 513, 3, 3},
                               {9, 600, 0, 0}, {70, 12, 0, 0}, {6, 16, 64, 64}};

static const tr_batchnorm_attrs attrs = {.eps = 1e-5, .momentum = 0.25};

static inline int dims_of(shape s, int64_t d[4])
{
    d[0] = s.n, d[1] = s.c, d[2] = s.h, d[3] = s.w;
    return s.h ? 4 : 2;
}

static inline size_t area(shape s)
{
    return s.h ? (size_t)(s.h * s.w) : 1;
}

static inline size_t channel(shape s, size_t i)
{
    return i / area(s) % (size_t)s.c;
}

/* count, mean, M2 of the values in logical order, in two passes. */
static inline double *moments(shape s, const double *x)
{
    size_t C = (size_t)s.c, count = (size_t)s.n * C * area(s);
    double *m = doubles(1 + 2 * C);
    m[0] = (double)(count / C);
    for (size_t i = 0; i < count; i++) m[1 + channel(s, i)] += x[i] / m[0];
    for (size_t i = 0; i < count; i++)
        m[1 + C + channel(s, i)] += pow(x[i] - m[1 + channel(s, i)], 2);
    return m;
}

static inline harness open_stats(shape s, tr_precision p, int isa, int threads, int *x, int *stats)
{
    int64_t d[4], n = 1 + 2 * s.c;
    harness h = open_level("batchnorm.stats", p, isa, threads);
    *x = h_in(&h, h_activation(&h), dims_of(s, d), d);
    *stats = h_out(&h, TR_F64, 1, &n);
    return h;
}

#endif
