/* Division of 64-bit indices by a number that is known before the launch: one 32 x 32
 * multiplication and shifts for dividends below 2^31 (Granlund and Montgomery, "Division by
 * Invariant Integers using Multiplication", PLDI'94), the plain division beyond. */
#ifndef TR_CUDA_DIVIDE_CUH
#define TR_CUDA_DIVIDE_CUH

#include "kernels/cuda/device.cuh"

struct tr_divider {
    uint64_t by;
    uint32_t factor, shift;
};

/* by > 0. With s = ceil(log2 by) and factor = floor(2^32 (2^s - by) / by) + 1:
 * n / by = (n + n * factor / 2^32) / 2^s for all n < 2^31, where the sum fits into 32 bits. */
static inline tr_divider tr_divide_by(uint64_t by)
{
    tr_divider d = {by, 0, 0};
    if (by >= UINT64_C(1) << 31) return d; /* smaller dividends: the plain division */
    while ((UINT64_C(1) << d.shift) < by) d.shift++;
    d.factor = (uint32_t)((UINT64_C(1) << 32) * ((UINT64_C(1) << d.shift) - by) / by + 1);
    return d;
}

__device__ inline uint64_t tr_quotient(const tr_divider &d, uint64_t n)
{
    if (n >= UINT64_C(1) << 31 || d.factor == 0) return n / d.by;
    const uint32_t low = (uint32_t)n;
    const uint32_t high = (uint32_t)((uint64_t)low * d.factor >> 32);
    return (low + high) >> d.shift;
}

/* The same where n and d.by are known to be below 2^31. */
__device__ inline uint32_t tr_quotient32(const tr_divider &d, uint32_t n)
{
    return (n + (uint32_t)((uint64_t)n * d.factor >> 32)) >> d.shift;
}

#endif
