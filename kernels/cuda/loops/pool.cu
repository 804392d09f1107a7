/* Pooling in the gathering form: a thread owns 16 bytes of channels of one place that is written,
 * and walks the places that it depends on: those in the window, or, for a gradient, the windows
 * that cover the place. So there are no atomics, gradients of overlapping windows are summed in
 * float32 in a fixed order and rounded once, and everything that is written is written once.
 *
 * Bytes: x and y once each (and 1 or 4 bytes an index). Overlapping windows read a place several
 * times, next to each other in time: from cache. Neighbouring threads lie side by side in the
 * channels, so all accesses are coalesced. Where channels fill no 16 bytes, a thread owns one. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/pool.h"

enum { BLOCK = 256 };

/* Values of 8 bits, whose largest is one of them. */
template <> __device__ inline float tr_load<int8_t>(int8_t v)
{
    return (float)v;
}
template <> __device__ inline float tr_load<uint8_t>(uint8_t v)
{
    return (float)v;
}
template <> __device__ inline int8_t tr_store<int8_t>(float v)
{
    return (int8_t)v;
}
template <> __device__ inline uint8_t tr_store<uint8_t>(float v)
{
    return (uint8_t)v;
}

/* Part of an axis: [begin, end). */
struct span {
    int begin, end;
};

/* Positions of window `o` that lie in the image. */
__device__ inline span inside(const tr_cuda_pool &p, int axis, int o)
{
    const int first = o * p.stride[axis] - p.padding[axis], room = p.size[axis] - first;
    return {first < 0 ? -first : 0, room < p.kernel[axis] ? room : p.kernel[axis]};
}

/* Windows that cover place `i`. */
__device__ inline span covering(const tr_cuda_pool &p, const tr_divider *stride, int axis, int i)
{
    const int at = i + p.padding[axis], from = at - p.kernel[axis] + 1;
    const int last = (int)tr_quotient32(stride[axis], (unsigned)at) + 1;
    return {from > 0 ? (int)tr_quotient32(stride[axis], (unsigned)(from + p.stride[axis] - 1)) : 0,
            last < p.result[axis] ? last : p.result[axis]};
}

/* Positions of window `o` that count in an average; behind the padding at the end there are
 * none. */
__device__ inline int counted(const tr_cuda_pool &p, int axis, int o)
{
    const int first = o * p.stride[axis] - p.padding[axis];
    const int end = p.size[axis] + (p.include_pad ? p.end[axis] : 0) - first;
    return (end < p.kernel[axis] ? end : p.kernel[axis]) -
           (p.include_pad || first > 0 ? 0 : -first);
}

__device__ inline float share(const tr_cuda_pool &p, int oh, int ow)
{
    return 1.0f / (float)(counted(p, 0, oh) * counted(p, 1, ow));
}

/* Where pack i of images lies. */
struct place {
    int row, column;
    unsigned pack; /* of its channels */
    size_t image;
};

/* Images in packs, and the windows' strides, as a launch divides by them: with the device's own
 * division the gradient of 3 x 3 windows took 2.7 times its bytes' time on an H200. */
struct shape {
    unsigned packs, width; /* all packs; those of a place's channels */
    tr_divider by_width, by_columns, by_rows, stride[2];
};

__device__ inline place locate(unsigned i, const shape &s)
{
    const unsigned at = tr_quotient32(s.by_width, i);
    const unsigned line = tr_quotient32(s.by_columns, at);
    const unsigned image = tr_quotient32(s.by_rows, line);
    return {(int)(line - image * (unsigned)s.by_rows.by),
            (int)(at - line * (unsigned)s.by_columns.by), i - at * s.width, image};
}

/* Pack `pack` of place (row, column) of an image. */
__device__ inline size_t address(size_t image, const int size[2], int row, int column,
                                 unsigned width, unsigned pack)
{
    return ((image * (size_t)size[0] + (size_t)row) * (size_t)size[1] + (size_t)column) * width +
           pack;
}

// cost: read 4x write 1x+1b min 5x+1b flops 18 shape 256x56x56x64 per y, 3x3 stride 2
template <typename T, typename I, int V>
__global__ void max_kernel(tr_cuda_pool p, const tr_pack<T, V> *x, tr_pack<T, V> *y,
                           tr_pack<I, V> *indices, shape s)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.packs;
         i += gridDim.x * blockDim.x) {
        const place at = locate(i, s);
        const span h = inside(p, 0, at.row), w = inside(p, 1, at.column);
        const int top = at.row * p.stride[0] - p.padding[0],
                  left = at.column * p.stride[1] - p.padding[1];
        float best[V];
        int where[V];
        for (int k = 0; k < V; k++) {
            best[k] = -INFINITY;
            where[k] = h.begin * p.kernel[1] + w.begin;
        }
        for (int kh = h.begin; kh < h.end; kh++)
            for (int kw = w.begin; kw < w.end; kw++) {
                const tr_pack<T, V> v =
                    x[address(at.image, p.size, top + kh, left + kw, s.width, at.pack)];
                for (int k = 0; k < V; k++) {
                    const float f = tr_load<T>(v.v[k]);
                    const bool more = f > best[k] || f != f;
                    best[k] = more ? f : best[k];
                    where[k] = more ? kh * p.kernel[1] + kw : where[k];
                }
            }
        tr_pack<T, V> value;
        tr_pack<I, V> index;
        for (int k = 0; k < V; k++) {
            value.v[k] = tr_store<T>(best[k]);
            index.v[k] = (I)where[k];
        }
        tr_put(reinterpret_cast<T *>(y + i), value);
        if (indices) tr_put(reinterpret_cast<I *>(indices + i), index);
    }
}

// cost: read 0.25x+0.25b write 1x min 1.25x+0.25b flops 9 shape 256x112x112x64 per dx, 3x3 stride 2
template <typename T, typename I, int V>
__global__ void max_grad_kernel(tr_cuda_pool p, const tr_pack<T, V> *dy,
                                const tr_pack<I, V> *indices, tr_pack<T, V> *dx, shape s)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.packs;
         i += gridDim.x * blockDim.x) {
        const place at = locate(i, s);
        const span h = covering(p, s.stride, 0, at.row), w = covering(p, s.stride, 1, at.column);
        float sum[V];
        for (int k = 0; k < V; k++) sum[k] = 0;
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const int kh = at.row + p.padding[0] - oh * p.stride[0];
                const int here = kh * p.kernel[1] + at.column + p.padding[1] - ow * p.stride[1];
                const size_t from = address(at.image, p.result, oh, ow, s.width, at.pack);
                const tr_pack<I, V> index = indices[from];
                const tr_pack<T, V> g = dy[from];
                for (int k = 0; k < V; k++)
                    if ((int)index.v[k] == here) sum[k] += tr_load<T>(g.v[k]);
            }
        tr_pack<T, V> out;
        for (int k = 0; k < V; k++) out.v[k] = tr_store<T>(sum[k]);
        tr_put(reinterpret_cast<T *>(dx + i), out);
    }
}

// cost: read 4x write 1x min 5x flops 5 shape 256x28x28x256 per y, 2x2 stride 2
template <typename T, int V>
__global__ void avg_kernel(tr_cuda_pool p, const tr_pack<T, V> *x, tr_pack<T, V> *y, shape s)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.packs;
         i += gridDim.x * blockDim.x) {
        const place at = locate(i, s);
        const span h = inside(p, 0, at.row), w = inside(p, 1, at.column);
        const int top = at.row * p.stride[0] - p.padding[0],
                  left = at.column * p.stride[1] - p.padding[1];
        float sum[V];
        for (int k = 0; k < V; k++) sum[k] = 0;
        for (int kh = h.begin; kh < h.end; kh++)
            for (int kw = w.begin; kw < w.end; kw++) {
                const tr_pack<T, V> v =
                    x[address(at.image, p.size, top + kh, left + kw, s.width, at.pack)];
                for (int k = 0; k < V; k++) sum[k] += tr_load<T>(v.v[k]);
            }
        const float scale = share(p, at.row, at.column);
        tr_pack<T, V> out;
        for (int k = 0; k < V; k++) out.v[k] = tr_store<T>(sum[k] * scale);
        tr_put(reinterpret_cast<T *>(y + i), out);
    }
}

// cost: read 4b write 1b min 5b flops 6 shape 256x28x28x256 per y, 2x2 stride 2
template <typename T, int V>
__global__ void avg_steps(tr_cuda_pool p, float factor, float least, const tr_pack<T, V> *x,
                          tr_pack<uint8_t, V> *y, shape s)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.packs;
         i += gridDim.x * blockDim.x) {
        const place at = locate(i, s);
        const span h = inside(p, 0, at.row), w = inside(p, 1, at.column);
        const int top = at.row * p.stride[0] - p.padding[0],
                  left = at.column * p.stride[1] - p.padding[1];
        int sum[V];
        for (int k = 0; k < V; k++) sum[k] = 0;
        for (int kh = h.begin; kh < h.end; kh++)
            for (int kw = w.begin; kw < w.end; kw++) {
                const tr_pack<T, V> v =
                    x[address(at.image, p.size, top + kh, left + kw, s.width, at.pack)];
                for (int k = 0; k < V; k++) sum[k] += (int)v.v[k];
            }
        const float scale = factor / (float)(counted(p, 0, at.row) * counted(p, 1, at.column));
        tr_pack<uint8_t, V> out;
        for (int k = 0; k < V; k++) {
            float v = (float)sum[k] * scale;
            v = v > least ? v : least;
            v = v < least + 255 ? v : least + 255;
            out.v[k] = (uint8_t)(int)rintf(v);
        }
        tr_put(reinterpret_cast<uint8_t *>(y + i), out);
    }
}

// cost: read 0.25x write 1x min 1.25x flops 2 shape 256x56x56x256 per dx, 2x2 stride 2
template <typename T, int V>
__global__ void avg_grad_kernel(tr_cuda_pool p, const tr_pack<T, V> *dy, tr_pack<T, V> *dx, shape s)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.packs;
         i += gridDim.x * blockDim.x) {
        const place at = locate(i, s);
        const span h = covering(p, s.stride, 0, at.row), w = covering(p, s.stride, 1, at.column);
        float sum[V];
        for (int k = 0; k < V; k++) sum[k] = 0;
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const float scale = share(p, oh, ow);
                const tr_pack<T, V> g = dy[address(at.image, p.result, oh, ow, s.width, at.pack)];
                for (int k = 0; k < V; k++) sum[k] += scale * tr_load<T>(g.v[k]);
            }
        tr_pack<T, V> out;
        for (int k = 0; k < V; k++) out.v[k] = tr_store<T>(sum[k]);
        tr_put(reinterpret_cast<T *>(dx + i), out);
    }
}

/* ---- Launchers */

/* Of images of `size`, V channels a pack. */
static shape shape_of(const tr_cuda_pool *p, const int size[2], int V)
{
    const unsigned width = p->channels / (unsigned)V;
    const size_t places = (size_t)p->batch * (size_t)size[0] * (size_t)size[1];
    shape s = {(unsigned)(places * width), width, {}, {}, {}, {}};
    if (s.packs == 0) return s;
    s.by_width = tr_divide_by(width);
    s.by_columns = tr_divide_by((uint64_t)size[1]);
    s.by_rows = tr_divide_by((uint64_t)size[0]);
    for (int i = 0; i < 2; i++) s.stride[i] = tr_divide_by((uint64_t)p->stride[i]);
    return s;
}

template <typename T, typename I, int V>
static tr_status max_pool(cudaStream_t stream, const tr_cuda_pool *p, const void *x, void *y,
                          void *indices)
{
    const shape s = shape_of(p, p->result, V);
    if (s.packs == 0) return TR_OK;
    return TR_LAUNCH(TR_KERNEL(max_kernel<T, I, V>), tr_rounds(s.packs, BLOCK), BLOCK, 0, stream,
                     *p, static_cast<const tr_pack<T, V> *>(x), static_cast<tr_pack<T, V> *>(y),
                     static_cast<tr_pack<I, V> *>(indices), s);
}

template <typename T, typename I, int V>
static tr_status max_pool_grad(cudaStream_t stream, const tr_cuda_pool *p, const void *dy,
                               const void *indices, void *dx)
{
    const shape s = shape_of(p, p->size, V);
    if (s.packs == 0) return TR_OK;
    return TR_LAUNCH(TR_KERNEL(max_grad_kernel<T, I, V>), tr_rounds(s.packs, BLOCK), BLOCK, 0,
                     stream, *p, static_cast<const tr_pack<T, V> *>(dy),
                     static_cast<const tr_pack<I, V> *>(indices), static_cast<tr_pack<T, V> *>(dx),
                     s);
}

template <typename T, int V>
static tr_status avg_pool(cudaStream_t stream, const tr_cuda_pool *p, const void *x, void *y)
{
    const shape s = shape_of(p, p->result, V);
    if (s.packs == 0) return TR_OK;
    return TR_LAUNCH(TR_KERNEL(avg_kernel<T, V>), tr_rounds(s.packs, BLOCK), BLOCK, 0, stream, *p,
                     static_cast<const tr_pack<T, V> *>(x), static_cast<tr_pack<T, V> *>(y), s);
}

template <typename T, int V>
static tr_status avg_pool_grad(cudaStream_t stream, const tr_cuda_pool *p, const void *dy, void *dx)
{
    const shape s = shape_of(p, p->size, V);
    if (s.packs == 0) return TR_OK;
    return TR_LAUNCH(TR_KERNEL(avg_grad_kernel<T, V>), tr_rounds(s.packs, BLOCK), BLOCK, 0, stream,
                     *p, static_cast<const tr_pack<T, V> *>(dy), static_cast<tr_pack<T, V> *>(dx),
                     s);
}

template <typename T, int V>
static tr_status avg_steps_by(cudaStream_t stream, const tr_cuda_pool *p, bool to_signed,
                              float factor, const void *x, void *y)
{
    const shape s = shape_of(p, p->result, V);
    if (s.packs == 0) return TR_OK;
    return TR_LAUNCH(TR_KERNEL(avg_steps<T, V>), tr_rounds(s.packs, BLOCK), BLOCK, 0, stream, *p,
                     factor, to_signed ? -128.0f : 0.0f, static_cast<const tr_pack<T, V> *>(x),
                     static_cast<tr_pack<uint8_t, V> *>(y), s);
}

template <typename T>
static tr_status max_steps(cudaStream_t stream, const tr_cuda_pool *p, const void *x, void *y)
{
    if (p->channels % 16 == 0) return max_pool<T, uint8_t, 16>(stream, p, x, y, NULL);
    return max_pool<T, uint8_t, 1>(stream, p, x, y, NULL);
}

/* Runs `...` with T the type and V the channels that a thread owns. */
#define BY_WIDTH(dtype, channels, ...)                                                             \
    TR_BY_TYPE(dtype, T, {                                                                         \
        if ((channels) % (16 / sizeof(T)) == 0) {                                                  \
            constexpr int V = 16 / sizeof(T);                                                      \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
        constexpr int V = 1;                                                                       \
        __VA_ARGS__;                                                                               \
    })                                                                                             \
    return TR_OK

tr_status tr_cuda_max_pool(cudaStream_t stream, const tr_cuda_pool *p, const void *x, void *y,
                           void *indices)
{
    if (p->type == TR_I8) return max_steps<int8_t>(stream, p, x, y);
    if (p->type == TR_U8) return max_steps<uint8_t>(stream, p, x, y);
    if (p->wide) {
        BY_WIDTH(p->type, p->channels, return (max_pool<T, int32_t, V>(stream, p, x, y, indices)));
    }
    BY_WIDTH(p->type, p->channels, return (max_pool<T, uint8_t, V>(stream, p, x, y, indices)));
}

tr_status tr_cuda_max_pool_grad(cudaStream_t stream, const tr_cuda_pool *p, const void *dy,
                                const void *indices, void *dx)
{
    if (p->wide) {
        BY_WIDTH(p->type, p->channels,
                 return (max_pool_grad<T, int32_t, V>(stream, p, dy, indices, dx)));
    }
    BY_WIDTH(p->type, p->channels,
             return (max_pool_grad<T, uint8_t, V>(stream, p, dy, indices, dx)));
}

tr_status tr_cuda_avg_pool(cudaStream_t stream, const tr_cuda_pool *p, const void *x, void *y)
{
    BY_WIDTH(p->type, p->channels, return (avg_pool<T, V>(stream, p, x, y)));
}

tr_status tr_cuda_avg_pool_steps(cudaStream_t stream, const tr_cuda_pool *p, bool to_signed,
                                 float factor, const void *x, void *y)
{
    const bool wide = p->channels % 16 == 0;
    if (p->type == TR_I8)
        return wide ? avg_steps_by<int8_t, 16>(stream, p, to_signed, factor, x, y)
                    : avg_steps_by<int8_t, 1>(stream, p, to_signed, factor, x, y);
    return wide ? avg_steps_by<uint8_t, 16>(stream, p, to_signed, factor, x, y)
                : avg_steps_by<uint8_t, 1>(stream, p, to_signed, factor, x, y);
}

tr_status tr_cuda_avg_pool_grad(cudaStream_t stream, const tr_cuda_pool *p, const void *dy,
                                void *dx)
{
    BY_WIDTH(p->type, p->channels, return (avg_pool_grad<T, V>(stream, p, dy, dx)));
}
