/* Reads z and the residual once and writes y once, 16 bytes of y a thread at a time: the bytes of y
 * two or three times, against nothing where cuDNN fuses it. The bias stays in cache. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/epilogue.h"

enum { BLOCK = 256 };

// cost: read 1x write 1x min 2x flops 2 shape 802816x64
template <typename F, typename T, int V>
__global__ void epilogue_kernel(tr_act act, const F *z, const float *bias, const T *residual, T *y,
                                unsigned packs, unsigned width)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += gridDim.x * blockDim.x) {
        const tr_pack<F, V> in = reinterpret_cast<const tr_pack<F, V> *>(z)[i];
        float v[V];
        for (int k = 0; k < V; k++) v[k] = tr_load<F>(in.v[k]);
        if (bias) {
            const float *b = bias + i % width * V;
            for (int k = 0; k < V; k++) v[k] += b[k];
        }
        if (residual) {
            const tr_pack<T, V> r = reinterpret_cast<const tr_pack<T, V> *>(residual)[i];
            for (int k = 0; k < V; k++) v[k] += tr_load<T>(r.v[k]);
        }
        tr_pack<T, V> out;
        for (int k = 0; k < V; k++) out.v[k] = tr_store<T>(tr_activate(act, v[k]));
        tr_put(y + (size_t)i * V, out);
    }
}

template <typename F, typename T, int V>
static tr_status epilogue(cudaStream_t stream, tr_act act, const void *z, const float *bias,
                          const void *residual, void *y, size_t rows, size_t channels)
{
    const size_t packs = rows * channels / V;
    return TR_LAUNCH(TR_KERNEL(epilogue_kernel<F, T, V>), tr_rounds(packs, BLOCK), BLOCK, 0, stream,
                     act, static_cast<const F *>(z), bias, static_cast<const T *>(residual),
                     static_cast<T *>(y), (unsigned)packs, (unsigned)(channels / V));
}

template <typename F, typename T>
static tr_status by_width(cudaStream_t stream, tr_act act, const void *z, const float *bias,
                          const void *residual, void *y, size_t rows, size_t channels)
{
    constexpr int V = 16 / sizeof(T);
    if (channels % V == 0)
        return epilogue<F, T, V>(stream, act, z, bias, residual, y, rows, channels);
    return epilogue<F, T, 1>(stream, act, z, bias, residual, y, rows, channels);
}

tr_status tr_cuda_epilogue(cudaStream_t stream, tr_act act, tr_dtype from, tr_dtype to,
                           const void *z, const float *bias, const void *residual, void *y,
                           size_t rows, size_t channels)
{
    if (rows * channels == 0) return TR_OK;
    TR_BY_TYPE(to, T, {
        if (from == to) return by_width<T, T>(stream, act, z, bias, residual, y, rows, channels);
        return by_width<float, T>(stream, act, z, bias, residual, y, rows, channels);
    });
    return TR_OK;
}
