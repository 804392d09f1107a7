/* Sum of 1 to 8 arrays with the activation behind it.
 *
 * Bytes: every operand once: the minimum. Sums run in operand order in float32 and round once. Two
 * operands (residuals) have a kernel of their own with both loads in flight. */
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

enum { THREADS = 256 };

template <typename T> struct operands {
    const T *in[TR_MAX_IN];
    T *out;
    int count;
};

/* COUNT 0: a.count. */
// cost: read 2x write 1x min 3x flops 2 shape 8192x4096
template <typename T, int V, int COUNT>
__global__ void __launch_bounds__(THREADS) add(operands<T> a, tr_act act, size_t n)
{
    using pack = tr_pack<T, V>;
    const int count = COUNT > 0 ? COUNT : a.count;
    const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (at + V <= n) {
        float sum[V] = {};
        pack p;
        TR_UNROLL
        for (int k = 0; k < TR_MAX_IN; k++) {
            if (k >= count) break;
            p = *reinterpret_cast<const pack *>(a.in[k] + at);
            TR_UNROLL
            for (int j = 0; j < V; j++) sum[j] += tr_load<T>(p.v[j]);
        }
        TR_UNROLL
        for (int j = 0; j < V; j++) p.v[j] = tr_store<T>(tr_activate(act, sum[j]));
        tr_put(a.out + at, p);
        return;
    }
    for (size_t i = at; i < n; i++) {
        float sum = 0.0f;
        TR_UNROLL
        for (int k = 0; k < TR_MAX_IN; k++) {
            if (k >= count) break;
            sum += tr_load<T>(a.in[k][i]);
        }
        a.out[i] = tr_store<T>(tr_activate(act, sum));
    }
}

template <typename T, int V>
tr_status launch(tr_act act, const operands<T> &a, size_t n, cudaStream_t stream)
{
    const unsigned grid = tr_blocks(n, (size_t)THREADS * V, INT32_MAX);
    if (a.count == 2)
        return TR_LAUNCH(TR_KERNEL(add<T, V, 2>), grid, THREADS, 0, stream, a, act, n);
    return TR_LAUNCH(TR_KERNEL(add<T, V, 0>), grid, THREADS, 0, stream, a, act, n);
}

} // namespace

tr_status tr_cuda_add_run(tr_dtype t, tr_act act, int count, void *const *in, void *y, size_t n,
                          cudaStream_t stream)
{
    bool aligned = tr_is_aligned(y, 16);
    for (int k = 0; k < count; k++) aligned = aligned && tr_is_aligned(in[k], 16);
    if (n == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        operands<T> a = {};
        for (int k = 0; k < count; k++) a.in[k] = static_cast<const T *>(in[k]);
        a.out = static_cast<T *>(y);
        a.count = count;
        return aligned ? launch<T, tr_wide<T>::V>(act, a, n, stream)
                       : launch<T, 1>(act, a, n, stream);
    })
    return TR_OK;
}
