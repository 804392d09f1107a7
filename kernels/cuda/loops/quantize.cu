/* Weights rounded to 8 bits: a block a row, which it reads for the largest magnitude and once more
 * to round. Activations to 8 bits and back: 16 a thread at a time, so that the side of 8 bits moves
 * 16 bytes at once, each byte once. The rounding is kernels/elementwise.h's. */
#include "kernels/cuda/loops/quantize.h"
#include "kernels/cuda/device.cuh"
#include "kernels/elementwise.h"

namespace
{

enum { THREADS = 256 };

// cost: read 2f write 1f min 2f flops 4 shape 512x4608
template <int V>
__global__ void __launch_bounds__(THREADS) quantize_rows(const float *x, float *y, size_t D)
{
    using pack = tr_pack<float, V>;
    TR_SHARED(float, part, TR_WARP);
    const float *from = x + blockIdx.x * D;
    float *to = y + blockIdx.x * D;
    float most = 0.0f;
    for (size_t i = (size_t)threadIdx.x * V; i < D; i += (size_t)THREADS * V) {
        const pack p = *reinterpret_cast<const pack *>(from + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) most = fabsf(p.v[j]) > most ? fabsf(p.v[j]) : most;
    }
    most = tr_block_max(most, part);
    const float scale = most > 1e-30f ? most / 127.0f : 1.0f;
    for (size_t i = (size_t)threadIdx.x * V; i < D; i += (size_t)THREADS * V) {
        pack p = *reinterpret_cast<const pack *>(from + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float q = p.v[j] / scale;
            p.v[j] = TR_NEAREST(TR_CLAMP(q, -127.0f, 127.0f)) * scale;
        }
        tr_put(to + i, p);
    }
}

// cost: read 1x write 1b min 1x+1b flops 5 shape 802816x64
template <typename T, int V>
__global__ void to_steps(const T *x, uint8_t *y, float inverse, float least, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x, packs = n / V;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        const tr_pack<T, V> in = reinterpret_cast<const tr_pack<T, V> *>(x)[i];
        tr_pack<uint8_t, V> out;
        TR_UNROLL
        for (int k = 0; k < V; k++) {
            float v = tr_load<T>(in.v[k]) * inverse;
            v = v > least ? v : least; /* NaN too */
            v = v < least + 255 ? v : least + 255;
            out.v[k] = (uint8_t)(int32_t)TR_NEAREST(v);
        }
        tr_put(y + i * V, out);
    }
}

// cost: read 1b write 1x min 1b+1x flops 2 shape 802816x64
template <typename S, typename T, int V>
__global__ void from_steps(const S *x, T *y, float scale, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x, packs = n / V;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        const tr_pack<S, V> in = reinterpret_cast<const tr_pack<S, V> *>(x)[i];
        tr_pack<T, V> out;
        TR_UNROLL
        for (int k = 0; k < V; k++) out.v[k] = tr_store<T>((float)in.v[k] * scale);
        tr_put(y + i * V, out);
    }
}

enum { STEPS = 16 }; /* of 8 bits: 16 bytes */

/* What whole packs leave goes one by one; all of it where an address does not fit packs. */
size_t in_packs(const void *x, size_t x_size, const void *y, size_t y_size, size_t n)
{
    return tr_is_aligned(x, STEPS * x_size) && tr_is_aligned(y, STEPS * y_size) ? n / STEPS * STEPS
                                                                                : 0;
}

template <typename T>
tr_status quantize(cudaStream_t stream, float inverse, float least, const T *x, uint8_t *y,
                   size_t n)
{
    tr_status st = TR_OK;
    const size_t most = in_packs(x, sizeof *x, y, 1, n), rest = n - most;
    if (most > 0)
        TR_TRY(TR_LAUNCH(TR_KERNEL(to_steps<T, STEPS>), tr_rounds(most, THREADS * STEPS), THREADS,
                         0, stream, x, y, inverse, least, most));
    if (rest > 0)
        TR_TRY(TR_LAUNCH(TR_KERNEL(to_steps<T, 1>), tr_rounds(rest, THREADS), THREADS, 0, stream,
                         x + most, y + most, inverse, least, rest));
out:
    return st;
}

template <typename S, typename T>
tr_status dequantize(cudaStream_t stream, float scale, const S *x, T *y, size_t n)
{
    tr_status st = TR_OK;
    const size_t most = in_packs(x, 1, y, sizeof *y, n), rest = n - most;
    if (most > 0)
        TR_TRY(TR_LAUNCH(TR_KERNEL(from_steps<S, T, STEPS>), tr_rounds(most, THREADS * STEPS),
                         THREADS, 0, stream, x, y, scale, most));
    if (rest > 0)
        TR_TRY(TR_LAUNCH(TR_KERNEL(from_steps<S, T, 1>), tr_rounds(rest, THREADS), THREADS, 0,
                         stream, x + most, y + most, scale, rest));
out:
    return st;
}

} // namespace

tr_status tr_cuda_quantize_rows(cudaStream_t stream, const float *x, float *y, size_t rows,
                                size_t D)
{
    enum { V = 4 };
    if (rows == 0 || D == 0) return TR_OK;
    if (D % V == 0 && tr_is_aligned(x, 16) && tr_is_aligned(y, 16))
        return TR_LAUNCH(TR_KERNEL(quantize_rows<V>), (unsigned)rows, THREADS, 0, stream, x, y, D);
    return TR_LAUNCH(TR_KERNEL(quantize_rows<1>), (unsigned)rows, THREADS, 0, stream, x, y, D);
}

tr_status tr_cuda_to_steps(cudaStream_t stream, tr_dtype dtype, bool is_signed, float inverse,
                           const void *x, void *y, size_t n)
{
    TR_BY_TYPE(dtype, T,
               return quantize(stream, inverse, is_signed ? -128.0f : 0.0f,
                               static_cast<const T *>(x), static_cast<uint8_t *>(y), n));
    return TR_OK;
}

tr_status tr_cuda_from_steps(cudaStream_t stream, tr_dtype dtype, bool is_signed, float scale,
                             const void *x, void *y, size_t n)
{
    TR_BY_TYPE(dtype, T, {
        T *to = static_cast<T *>(y);
        if (is_signed) return dequantize(stream, scale, static_cast<const int8_t *>(x), to, n);
        return dequantize(stream, scale, static_cast<const uint8_t *>(x), to, n);
    });
    return TR_OK;
}
