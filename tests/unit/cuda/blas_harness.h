/* Matrices in the backend's memory with their values in double on the host, and a context by
 * options. */
#ifndef TR_TEST_BLAS_HARNESS_H
#define TR_TEST_BLAS_HARNESS_H

#include <math.h>

#include "kernels/cuda/blas/private.h"
#include "tests/unit/cuda/core_harness.h"

/* Values are multiples of 1/64 in [-1, 1): all types hold them, and their products, exactly. */
typedef struct {
    tr_dtype type;
    size_t count;
    void *data;    /* the backend's */
    double *value; /* as last filled or fetched */
} array;

static inline tr_cuda *open_as(tr_backend_options o)
{
    void *ctx = NULL;
    assert_ok(b->open(&o, &ctx));
    return ctx;
}

static inline double get16(tr_dtype type, const void *p, size_t i)
{
    const uint16_t bits = ((const uint16_t *)p)[i];
    if (type == TR_BF16) return tr_bf16_to_f32(bits);
    const int e = bits >> 10 & 31, m = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;
    if (e == 31) return m ? (double)NAN : sign * (double)INFINITY;
    return sign * (e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25));
}

/* Exact values only. */
static inline uint16_t put16(tr_dtype type, double v)
{
    if (type == TR_BF16) return tr_f32_to_bf16((float)v);
    if (isnan(v)) return 0x7e00;
    if (v == 0) return 0;
    int e;
    const double m = frexp(fabs(v), &e); /* [0.5, 1) */
    return (uint16_t)((v < 0 ? 0x8000 : 0) | ((e + 14) << 10) | ((int)ldexp(m, 11) - 1024));
}

static inline void array_send(tr_cuda *cuda, array *a)
{
    const size_t esize = tr_dtype_size(a->type);
    char *host = malloc(a->count * esize + 1);
    for (size_t i = 0; i < a->count; i++) {
        if (a->type == TR_F32)
            ((float *)host)[i] = (float)a->value[i];
        else
            ((uint16_t *)host)[i] = put16(a->type, a->value[i]);
    }
    assert_ok(b->memory->upload(cuda, a->data, host, a->count * esize));
    free(host);
}

static inline void array_fetch(tr_cuda *cuda, array *a)
{
    const size_t esize = tr_dtype_size(a->type);
    char *host = malloc(a->count * esize + 1);
    assert_ok(b->memory->download(cuda, host, a->data, a->count * esize));
    for (size_t i = 0; i < a->count; i++)
        a->value[i] = a->type == TR_F32 ? ((float *)host)[i] : get16(a->type, host, i);
    free(host);
}

static inline array array_open(tr_cuda *cuda, tr_dtype type, size_t count, uint32_t seed)
{
    array a = {.type = type, .count = count};
    a.data = b->memory->alloc(cuda, TR_MEM_OTHER, count * tr_dtype_size(type));
    a.value = malloc((count + 1) * sizeof *a.value);
    assert_non_null(a.data);
    for (size_t i = 0; i < count; i++) {
        const tr_philox r = tr_philox_at(seed, TR_RNG_TEST, 0, i, 0);
        a.value[i] = seed ? floor(128 * tr_uniform(r.v[0])) / 64 - 1 : (double)NAN;
    }
    array_send(cuda, &a);
    return a;
}

static inline void array_close(tr_cuda *cuda, array *a)
{
    b->memory->free(cuda, a->data);
    free(a->value);
    memset(a, 0, sizeof *a);
}

/* Half a unit in the last place of 1. */
static inline double unit_of(tr_dtype type)
{
    return type == TR_BF16 ? 0x1p-8 : type == TR_F16 ? 0x1p-11 : 0x1p-24;
}

#endif
