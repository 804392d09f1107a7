/* CUB's radix sort of 32-bit keys with 32-bit values: stable, and the same bits every time. Eight
 * bits a pass, each of which reads and writes 8 bytes a pair; one pass more reads the keys. Its
 * scratch is a second copy of the pairs, 1 KiB a tile of some thousand of them, and counters. */
#ifndef CCCL_DISABLE_NVTX
#define CCCL_DISABLE_NVTX
#endif
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/loops/sort.h"

enum { TILE = 4096, FIXED = 65536 }; /* tiles are larger on all that we compile for */

tr_status tr_cuda_sort_workspace(bool dry, size_t n, size_t keys, size_t *nbytes)
{
    size_t need = 0;
    *nbytes = 8 * n + (n / TILE + 1) * 1024 + FIXED;
    if (dry || n == 0) return TR_OK;
    const uint32_t *in = nullptr;
    uint32_t *out = nullptr;
    const tr_status st = tr_cuda_check(
        cub::DeviceRadixSort::SortPairs(nullptr, need, in, out, in, out, (int)n, 0,
                                        tr_cuda_sort_bits(keys), (cudaStream_t) nullptr),
        "cub::DeviceRadixSort::SortPairs");
    if (st == TR_OK && need > *nbytes) *nbytes = need;
    return st;
}

tr_status tr_cuda_sort(cudaStream_t stream, const uint32_t *keys_in, uint32_t *keys_out,
                       const uint32_t *values_in, uint32_t *values_out, size_t n, size_t keys,
                       void *workspace, size_t nbytes)
{
    return tr_cuda_check(cub::DeviceRadixSort::SortPairs(workspace, nbytes, keys_in, keys_out,
                                                         values_in, values_out, (int)n, 0,
                                                         tr_cuda_sort_bits(keys), stream),
                         "cub::DeviceRadixSort::SortPairs");
}
