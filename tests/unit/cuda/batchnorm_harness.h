/* For tests of batchnorm kernels by their launchers: shapes that reach both mappings, arrays of any
 * type on the device, moments in float64, the statistics of a share. */
#ifndef TR_TEST_CUDA_BATCHNORM_HARNESS_H
#define TR_TEST_CUDA_BATCHNORM_HARNESS_H

#include "tests/unit/cuda/core_harness.h"

#include <math.h>

#include "kernels/cuda/loops/batchnorm.h"

typedef struct {
    size_t rows, C;
} shape;

/* wide: one value, fewer rows than lanes, several tiles, tens of thousands of channels; tall: one
 * chunk, several, tiles with left-over columns, single channels, three neighbours, odd widths,
 * more chunks than a merge has lanes */
static const shape shapes[] = {{1, 1},      {2, 24},    {7, 17},   {64, 264},   {33, 130},
                               {3, 20008},  {5, 10001}, {65, 8},   {300, 16},   {257, 136},
                               {5000, 72},  {9001, 3},  {4999, 1}, {2000, 100}, {700, 331},
                               {1025, 520}, {35000, 17}};
static const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};

static inline double uniform(uint32_t seed, size_t i, double low, double high)
{
    return low + (high - low) * (double)tr_uniform(tr_philox_at(seed, TR_RNG_TEST, 0, i, 0).v[0]);
}

static inline double unit_of(tr_dtype t) /* the most that rounding moves a value near 1 */
{
    return t == TR_F32 ? 0x1p-24 : t == TR_BF16 ? 0x1p-8 : 0x1p-11;
}

static inline void encode(tr_dtype t, void *p, size_t i, double v)
{
    if (t == TR_F64)
        ((double *)p)[i] = v;
    else if (t == TR_F32)
        ((float *)p)[i] = (float)v;
    else if (t == TR_BF16)
        ((tr_bf16 *)p)[i] = tr_f32_to_bf16((float)v);
    else
        ((_Float16 *)p)[i] = (_Float16)(float)v;
}

static inline double decode(tr_dtype t, const void *p, size_t i)
{
    if (t == TR_F64) return ((const double *)p)[i];
    if (t == TR_F32) return (double)((const float *)p)[i];
    if (t == TR_BF16) return (double)tr_bf16_to_f32(((const tr_bf16 *)p)[i]);
    return (double)((const _Float16 *)p)[i];
}

/* On the device, n values of a type, NaN bytes where values is NULL; rounds `values` to the
 * type. */
static inline void *device(tr_cuda *cuda, tr_dtype t, size_t n, double *values)
{
    const size_t nbytes = n * tr_dtype_size(t);
    unsigned char *host = malloc(nbytes + 1);
    memset(host, 0xff, nbytes);
    for (size_t i = 0; values && i < n; i++) {
        encode(t, host, i, values[i]);
        values[i] = decode(t, host, i);
    }
    void *p = b->memory->alloc(cuda, TR_MEM_OTHER, nbytes + 16);
    assert_non_null(p);
    if (nbytes) assert_ok(b->memory->upload(cuda, p, host, nbytes));
    free(host);
    return p;
}

static inline double *read_back(tr_cuda *cuda, tr_dtype t, size_t n, const void *p)
{
    void *host = malloc(n * tr_dtype_size(t) + 1);
    double *v = malloc(n * sizeof *v + 1);
    if (n) assert_ok(b->memory->download(cuda, host, p, n * tr_dtype_size(t)));
    for (size_t i = 0; i < n; i++) v[i] = decode(t, host, i);
    free(host);
    return v;
}

static inline double *values(uint32_t seed, size_t n, double low, double high)
{
    double *v = malloc(n * sizeof *v + 1);
    for (size_t i = 0; i < n; i++) v[i] = uniform(seed, i, low, high);
    return v;
}

/* count, mean, M2 in two passes. */
static inline double *moments(shape s, const double *x)
{
    double *m = calloc(1 + 2 * s.C, sizeof *m);
    m[0] = (double)s.rows;
    for (size_t i = 0; i < s.rows * s.C; i++) m[1 + i % s.C] += x[i] / m[0];
    for (size_t i = 0; i < s.rows * s.C; i++) m[1 + s.C + i % s.C] += pow(x[i] - m[1 + i % s.C], 2);
    return m;
}

#define FOR_ALL(s, t)                                                                              \
    for (size_t s = 0; s < TR_COUNT(shapes); s++)                                                  \
        for (size_t t = 0; t < TR_COUNT(types); t++)

static inline double *stats_of(tr_cuda *cuda, tr_dtype t, shape s, double *x)
{
    const tr_bn_map m = tr_bn_map_of(s.rows, s.C, t, TR_BN_RUN);
    void *dx = device(cuda, t, s.rows * s.C, x),
         *parts = device(cuda, TR_F64, tr_bn_parts(&m) / 8, NULL),
         *out = device(cuda, TR_F64, 1 + 2 * s.C, NULL);
    assert_ok(tr_bn_stats(cuda->stream, t, &m, dx, parts, out));
    double *got = read_back(cuda, TR_F64, 1 + 2 * s.C, out);
    b->memory->free(cuda, dx);
    b->memory->free(cuda, parts);
    b->memory->free(cuda, out);
    return got;
}

#endif
