/* Products with a factor for each channel of an image, and the gradient of these factors. Equal
 * shapes are one sample of one place. Sums as in global_pool.cu: a block owns a strip of channels
 * of one image, DEPTH layers of threads walk every DEPTH-th place and are added in order in shared
 * memory, in float32.
 *
 * Bytes: every operand once: the minimum (factors are read again for each place, out of the
 * cache). */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/elementwise.h"

namespace
{

enum { THREADS = 256, STRIP = 16, DEPTH = THREADS / STRIP };

// cost: read 2x write 1x min 3x flops 1 shape 8192x4096
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    mul(const tr_pack<T, V> *x, const tr_pack<T, V> *factor, tr_pack<T, V> *y, size_t packs,
        tr_divider image, tr_divider width)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= packs) return;
    const size_t sample = tr_quotient(image, i), row = tr_quotient(width, i);
    tr_pack<T, V> p = x[i];
    const tr_pack<T, V> f = factor[sample * width.by + (i - row * width.by)];
    TR_UNROLL
    for (int j = 0; j < V; j++) p.v[j] = tr_store<T>(tr_load<T>(p.v[j]) * tr_load<T>(f.v[j]));
    tr_put(y[i].v, p);
}

// cost: read 2x write 0.02x min 2.02x flops 2 shape 256x49x2048 per value of x
template <typename T, int V>
__global__ void __launch_bounds__(THREADS, 5)
    mul_sums(const tr_pack<T, V> *dy, const tr_pack<T, V> *x, T *sums, size_t places,
             unsigned width, unsigned strips)
{
    TR_SHARED(float, held, STRIP *DEPTH *V);
    const unsigned column = threadIdx.x % STRIP, layer = threadIdx.x / STRIP;
    const unsigned pack = blockIdx.x % strips * STRIP + column;
    const size_t image = blockIdx.x / strips;
    float sum[V];
    for (int k = 0; k < V; k++) sum[k] = 0;
    if (pack < width)
        for (size_t i = layer; i < places; i += DEPTH) {
            const tr_pack<T, V> d = dy[(image * places + i) * width + pack];
            const tr_pack<T, V> v = x[(image * places + i) * width + pack];
            for (int k = 0; k < V; k++) sum[k] += tr_load<T>(d.v[k]) * tr_load<T>(v.v[k]);
        }
    for (int k = 0; k < V; k++) held[(layer * V + k) * STRIP + column] = sum[k];
    __syncthreads();
    if (layer != 0 || pack >= width) return;
    tr_pack<T, V> out;
    TR_UNROLL
    for (int k = 0; k < V; k++) {
        float all = 0;
        for (int l = 0; l < DEPTH; l++) all += held[(l * V + k) * STRIP + column];
        out.v[k] = tr_store<T>(all);
    }
    tr_put(sums + (image * width + pack) * V, out);
}

template <typename T, int V>
tr_status run_mul(const void *x, const void *factor, void *y, size_t samples, size_t places,
                  size_t channels, cudaStream_t stream)
{
    const size_t width = channels / V, packs = samples * places * width;
    return TR_LAUNCH(TR_KERNEL(mul<T, V>), tr_blocks(packs, THREADS, INT32_MAX), THREADS, 0, stream,
                     static_cast<const tr_pack<T, V> *>(x),
                     static_cast<const tr_pack<T, V> *>(factor), static_cast<tr_pack<T, V> *>(y),
                     packs, tr_divide_by(places * width), tr_divide_by(width));
}

template <typename T, int V>
tr_status run_sums(const void *dy, const void *x, void *sums, size_t samples, size_t places,
                   size_t channels, cudaStream_t stream)
{
    const unsigned width = (unsigned)(channels / V), strips = (width + STRIP - 1) / STRIP;
    return TR_LAUNCH(TR_KERNEL(mul_sums<T, V>), (unsigned)(samples * strips), THREADS, 0, stream,
                     static_cast<const tr_pack<T, V> *>(dy), static_cast<const tr_pack<T, V> *>(x),
                     static_cast<T *>(sums), places, width, strips);
}

} // namespace

tr_status tr_cuda_mul_run(tr_dtype t, const void *x, const void *factor, void *y, size_t samples,
                          size_t places, size_t channels, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(x, 16) && tr_is_aligned(factor, 16) && tr_is_aligned(y, 16);
    if (samples * places * channels == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = 16 / sizeof(T);
        return aligned && channels % V == 0
                   ? run_mul<T, V>(x, factor, y, samples, places, channels, stream)
                   : run_mul<T, 1>(x, factor, y, samples, places, channels, stream);
    })
    return TR_OK;
}

tr_status tr_cuda_mul_sums_run(tr_dtype t, const void *dy, const void *x, void *sums,
                               size_t samples, size_t places, size_t channels, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(dy, 16) && tr_is_aligned(x, 16) && tr_is_aligned(sums, 16);
    if (samples * places * channels == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = 16 / sizeof(T);
        return aligned && channels % V == 0
                   ? run_sums<T, V>(dy, x, sums, samples, places, channels, stream)
                   : run_sums<T, 1>(dy, x, sums, samples, places, channels, stream);
    })
    return TR_OK;
}
