/* What lies around a product of 8 bits that a library computes.
 *
 * Rows: a thread writes 16 bytes of a row, which it reads 16, 4 or 1 at a time, as channels allow;
 * windows overlap, so bytes are read several times, next to each other in time: from cache.
 * Results: a thread writes 16 bytes of y; per element 4 bytes of sums, which come from the
 * second-level cache where the caller keeps its pieces small. Weights: a block an output, once an
 * update. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/int8.h"

namespace
{

enum { THREADS = 256, BYTES = 16 };

/* Packs of rows, and what their indices are divided by; all below 2^31. */
struct cut {
    unsigned packs, first, bytes; /* of all rows; the first row; of a row, without what is behind */
    tr_divider by_packs, by_columns, by_rows, by_channels, by_kernel;
};

/* A place of the window that a row starts at. */
struct corner {
    int top, left;
    size_t image; /* offset of its first byte */
};

__device__ inline corner corner_of(const tr_cuda_window &w, const cut &c, unsigned row)
{
    const unsigned line = tr_quotient32(c.by_columns, row), image = tr_quotient32(c.by_rows, line);
    const int h = (int)(line - image * (unsigned)w.result[0]),
              v = (int)(row - line * (unsigned)w.result[1]);
    return {h * w.stride[0] - w.padding[0], v * w.stride[1] - w.padding[1],
            (size_t)image * (size_t)w.size[0] * (size_t)w.size[1] * w.channels};
}

/* Where channel 0 of a place lies; -1: in the padding. */
__device__ inline int64_t place_at(const tr_cuda_window &w, const cut &c, const corner &at,
                                   unsigned place)
{
    const int kh = (int)tr_quotient32(c.by_kernel, place), kw = (int)place - kh * w.kernel[1];
    const int h = at.top + kh * w.dilation[0], v = at.left + kw * w.dilation[1];
    if (h < 0 || h >= w.size[0] || v < 0 || v >= w.size[1]) return -1;
    return (int64_t)(at.image + ((size_t)h * (size_t)w.size[1] + (size_t)v) * (size_t)w.channels);
}

/* Channels are a multiple of V. */
// cost: read 1b write 9b min 10b flops 9 shape 200704x64 per place of x, 3x3
template <int V>
__global__ void window_rows(tr_cuda_window w, cut c, uint8_t flip, const uint8_t *x, uint8_t *to)
{
    using part = tr_pack<uint8_t, V>;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < c.packs;
         i += gridDim.x * blockDim.x) {
        const unsigned row = tr_quotient32(c.by_packs, i);
        unsigned k = (i - row * (unsigned)c.by_packs.by) * BYTES;
        unsigned place = tr_quotient32(c.by_channels, k), channel = k - place * w.channels;
        const corner at = corner_of(w, c, c.first + row);
        int64_t from = k < c.bytes ? place_at(w, c, at, place) : -1;
        tr_pack<uint8_t, BYTES> out;
        TR_UNROLL
        for (int j = 0; j < BYTES; j += V, k += V, channel += V) {
            if (channel == w.channels) {
                channel = 0;
                place++;
                from = k < c.bytes ? place_at(w, c, at, place) : -1;
            }
            part p = {};
            if (from >= 0) p = *reinterpret_cast<const part *>(x + from + channel);
            TR_UNROLL
            for (int b = 0; b < V; b++)
                out.v[j + b] = k < c.bytes ? (uint8_t)(p.v[b] ^ flip) : (uint8_t)0;
        }
        tr_put(to + (size_t)i * BYTES, out);
    }
}

// cost: read 1f write 1b min 1f+1b flops 3 shape 512x4608
__global__ void __launch_bounds__(THREADS)
    pack_steps(const float *weight, const float *scale, const float *bias, float x_scale,
               float y_scale, unsigned out, unsigned places, unsigned width, tr_divider by_channels,
               tr_cuda_int8_weights to)
{
    TR_SHARED(int, part, TR_WARP);
    const unsigned o = blockIdx.x, channels = (unsigned)by_channels.by;
    const bool is = o < out;
    int sum = 0;
    for (unsigned k = threadIdx.x; k < width; k += THREADS) {
        const unsigned place = tr_quotient32(by_channels, k), channel = k - place * channels;
        float q = 0;
        if (is && place < places) {
            q = rintf(weight[((size_t)o * channels + channel) * places + place] / scale[o]);
            q = q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q;
        }
        to.weights[(size_t)o * width + k] = (int8_t)q;
        sum += (int)q;
    }
    sum = tr_block_sum(sum, part);
    if (threadIdx.x != 0) return;
    to.sums[o] = sum;
    to.factor[o] = is ? x_scale * scale[o] / y_scale : 0.0f;
    to.shift[o] = is && bias ? bias[o] / y_scale : 0.0f;
}

template <typename Y> __device__ inline Y stored(float v)
{
    return tr_store<Y>(v);
}
template <> __device__ inline uint8_t stored<uint8_t>(float v)
{
    v = v > 0.0f ? v : 0.0f;
    return (uint8_t)(int)rintf(v < 255.0f ? v : 255.0f);
}
template <> __device__ inline int8_t stored<int8_t>(float v)
{
    v = v > -128.0f ? v : -128.0f;
    return (int8_t)(int)rintf(v < 127.0f ? v : 127.0f);
}

// cost: read 1f+1b write 1b min 1f+2b flops 8 shape 200704x256
template <typename Y, int V>
__global__ void store_steps(tr_cuda_int8_result r, unsigned packs, tr_divider by_width)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += gridDim.x * blockDim.x) {
        const unsigned row = tr_quotient32(by_width, i);
        const size_t o = (i - row * (unsigned)by_width.by) * (size_t)V,
                     at = (size_t)row * r.out + o;
        const tr_pack<int32_t, V> acc =
            *reinterpret_cast<const tr_pack<int32_t, V> *>(r.acc + (size_t)row * r.outputs + o);
        tr_pack<uint8_t, V> add = {};
        if (r.residual)
            add = *reinterpret_cast<const tr_pack<uint8_t, V> *>(
                static_cast<const uint8_t *>(r.residual) + at);
        tr_pack<Y, V> y;
        TR_UNROLL
        for (int k = 0; k < V; k++) {
            const int32_t more = r.flipped ? r.w.sums[o + k] * 128 : 0;
            float v = fmaf((float)(acc.v[k] + more), r.w.factor[o + k], r.w.shift[o + k]);
            if (r.residual)
                v = fmaf(r.residual_signed ? (float)(int8_t)add.v[k] : (float)add.v[k],
                         r.residual_scale, v);
            if (r.relu) v = v > 0.0f ? v : 0.0f;
            y.v[k] = stored<Y>(v);
        }
        tr_put(static_cast<Y *>(r.y) + at, y);
    }
}

// cost: read 1b write 1b min 2b flops 4 shape 200704x256
template <typename X, typename Y, int V>
__global__ void requantize(const X *x, Y *y, float factor, unsigned packs, size_t width,
                           tr_divider by_part)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += gridDim.x * blockDim.x) {
        const unsigned row = tr_quotient32(by_part, i);
        const size_t column = (i - row * (unsigned)by_part.by) * (size_t)V;
        const tr_pack<X, V> in = *reinterpret_cast<const tr_pack<X, V> *>(x + (size_t)i * V);
        tr_pack<Y, V> out;
        TR_UNROLL
        for (int k = 0; k < V; k++) out.v[k] = stored<Y>((float)in.v[k] * factor);
        tr_put(y + (size_t)row * width + column, out);
    }
}

/* A thread a sum: its weights come from cache, its row of x is its neighbours' too. */
// cost: read 72b write 1f min 13b flops 288 shape 50176x64 per sum of 576
__global__ void dots(const uint8_t *x, const int8_t *weights, int32_t *acc, unsigned count,
                     unsigned width, tr_divider by_outputs)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * blockDim.x) {
        const unsigned row = tr_quotient32(by_outputs, i), o = i - row * (unsigned)by_outputs.by;
        const int4 *a = reinterpret_cast<const int4 *>(x + (size_t)row * width),
                   *b = reinterpret_cast<const int4 *>(weights + (size_t)o * width);
        int sum = 0;
        for (unsigned k = 0; k < width / BYTES; k++) {
            const int4 u = a[k], v = b[k];
            sum = __dp4a(u.x, v.x, sum);
            sum = __dp4a(u.y, v.y, sum);
            sum = __dp4a(u.z, v.z, sum);
            sum = __dp4a(u.w, v.w, sum);
        }
        acc[i] = sum;
    }
}

template <int V>
tr_status rows_of(cudaStream_t stream, const tr_cuda_window *w, const cut &c, bool flip,
                  const void *x, void *to)
{
    return TR_LAUNCH(window_rows<V>, tr_rounds(c.packs, THREADS), THREADS, 0, stream, *w, c,
                     flip ? (uint8_t)0x80 : (uint8_t)0, static_cast<const uint8_t *>(x),
                     static_cast<uint8_t *>(to));
}

template <typename X, typename Y>
tr_status requantized(cudaStream_t stream, float factor, const void *x, void *y, size_t rows,
                      size_t part, size_t width)
{
    const X *from = static_cast<const X *>(x);
    Y *to = static_cast<Y *>(y);
    const bool wide = part % BYTES == 0 && width % BYTES == 0 && tr_is_aligned(x, BYTES) &&
                      tr_is_aligned(y, BYTES);
    const size_t packs = rows * part / (wide ? BYTES : 1);
    const tr_divider by_part = tr_divide_by(part / (wide ? BYTES : 1));
    if (wide)
        return TR_LAUNCH(TR_KERNEL(requantize<X, Y, BYTES>), tr_rounds(packs, THREADS), THREADS, 0,
                         stream, from, to, factor, (unsigned)packs, width, by_part);
    return TR_LAUNCH(TR_KERNEL(requantize<X, Y, 1>), tr_rounds(packs, THREADS), THREADS, 0, stream,
                     from, to, factor, (unsigned)packs, width, by_part);
}

template <typename Y, int V>
tr_status store(cudaStream_t stream, const tr_cuda_int8_result *r, size_t rows)
{
    const size_t packs = rows * (r->out / V);
    return TR_LAUNCH(TR_KERNEL(store_steps<Y, V>), tr_rounds(packs, THREADS), THREADS, 0, stream,
                     *r, (unsigned)packs, tr_divide_by(r->out / V));
}

template <typename Y>
tr_status store_by_width(cudaStream_t stream, const tr_cuda_int8_result *r, size_t rows)
{
    constexpr int V = BYTES / sizeof(Y);
    return r->out % V == 0 ? store<Y, V>(stream, r, rows) : store<Y, 1>(stream, r, rows);
}

} // namespace

tr_status tr_cuda_window_rows(cudaStream_t stream, const tr_cuda_window *w, bool flip,
                              const void *x, void *to, size_t first, size_t rows, size_t width)
{
    const size_t packs = rows * (width / BYTES);
    if (packs == 0) return TR_OK;
    const cut c = {(unsigned)packs,
                   (unsigned)first,
                   (unsigned)w->kernel[0] * (unsigned)w->kernel[1] * w->channels,
                   tr_divide_by(width / BYTES),
                   tr_divide_by((uint64_t)w->result[1]),
                   tr_divide_by((uint64_t)w->result[0]),
                   tr_divide_by(w->channels),
                   tr_divide_by((uint64_t)w->kernel[1])};
    if (w->channels % 16 == 0) return rows_of<16>(stream, w, c, flip, x, to);
    if (w->channels % 4 == 0) return rows_of<4>(stream, w, c, flip, x, to);
    return rows_of<1>(stream, w, c, flip, x, to);
}

tr_status tr_cuda_int8_pack(cudaStream_t stream, const float *weight, const float *scale,
                            const float *bias, float x_scale, float y_scale, size_t out,
                            size_t channels, size_t places, size_t outputs, size_t width,
                            const tr_cuda_int8_weights *to)
{
    if (outputs == 0) return TR_OK;
    return TR_LAUNCH(pack_steps, (unsigned)outputs, THREADS, 0, stream, weight, scale, bias,
                     x_scale, y_scale, (unsigned)out, (unsigned)places, (unsigned)width,
                     tr_divide_by(channels), *to);
}

tr_status tr_cuda_int8_store(cudaStream_t stream, const tr_cuda_int8_result *r, size_t rows)
{
    if (rows * r->out == 0) return TR_OK;
    if (r->type == TR_U8) return store_by_width<uint8_t>(stream, r, rows);
    if (r->type == TR_I8) return store_by_width<int8_t>(stream, r, rows);
    TR_BY_TYPE(r->type, T, return store_by_width<T>(stream, r, rows));
    return TR_OK;
}

tr_status tr_cuda_requantize(cudaStream_t stream, bool x_signed, bool y_signed, float factor,
                             const void *x, void *y, size_t rows, size_t part, size_t width)
{
    if (rows * part == 0) return TR_OK;
    if (x_signed && y_signed)
        return requantized<int8_t, int8_t>(stream, factor, x, y, rows, part, width);
    if (x_signed) return requantized<int8_t, uint8_t>(stream, factor, x, y, rows, part, width);
    if (y_signed) return requantized<uint8_t, int8_t>(stream, factor, x, y, rows, part, width);
    return requantized<uint8_t, uint8_t>(stream, factor, x, y, rows, part, width);
}

tr_status tr_cuda_int8_dots(cudaStream_t stream, const void *x, const int8_t *weights, int32_t *acc,
                            size_t rows, size_t outputs, size_t width)
{
    const size_t count = rows * outputs;
    if (count == 0) return TR_OK;
    return TR_LAUNCH(dots, tr_rounds(count, THREADS), THREADS, 0, stream,
                     static_cast<const uint8_t *>(x), weights, acc, (unsigned)count,
                     (unsigned)width, tr_divide_by(outputs));
}
