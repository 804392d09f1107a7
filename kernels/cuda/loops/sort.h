/* Sorting numbers and what belongs to them. Local. */
#ifndef TR_CUDA_LOOPS_SORT_H
#define TR_CUDA_LOOPS_SORT_H

#include "kernels/cuda/launch.h"

/* The highest bit that keys below `keys` differ in, plus one: at least 1. */
static inline int tr_cuda_sort_bits(size_t keys)
{
    int bits = 1;
    while (bits < 32 && (size_t)1 << bits < keys) bits++;
    return bits;
}

/* Scratch bytes of tr_cuda_sort for n pairs of keys below `keys`. Dry: what it needs at most,
 * without asking the library, which asks a device. */
TR_CUDA_C tr_status tr_cuda_sort_workspace(bool dry, size_t n, size_t keys, size_t *nbytes);
/* Stable: pairs in the order of their keys, equal keys in the order they came in. 0 < n < 2^31; no
 * two arrays may overlap. */
TR_CUDA_C tr_status tr_cuda_sort(cudaStream_t stream, const uint32_t *keys_in, uint32_t *keys_out,
                                 const uint32_t *values_in, uint32_t *values_out, size_t n,
                                 size_t keys, void *workspace, size_t nbytes);

#endif
