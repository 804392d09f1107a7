/* Arrays on the host and on the device for tests of our own kernels, and the shapes that reach
 * every layout of kernels over rows. */
#ifndef TR_TEST_CUDA_LOOPS_HARNESS_H
#define TR_TEST_CUDA_LOOPS_HARNESS_H

#include "core_harness.h"

#include <math.h>

#include "kernels/cuda/ops/rows.h"

static const tr_dtype types[] = {TR_F32, TR_BF16, TR_F16};
static const double units[] = {0x1p-24, 0x1p-8, 0x1p-11}; /* half a unit in the last place */

/* Values on the host in float64, as the type holds them, and on the device `skew` elements from an
 * aligned address. */
typedef struct {
    tr_cuda *cuda;
    tr_dtype type;
    size_t n, skew;
    void *base, *at;
    double *v;
} array;

static inline double rounded(tr_dtype t, double v)
{
    if (t == TR_BF16) return tr_bf16_to_f32(tr_f32_to_bf16((float)v));
    if (t == TR_F16) return (double)(_Float16)v;
    return t == TR_F64 ? v : (float)v;
}

static inline void put(const array *a, void *to, size_t i)
{
    if (a->type == TR_BF16) ((tr_bf16 *)to)[i] = tr_f32_to_bf16((float)a->v[i]);
    if (a->type == TR_F16) ((_Float16 *)to)[i] = (_Float16)a->v[i];
    if (a->type == TR_F32) ((float *)to)[i] = (float)a->v[i];
    if (a->type == TR_F64) ((double *)to)[i] = a->v[i];
    if (a->type == TR_I32) ((int32_t *)to)[i] = (int32_t)a->v[i];
}

static inline void take(const array *a, const void *from, size_t i)
{
    if (a->type == TR_BF16) a->v[i] = tr_bf16_to_f32(((const tr_bf16 *)from)[i]);
    if (a->type == TR_F16) a->v[i] = (double)((const _Float16 *)from)[i];
    if (a->type == TR_F32) a->v[i] = ((const float *)from)[i];
    if (a->type == TR_F64) a->v[i] = ((const double *)from)[i];
}

static inline void send(const array *a)
{
    const size_t size = tr_dtype_size(a->type);
    char *host = malloc(a->n * size + 1);
    for (size_t i = 0; i < a->n; i++) put(a, host, i);
    assert_ok(b->memory->upload(a->cuda, a->at, host, a->n * size));
    free(host);
}

/* Everything else in the allocation must have kept its bytes (zero). */
static inline void receive(const array *a)
{
    const size_t size = tr_dtype_size(a->type), guard = 64;
    const size_t all = (a->skew + a->n + guard) * size;
    unsigned char *host = malloc(all);
    assert_ok(b->memory->download(a->cuda, host, a->base, all));
    for (size_t i = 0; i < a->skew * size; i++) assert_int_equal(host[i], 0);
    for (size_t i = (a->skew + a->n) * size; i < all; i++) assert_int_equal(host[i], 0);
    for (size_t i = 0; i < a->n; i++) take(a, host + a->skew * size, i);
    free(host);
}

/* Seeded values in [low, high). */
static inline array array_of(tr_cuda *cuda, tr_dtype type, size_t n, size_t skew, uint32_t seed,
                             double low, double high)
{
    const size_t size = tr_dtype_size(type);
    array a = {.cuda = cuda, .type = type, .n = n, .skew = skew};
    a.base = b->memory->alloc(cuda, TR_MEM_OTHER, (skew + n + 64) * size);
    a.at = (char *)a.base + skew * size;
    a.v = malloc((n + 1) * sizeof *a.v);
    for (size_t i = 0; i < n; i++) {
        const double u = tr_uniform(tr_philox_at(seed, TR_RNG_TEST, 0, i, 0).v[0]);
        a.v[i] = rounded(type, low + (high - low) * u);
    }
    send(&a);
    return a;
}

static inline array array_like(const array *a)
{
    return array_of(a->cuda, a->type, a->n, a->skew, 99, 5, 6);
}

static inline void drop(array *a)
{
    b->memory->free(a->cuda, a->base);
    free(a->v);
}

static inline void close_to(const array *a, const double *want, double slack, const char *what,
                            size_t width)
{
    double unit = 0x1p-52;
    for (size_t t = 0; t < TR_COUNT(types); t++)
        if (types[t] == a->type) unit = units[t];
    receive(a);
    for (size_t i = 0; i < a->n; i++) {
        if (isnan(want[i]) && isnan(a->v[i])) continue;
        /* half precision has a least number: 2^-24 */
        const double bound =
            unit * 1.01 * fabs(want[i]) + slack + (a->type == TR_F16 ? 0x1p-24 : 0);
        if (!(fabs(a->v[i] - want[i]) <= bound))
            fail_msg(
                "%s of %s, rows of %zu, skew %zu: element %zu is %.9g, expected %.9g within %.3g",
                what, tr_dtype_name(a->type), width, a->skew, i, a->v[i], want[i], bound);
    }
}

/* All layouts of 16-byte and of single loads, and what lies on either side of their borders. */
static const struct {
    size_t rows, D;
} shapes[] = {{5, 1},     {300, 2},   {3, 7},      {70, 10},   {9, 33},   {40, 64},  {6, 256},
              {5, 257},   {4, 512},   {3, 513},    {3, 1000},  {2, 1024}, {2, 1032}, {2, 1999},
              {2, 4096},  {2, 4104},  {1, 4097},   {2, 8192},  {2, 8200}, {1, 9001}, {2, 20000},
              {1, 50257}, {1, 65536}, {1, 100003}, {1, 131072}};

typedef void row_test(tr_cuda *cuda, tr_dtype type, size_t rows, size_t D, size_t skew,
                      size_t keep);

static inline void over_rows(row_test *test, tr_status (*ready)(tr_dtype, size_t))
{
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < TR_COUNT(types); t++) {
        const size_t keep = tr_cuda_row_room(cuda);
        assert_ok(ready(types[t], keep));
        for (size_t s = 0; s < TR_COUNT(shapes); s++) {
            /* but for the conversion, the same code as of bf16 */
            if (types[t] == TR_F16 && shapes[s].D > 1100) continue;
            /* the longest take turns: all of the path they share is in each */
            if (shapes[s].D > 10000 && (s + t) % 2) continue;
            test(cuda, types[t], shapes[s].rows, shapes[s].D, 0, keep);
            test(cuda, types[t], shapes[s].rows, shapes[s].D, 1, keep);
            if (shapes[s].D > 8192) test(cuda, types[t], shapes[s].rows, shapes[s].D, 0, 0);
        }
        test(cuda, types[t], 0, 64, 0, keep);
    }
    b->close(cuda);
}

#endif
