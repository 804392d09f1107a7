/* Philox4x32-10 on the device, bit by bit runtime/base/rng.c's (Salmon et al., SC'11). The key
 * (tr_philox_key) is made on the host. About 40 integer operations for four words. */
#ifndef TR_CUDA_PHILOX_CUH
#define TR_CUDA_PHILOX_CUH

#include "kernels/cuda/device.cuh"

__device__ inline tr_philox tr_device_philox(uint64_t key, uint64_t index, uint32_t block)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = block, c3 = 0;
    TR_UNROLL
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return tr_philox{{c0, c1, c2, c3}};
}

#endif
