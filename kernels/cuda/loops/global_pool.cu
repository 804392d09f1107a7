/* Global average pooling. One window may be the whole of a large image and the batch small, so a
 * block, not a thread, owns a strip of channels of one image: DEPTH layers of threads walk every
 * DEPTH-th place and are added in order in shared memory. x is read once and y written once, and
 * the other way round in the gradient, which is plain elementwise work. Sums in float32, in an
 * order that the shape fixes. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/pool.h"

enum { BLOCK = 256, STRIP = 16, DEPTH = BLOCK / STRIP };

// cost: read 1x write 0.02x min 1.02x flops 1 shape 256x49x2048 per value of x
template <typename T, int V>
__global__ void global_kernel(const tr_pack<T, V> *x, T *y, size_t places, unsigned width,
                              unsigned strips)
{
    TR_SHARED(float, held, STRIP *DEPTH *V);
    const unsigned column = threadIdx.x % STRIP, layer = threadIdx.x / STRIP;
    const unsigned pack = blockIdx.x % strips * STRIP + column;
    const size_t image = blockIdx.x / strips;
    float sum[V];
    for (int k = 0; k < V; k++) sum[k] = 0;
    if (pack < width)
        for (size_t i = layer; i < places; i += DEPTH) {
            const tr_pack<T, V> v = x[(image * places + i) * width + pack];
            for (int k = 0; k < V; k++) sum[k] += tr_load<T>(v.v[k]);
        }
    for (int k = 0; k < V; k++) held[(layer * V + k) * STRIP + column] = sum[k];
    __syncthreads();
    if (layer != 0 || pack >= width) return;
    const float scale = 1.0f / (float)places;
    tr_pack<T, V> mean;
    TR_UNROLL
    for (int k = 0; k < V; k++) {
        float all = 0;
        for (int l = 0; l < DEPTH; l++) all += held[(l * V + k) * STRIP + column];
        mean.v[k] = tr_store<T>(all * scale);
    }
    tr_put(y + (image * width + pack) * V, mean);
}

// cost: read 0.02x write 1x min 1.02x flops 1 shape 256x49x2048 per value of dx
template <typename T, int V>
__global__ void global_grad_kernel(const tr_pack<T, V> *dy, tr_pack<T, V> *dx, unsigned places,
                                   unsigned width, unsigned packs)
{
    const float scale = 1.0f / (float)places;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += gridDim.x * blockDim.x) {
        tr_pack<T, V> v = dy[(size_t)(i / width / places) * width + i % width];
        for (int k = 0; k < V; k++) v.v[k] = tr_store<T>(tr_load<T>(v.v[k]) * scale);
        tr_put(dx[i].v, v);
    }
}

template <typename T, int V>
static tr_status global_pool(cudaStream_t stream, const void *x, void *y, size_t batch,
                             size_t places, size_t channels)
{
    const unsigned width = (unsigned)(channels / V), strips = (width + STRIP - 1) / STRIP;
    return TR_LAUNCH(TR_KERNEL(global_kernel<T, V>), (unsigned)(batch * strips), BLOCK, 0, stream,
                     static_cast<const tr_pack<T, V> *>(x), static_cast<T *>(y), places, width,
                     strips);
}

template <typename T, int V>
static tr_status global_pool_grad(cudaStream_t stream, const void *dy, void *dx, size_t batch,
                                  size_t places, size_t channels)
{
    const size_t packs = batch * places * channels / V;
    return TR_LAUNCH(TR_KERNEL(global_grad_kernel<T, V>), tr_rounds(packs, BLOCK), BLOCK, 0, stream,
                     static_cast<const tr_pack<T, V> *>(dy), static_cast<tr_pack<T, V> *>(dx),
                     (unsigned)places, (unsigned)(channels / V), (unsigned)packs);
}

tr_status tr_cuda_global_pool(cudaStream_t stream, tr_dtype dtype, const void *x, void *y,
                              size_t batch, size_t places, size_t channels)
{
    if (batch * places * channels == 0) return TR_OK;
    TR_BY_TYPE(dtype, T, {
        constexpr int V = 16 / sizeof(T);
        if (channels % V == 0) return global_pool<T, V>(stream, x, y, batch, places, channels);
        return global_pool<T, 1>(stream, x, y, batch, places, channels);
    });
    return TR_OK;
}

tr_status tr_cuda_global_pool_grad(cudaStream_t stream, tr_dtype dtype, const void *dy, void *dx,
                                   size_t batch, size_t places, size_t channels)
{
    if (batch * places * channels == 0) return TR_OK;
    TR_BY_TYPE(dtype, T, {
        constexpr int V = 16 / sizeof(T);
        if (channels % V == 0)
            return global_pool_grad<T, V>(stream, dy, dx, batch, places, channels);
        return global_pool_grad<T, 1>(stream, dy, dx, batch, places, channels);
    });
    return TR_OK;
}
