/* The plain elementwise ops that kernels/elementwise.h declares: a kernel each.
 *
 * Bytes: every operand once: the minimum. 16-byte loads where the pointers allow, two a thread in
 * flight for each operand. */
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/device.cuh"

namespace
{

enum { THREADS = 256, EACH = 2 }; /* packs a thread */

__device__ inline float tr_vexp(float x)
{
    return expf(x);
}
__device__ inline float tr_vexpm1(float x)
{
    return expm1f(x);
}
__device__ inline float tr_vlog1p(float x)
{
    return log1pf(x);
}
__device__ inline float tr_vsigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <tr_elementwise OP> struct formula;
#define X(op, operands_, value_, numbers)                                                          \
    template <> struct formula<TR_ELEMENTWISE_##op> {                                              \
        enum { operands = operands_ };                                                             \
        static __device__ float value(float x, float y, tr_numbers n)                              \
        {                                                                                          \
            (void)y, (void)n;                                                                      \
            return value_;                                                                         \
        }                                                                                          \
    };
TR_ELEMENTWISE(X)
#undef X

// cost: read 2x write 1x min 3x flops 2 shape 8192x4096 per element of two operands
template <typename T, int V, tr_elementwise OP>
__global__ void __launch_bounds__(THREADS)
    elementwise(const T *x, const T *y, T *out, size_t count, tr_numbers numbers)
{
    using pack = tr_pack<T, V>;
    constexpr bool two = formula<OP>::operands > 1;
    const size_t first = ((size_t)blockIdx.x * EACH * THREADS + threadIdx.x) * V;
    pack p[EACH], q[EACH];
    TR_UNROLL
    for (int u = 0; u < EACH; u++) {
        const size_t at = first + (size_t)u * THREADS * V;
        if (at + V > count) continue;
        p[u] = *reinterpret_cast<const pack *>(x + at);
        if (two) q[u] = *reinterpret_cast<const pack *>(y + at);
    }
    TR_UNROLL
    for (int u = 0; u < EACH; u++) {
        const size_t at = first + (size_t)u * THREADS * V;
        if (at + V <= count) {
            TR_UNROLL
            for (int j = 0; j < V; j++)
                p[u].v[j] = tr_store<T>(formula<OP>::value(
                    tr_load<T>(p[u].v[j]), two ? tr_load<T>(q[u].v[j]) : 0.0f, numbers));
            tr_put(out + at, p[u]);
        } else {
            for (size_t i = at; i < count; i++)
                out[i] = tr_store<T>(
                    formula<OP>::value(tr_load<T>(x[i]), two ? tr_load<T>(y[i]) : 0.0f, numbers));
        }
    }
}

template <typename T, int V, tr_elementwise OP>
tr_status launch(tr_numbers numbers, const void *x, const void *y, void *out, size_t n,
                 cudaStream_t stream)
{
    const unsigned grid = tr_blocks(n, (size_t)THREADS * EACH * V, INT32_MAX);
    return TR_LAUNCH(TR_KERNEL(elementwise<T, V, OP>), grid, THREADS, 0, stream,
                     static_cast<const T *>(x), static_cast<const T *>(y), static_cast<T *>(out), n,
                     numbers);
}

template <tr_elementwise OP>
tr_status by_type(tr_dtype t, tr_numbers numbers, const void *x, const void *y, void *out, size_t n,
                  cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(x, 16) && tr_is_aligned(y, 16) && tr_is_aligned(out, 16);
    TR_BY_TYPE(t, T, {
        constexpr int V = 16 / sizeof(T);
        return aligned ? launch<T, V, OP>(numbers, x, y, out, n, stream)
                       : launch<T, 1, OP>(numbers, x, y, out, n, stream);
    })
    return TR_OK;
}

} // namespace

tr_status tr_cuda_elementwise_run(tr_dtype t, tr_elementwise which, tr_numbers numbers,
                                  const void *x, const void *y, void *out, size_t count,
                                  cudaStream_t stream)
{
    if (count == 0) return TR_OK;
    switch (which) {
#define X(op, operands, value, of)                                                                 \
    case TR_ELEMENTWISE_##op:                                                                      \
        return by_type<TR_ELEMENTWISE_##op>(t, numbers, x, y, out, count, stream);
        TR_ELEMENTWISE(X)
#undef X
    }
    return TR_OK;
}
