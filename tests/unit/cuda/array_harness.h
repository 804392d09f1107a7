/* Arrays on the host with a copy on the device, and numbers to fill them with. */
#ifndef TR_TEST_CUDA_ARRAY_HARNESS_H
#define TR_TEST_CUDA_ARRAY_HARNESS_H

#include "tests/unit/cuda/core_harness.h"

static inline double uniform(uint32_t seed, size_t i, double low, double high)
{
    return low + (high - low) * (double)tr_uniform(tr_philox_at(seed, TR_RNG_TEST, 0, i, 0).v[0]);
}

/* An array on the host and its copy on the device. */
typedef struct {
    float *host, *device;
    size_t n;
} array;

static inline array open_array(tr_cuda *cuda, size_t n)
{
    array a = {tr_alloc(TR_MEM_OTHER, n, sizeof(float)),
               b->memory->alloc(cuda, TR_MEM_OTHER, n * sizeof(float)), n};
    assert_non_null(a.host);
    assert_non_null(a.device);
    return a;
}

static inline void put(tr_cuda *cuda, const array *a)
{
    assert_ok(b->memory->upload(cuda, a->device, a->host, a->n * sizeof *a->host));
}

static inline void get(tr_cuda *cuda, const array *a)
{
    assert_ok(b->memory->download(cuda, a->host, a->device, a->n * sizeof *a->host));
}

static inline void close_array(tr_cuda *cuda, array *a)
{
    b->memory->free(cuda, a->device);
    tr_free(a->host);
}

#endif
