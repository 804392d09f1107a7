/* A warp's matrix instructions, and copies to shared memory beside the thread (PTX ISA: "mma",
 * "ldmatrix", "cp.async"), of compute capability 8.0 and later; `#if TR_MATRIX_UNITS` around what
 * uses them. All 32 lanes call each together. Lane l is (g, t) = (l / 4, l % 4); a register holds
 * two neighbouring values, the lower half the first.
 *
 *                 registers or floats of lane (g, t)
 *     a  16 x 16  a[r]: row g + 8 (r % 2), columns 2t + 8 (r / 2) and the next
 *     b  16 x 8   b0, b1: rows 2t, and 2t + 8, and the next; column g
 *     c  16 x 8   c[r]: row g + 8 (r / 2), column 2t + r % 2
 *
 * So c of two neighbouring products, rounded, is a of a third: what attention does with its
 * probabilities. */
#ifndef TR_CUDA_MMA_CUH
#define TR_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

#ifndef TR_MATRIX_UNITS /* else the compiler's stand-in defines all this */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TR_MATRIX_UNITS 1
#else
#define TR_MATRIX_UNITS 0
#endif

/* c += a b. */
template <typename T>
__device__ inline void tr_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
#define TR_MMA(T, type)                                                                            \
    template <>                                                                                    \
    __device__ inline void tr_mma<T>(float(&c)[4], const unsigned(&a)[4], unsigned b0,             \
                                     unsigned b1)                                                  \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                 \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }
TR_MMA(__nv_bfloat16, "bf16")
TR_MMA(__half, "f16")
#undef TR_MMA

__device__ inline unsigned tr_shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* Four matrices of 8 x 8 values from shared memory: lane l gives the address of row l % 8 of matrix
 * l / 8, 16 bytes, aligned. to[m]: of matrix m row g, columns 2t and the next. */
__device__ inline void tr_ldmatrix(unsigned (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(tr_shared_address(row))
                 : "memory");
}

/* to[m]: of matrix m column g, rows 2t and the next. */
__device__ inline void tr_ldmatrix_transposed(unsigned (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(tr_shared_address(row))
                 : "memory");
}

/* Begins to copy 16 bytes, aligned, from global to shared memory; zeros in their place unless
 * `some`, and nothing is read. The thread has them after tr_async_wait, others after a barrier
 * behind that. */
__device__ inline void tr_async_copy(void *to, const void *from, bool some)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    *static_cast<uint4 *>(to) = some ? *static_cast<const uint4 *>(from) : uint4{0, 0, 0, 0};
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tr_shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(some ? 16 : 0)
                 : "memory");
#endif
}

/* The same of one number. */
__device__ inline void tr_async_copy_word(float *to, const float *from, bool some)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(tr_shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(some ? 4 : 0)
                 : "memory");
}

/* For all that the thread began. */
__device__ inline void tr_async_wait()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#endif

/* Two values as a register holds them: one instruction that rounds both. */
template <typename T> __device__ inline unsigned tr_pair(float first, float second);
template <> __device__ inline unsigned tr_pair<__nv_bfloat16>(float first, float second)
{
    const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    unsigned word;
    memcpy(&word, &two, sizeof word);
    return word;
}
template <> __device__ inline unsigned tr_pair<__half>(float first, float second)
{
    const __half2 two = __floats2half2_rn(first, second);
    unsigned word;
    memcpy(&word, &two, sizeof word);
    return word;
}

#endif
