/* Random bits for loops, several blocks at a time. */
#ifndef TR_CPU_LOOPS_PHILOX_H
#define TR_CPU_LOOPS_PHILOX_H

#include "kernels/cpu/loops/vec.h"

/* Philox4x32-10 (runtime/base/rng.c) of TR_PHILOX_BLOCKS consecutive blocks from `block`: word w of
 * block b to bits[4 * b + w]. */
enum { TR_PHILOX_BLOCKS = 64 };

TR_INLINE void tr_philox_blocks(uint64_t key, uint64_t index, uint32_t block,
                                uint32_t bits[4 * TR_PHILOX_BLOCKS])
{
    TR_SIMD for (uint32_t b = 0; b < TR_PHILOX_BLOCKS; b++)
    {
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = block + b, c3 = 0;
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t p = (uint64_t)0xd2511f53u * c0, q = (uint64_t)0xcd9e8d57u * c2;
            uint32_t n0 = (uint32_t)(q >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)q;
            c3 = (uint32_t)p;
            c0 = n0;
            c2 = n2;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        bits[4 * b] = c0;
        bits[4 * b + 1] = c1;
        bits[4 * b + 2] = c2;
        bits[4 * b + 3] = c3;
    }
}

#endif
