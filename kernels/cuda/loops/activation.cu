/* Activations and their gradients, element by element.
 *
 * Bytes: every operand once: the minimum. 16-byte loads where the pointers allow, two a thread in
 * flight for each operand. */
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

enum { THREADS = 256, EACH = 2 }; /* packs a thread */

// cost: read 1x write 1x min 2x flops 20 shape 8192x4096
template <typename T, int V, tr_act ACT>
__global__ void __launch_bounds__(THREADS) activation(const T *x, T *y, size_t n)
{
    using pack = tr_pack<T, V>;
    const size_t first = ((size_t)blockIdx.x * EACH * THREADS + threadIdx.x) * V;
    pack p[EACH];
    TR_UNROLL
    for (int u = 0; u < EACH; u++) {
        const size_t at = first + (size_t)u * THREADS * V;
        if (at + V <= n) p[u] = *reinterpret_cast<const pack *>(x + at);
    }
    TR_UNROLL
    for (int u = 0; u < EACH; u++) {
        const size_t at = first + (size_t)u * THREADS * V;
        if (at + V <= n) {
            TR_UNROLL
            for (int j = 0; j < V; j++)
                p[u].v[j] = tr_store<T>(tr_activate(ACT, tr_load<T>(p[u].v[j])));
            tr_put(y + at, p[u]);
        } else {
            for (size_t i = at; i < n; i++) y[i] = tr_store<T>(tr_activate(ACT, tr_load<T>(x[i])));
        }
    }
}

// cost: read 2x write 1x min 3x flops 25 shape 8192x4096
template <typename T, int V, tr_act ACT>
__global__ void __launch_bounds__(THREADS)
    activation_grad(const T *dy, const T *saved, T *dx, size_t n)
{
    using pack = tr_pack<T, V>;
    const size_t first = ((size_t)blockIdx.x * EACH * THREADS + threadIdx.x) * V;
    pack p[EACH], q[EACH];
    TR_UNROLL
    for (int u = 0; u < EACH; u++) {
        const size_t at = first + (size_t)u * THREADS * V;
        if (at + V > n) continue;
        p[u] = *reinterpret_cast<const pack *>(dy + at);
        q[u] = *reinterpret_cast<const pack *>(saved + at);
    }
    TR_UNROLL
    for (int u = 0; u < EACH; u++) {
        const size_t at = first + (size_t)u * THREADS * V;
        if (at + V <= n) {
            TR_UNROLL
            for (int j = 0; j < V; j++)
                p[u].v[j] = tr_store<T>(
                    tr_activate_grad(ACT, tr_load<T>(p[u].v[j]), tr_load<T>(q[u].v[j])));
            tr_put(dx + at, p[u]);
        } else {
            for (size_t i = at; i < n; i++)
                dx[i] = tr_store<T>(tr_activate_grad(ACT, tr_load<T>(dy[i]), tr_load<T>(saved[i])));
        }
    }
}

/* Runs `...` with the constant ACT. */
#define BY_ACT_CASE(which, ...)                                                                    \
    case which: {                                                                                  \
        constexpr tr_act ACT = which;                                                              \
        __VA_ARGS__;                                                                               \
    }
#define BY_ACT(act, ...)                                                                           \
    switch (act) {                                                                                 \
        BY_ACT_CASE(TR_ACT_RELU, __VA_ARGS__)                                                      \
        BY_ACT_CASE(TR_ACT_GELU, __VA_ARGS__)                                                      \
        BY_ACT_CASE(TR_ACT_GELU_TANH, __VA_ARGS__)                                                 \
        BY_ACT_CASE(TR_ACT_SILU, __VA_ARGS__)                                                      \
        BY_ACT_CASE(TR_ACT_SIGMOID, __VA_ARGS__)                                                   \
        BY_ACT_CASE(TR_ACT_TANH, __VA_ARGS__)                                                      \
    default: {                                                                                     \
        constexpr tr_act ACT = TR_ACT_NONE;                                                        \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    }

template <typename T, int V>
tr_status forward(tr_act act, const void *x, void *y, size_t n, cudaStream_t stream)
{
    const unsigned grid = tr_blocks(n, (size_t)THREADS * EACH * V, INT32_MAX);
    BY_ACT(act, return TR_LAUNCH(TR_KERNEL(activation<T, V, ACT>), grid, THREADS, 0, stream,
                                 static_cast<const T *>(x), static_cast<T *>(y), n))
}

template <typename T, int V>
tr_status backward(tr_act act, const void *dy, const void *saved, void *dx, size_t n,
                   cudaStream_t stream)
{
    const unsigned grid = tr_blocks(n, (size_t)THREADS * EACH * V, INT32_MAX);
    BY_ACT(act, return TR_LAUNCH(TR_KERNEL(activation_grad<T, V, ACT>), grid, THREADS, 0, stream,
                                 static_cast<const T *>(dy), static_cast<const T *>(saved),
                                 static_cast<T *>(dx), n))
}

} // namespace

tr_status tr_cuda_act_run(tr_dtype t, tr_act act, const void *x, void *y, size_t n,
                          cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(x, 16) && tr_is_aligned(y, 16);
    if (n == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        return aligned ? forward<T, V>(act, x, y, n, stream) : forward<T, 1>(act, x, y, n, stream);
    })
    return TR_OK;
}

tr_status tr_cuda_act_grad_run(tr_dtype t, tr_act act, const void *dy, const void *saved, void *dx,
                               size_t n, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(dy, 16) && tr_is_aligned(saved, 16) && tr_is_aligned(dx, 16);
    if (n == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        return aligned ? backward<T, V>(act, dy, saved, dx, n, stream)
                       : backward<T, 1>(act, dy, saved, dx, n, stream);
    })
    return TR_OK;
}
