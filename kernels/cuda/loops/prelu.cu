/* Relu with learned slopes (He et al. 2015), and the gradients of both operands in one kernel.
 *
 * Bytes: every operand once: the minimum; weights come out of the cache. The weights' sums are in
 * float32 over RUN places of a thread, then in float64: a block leaves one row of sums (one sum
 * where all have one weight), and a second kernel adds the blocks' in turn. How many blocks there
 * are depends on the shape alone. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/prelu.h"

namespace
{

/* STRIP packs of a row are a block's; RUN: rows of a thread that are summed in float32; FILL:
 * blocks at most; COLUMNS, DEPTH: of prelu_total. */
enum { THREADS = 256, STRIP = 16, LAYERS = THREADS / STRIP, RUN = 16, FILL = 8 * 132 };
enum { COLUMNS = 8, DEPTH = 32 };

template <int V> __device__ inline tr_pack<float, V> slopes(const float *weight, size_t at)
{
    return *reinterpret_cast<const tr_pack<float, V> *>(weight + at);
}

// cost: read 1x write 1x min 2x flops 2 shape 8192x4096
template <typename T, int V, bool EACH>
__global__ void __launch_bounds__(THREADS)
    prelu(const T *x, const float *weight, T *y, size_t packs, size_t count, tr_divider width)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const float one = EACH ? 0.0f : weight[0];
    if (i < packs) {
        tr_pack<T, V> p = *reinterpret_cast<const tr_pack<T, V> *>(x + i * V);
        tr_pack<float, V> w = {};
        if (EACH) w = slopes<V>(weight, (i - tr_quotient(width, i) * width.by) * V);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float v = tr_load<T>(p.v[j]);
            p.v[j] = tr_store<T>(v > 0.0f ? v : (EACH ? w.v[j] : one) * v);
        }
        tr_put(y + i * V, p);
    }
    if (i < count - packs * V) { /* only with one weight for all */
        const float v = tr_load<T>(x[packs * V + i]);
        y[packs * V + i] = tr_store<T>(v > 0.0f ? v : one * v);
    }
}

/* V values: dx, and what they bring to the weights' gradient. */
template <typename T, int V>
__device__ inline void grad_pack(const T *dy, const T *x, T *dx, const tr_pack<float, V> &w,
                                 float (&sum)[V])
{
    tr_pack<T, V> d = *reinterpret_cast<const tr_pack<T, V> *>(dy);
    const tr_pack<T, V> p = *reinterpret_cast<const tr_pack<T, V> *>(x);
    TR_UNROLL
    for (int j = 0; j < V; j++) {
        const float g = tr_load<T>(d.v[j]), v = tr_load<T>(p.v[j]);
        sum[j] += v > 0.0f ? 0.0f : g * v;
        d.v[j] = tr_store<T>(v > 0.0f ? g : w.v[j] * g);
    }
    if (dx) tr_put(dx, d);
}

// cost: read 2x write 1x min 3x flops 4 shape 8192x4096
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    prelu_grad_each(const T *dy, const T *x, const float *weight, T *dx, double *partial,
                    size_t rows, size_t channels, size_t chunk)
{
    TR_SHARED(double, held, THREADS *V);
    const unsigned column = threadIdx.x % STRIP, layer = threadIdx.x / STRIP;
    const size_t at = ((size_t)blockIdx.x * STRIP + column) * V, begin = blockIdx.y * chunk;
    const size_t end = begin + chunk < rows ? begin + chunk : rows;
    const bool live = at < channels;
    tr_pack<float, V> w = {};
    double sum[V] = {};
    if (live) w = slopes<V>(weight, at);
    for (size_t first = begin + layer; live && first < end; first += (size_t)RUN * LAYERS) {
        float run[V] = {};
        for (size_t r = first; r < end && r < first + (size_t)RUN * LAYERS; r += LAYERS)
            grad_pack<T, V>(dy + r * channels + at, x + r * channels + at,
                            dx ? dx + r * channels + at : nullptr, w, run);
        TR_UNROLL
        for (int j = 0; j < V; j++) sum[j] += (double)run[j];
    }
    TR_UNROLL
    for (int j = 0; j < V; j++) held[(layer * V + j) * STRIP + column] = sum[j];
    __syncthreads();
    if (layer != 0 || !live) return;
    TR_UNROLL
    for (int j = 0; j < V; j++) {
        double all = 0.0;
        for (int l = 0; l < LAYERS; l++) all += held[(l * V + j) * STRIP + column];
        partial[blockIdx.y * channels + at + j] = all;
    }
}

// cost: read 2x write 1x min 3x flops 4 shape 8192x4096
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    prelu_grad_one(const T *dy, const T *x, const float *weight, T *dx, double *partial,
                   size_t packs, size_t count)
{
    TR_SHARED(double, part, TR_WARP);
    const size_t step = (size_t)gridDim.x * THREADS;
    const size_t mine = (size_t)blockIdx.x * THREADS + threadIdx.x;
    tr_pack<float, V> w;
    double sum = 0.0;
    TR_UNROLL
    for (int j = 0; j < V; j++) w.v[j] = weight[0];
    for (size_t i = mine; i < packs; i += step) {
        float some[V] = {}, run = 0.0f;
        grad_pack<T, V>(dy + i * V, x + i * V, dx ? dx + i * V : nullptr, w, some);
        TR_UNROLL
        for (int j = 0; j < V; j++) run += some[j];
        sum += (double)run;
    }
    for (size_t i = packs * V + mine; i < count; i += step) {
        const tr_pack<float, 1> slope = {{w.v[0]}};
        float some[1] = {};
        grad_pack<T, 1>(dy + i, x + i, dx ? dx + i : nullptr, slope, some);
        sum += (double)some[0];
    }
    sum = tr_block_sum(sum, part);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* Columns of `chunks` rows of sums: each of DEPTH threads takes every DEPTH-th, then theirs are
 * added in order. */
// cost: fixed
__global__ void __launch_bounds__(COLUMNS *DEPTH)
    prelu_total(const double *partial, unsigned chunks, size_t width, float *sum, bool accumulate)
{
    TR_SHARED(double, sums, COLUMNS *DEPTH);
    const size_t j = (size_t)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    double total = 0.0;
    for (unsigned c = threadIdx.x / COLUMNS; j < width && c < chunks; c += DEPTH)
        total += partial[c * width + j];
    sums[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x >= COLUMNS || j >= width) return;
    for (int i = 1; i < DEPTH; i++) total += sums[i * COLUMNS + threadIdx.x];
    sum[j] = (accumulate ? sum[j] : 0.0f) + (float)total;
}

/* Of the gradient: blocks along rows, and rows of each; with one weight for all blocks of
 * elements. */
struct cut {
    size_t blocks, chunk;
};

cut cut_of(size_t rows, size_t channels, size_t weights)
{
    cut c = {0, 0};
    if (weights == 1) {
        c.blocks = tr_blocks(rows * channels, (size_t)THREADS * 32, FILL);
        return c;
    }
    /* as if a strip had packs of 4, whatever it has: the order of sums is the shape's */
    const size_t strips = (channels + STRIP * 4 - 1) / (STRIP * 4), least = (size_t)LAYERS * RUN;
    const size_t most = FILL / strips > 0 ? FILL / strips : 1;
    c.blocks = tr_blocks(rows, least, most);
    c.chunk = c.blocks ? (rows + c.blocks - 1) / c.blocks : 0;
    return c;
}

template <typename T, int V>
tr_status forward(const void *x, const float *weight, size_t weights, void *y, size_t count,
                  size_t channels, cudaStream_t stream)
{
    const size_t packs = count / V, width = weights > 1 ? channels / V : 1;
    const unsigned grid = tr_blocks(packs > V ? packs : V, THREADS, INT32_MAX);
    const T *from = static_cast<const T *>(x);
    T *to = static_cast<T *>(y);
    const tr_divider by = tr_divide_by(width);
    return weights > 1 ? TR_LAUNCH(TR_KERNEL(prelu<T, V, true>), grid, THREADS, 0, stream, from,
                                   weight, to, packs, count, by)
                       : TR_LAUNCH(TR_KERNEL(prelu<T, V, false>), grid, THREADS, 0, stream, from,
                                   weight, to, packs, count, by);
}

template <typename T, int V>
tr_status backward(const tr_cuda_prelu_grad_args *a, const cut &c, cudaStream_t stream)
{
    const T *dy = static_cast<const T *>(a->dy), *x = static_cast<const T *>(a->x);
    T *dx = static_cast<T *>(a->dx);
    const size_t strips = (a->channels + STRIP * V - 1) / (STRIP * V);
    return a->weights > 1
               ? TR_LAUNCH(TR_KERNEL(prelu_grad_each<T, V>),
                           dim3((unsigned)strips, (unsigned)c.blocks), THREADS, 0, stream, dy, x,
                           a->weight, dx, a->partial, a->rows, a->channels, c.chunk)
               : TR_LAUNCH(TR_KERNEL(prelu_grad_one<T, V>), (unsigned)c.blocks, THREADS, 0, stream,
                           dy, x, a->weight, dx, a->partial, a->rows * a->channels / V,
                           a->rows * a->channels);
}

} // namespace

tr_status tr_cuda_prelu_run(tr_dtype t, const void *x, const float *weight, size_t weights, void *y,
                            size_t rows, size_t channels, cudaStream_t stream)
{
    const bool aligned =
        tr_is_aligned(x, 16) && tr_is_aligned(y, 16) && (weights == 1 || tr_is_aligned(weight, 32));
    if (rows * channels == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = 16 / sizeof(T);
        return aligned && (weights == 1 || channels % V == 0)
                   ? forward<T, V>(x, weight, weights, y, rows * channels, channels, stream)
                   : forward<T, 1>(x, weight, weights, y, rows * channels, channels, stream);
    })
    return TR_OK;
}

size_t tr_cuda_prelu_grad_workspace(size_t rows, size_t channels, size_t weights)
{
    return cut_of(rows, channels, weights).blocks * weights * sizeof(double);
}

tr_status tr_cuda_prelu_grad_run(tr_dtype t, const tr_cuda_prelu_grad_args *a, cudaStream_t stream)
{
    const cut c = cut_of(a->rows, a->channels, a->weights);
    const bool aligned = tr_is_aligned(a->dy, 16) && tr_is_aligned(a->x, 16) &&
                         tr_is_aligned(a->dx, 16) &&
                         (a->weights == 1 || tr_is_aligned(a->weight, 32));
    tr_status st = TR_OK;
    if (a->weights == 0) return TR_OK;
    if (c.blocks > 0)
        TR_BY_TYPE(t, T, {
            constexpr int V = 16 / sizeof(T);
            st = aligned && (a->weights == 1 || a->channels % V == 0)
                     ? backward<T, V>(a, c, stream)
                     : backward<T, 1>(a, c, stream);
        })
    if (st != TR_OK) return st;
    return TR_LAUNCH(prelu_total, (unsigned)((a->weights + COLUMNS - 1) / COLUMNS), COLUMNS * DEPTH,
                     0, stream, a->partial, (unsigned)c.blocks, a->weights, a->dweight,
                     a->accumulate);
}
