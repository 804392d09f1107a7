/* Rounded to 8 bits and back by learned scales (runtime/graph/ops/quantize_learned.c): a block
 * takes a piece of one scale's elements. Backward each block leaves a partial sum; a second kernel
 * adds a scale's in a fixed order. The rounding is kernels/elementwise.h's. */
#include "kernels/cuda/loops/quantize_learned.h"
#include "kernels/cuda/device.cuh"
#include "kernels/elementwise.h"

namespace
{

enum { THREADS = 256, PIECE = 16384 };

struct rows_of {
    size_t D;
    unsigned pieces; /* of a scale */
    float least, most;
};

__device__ inline float scale_at(const float *scale, unsigned row)
{
    const float s = fabsf(scale[row]);
    return s < 1e-20f ? 1e-20f : s; /* tr_learned_scale */
}

// cost: read 1x write 1x min 2x flops 5 shape 8192x4096
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    quantize_learned(const T *x, const float *scales, T *y, rows_of r)
{
    const unsigned row = blockIdx.x / r.pieces;
    const size_t from = (size_t)(blockIdx.x % r.pieces) * PIECE, first = row * r.D;
    const size_t end = r.D - from < PIECE ? r.D : from + PIECE;
    const float scale = scale_at(scales, row), inverse = 1.0f / scale;
    for (size_t i = from + (size_t)threadIdx.x * V; i < end; i += (size_t)THREADS * V) {
        tr_pack<T, V> p = *reinterpret_cast<const tr_pack<T, V> *>(x + first + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float v = tr_load<T>(p.v[j]) * inverse;
            p.v[j] = tr_store<T>(TR_NEAREST(TR_CLAMP(v, r.least, r.most)) * scale);
        }
        tr_put(y + first + i, p);
    }
}

// cost: read 2x write 1x min 3x flops 9 shape 8192x4096
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    quantize_learned_grad(const T *dy, const T *x, const float *scales, T *dx, bool add,
                          double *partial, rows_of r)
{
    TR_SHARED(double, part, TR_WARP);
    const unsigned row = blockIdx.x / r.pieces;
    const size_t from = (size_t)(blockIdx.x % r.pieces) * PIECE, first = row * r.D;
    const size_t end = r.D - from < PIECE ? r.D : from + PIECE;
    const float inverse = 1.0f / scale_at(scales, row);
    float sum = 0.0f;
    for (size_t i = from + (size_t)threadIdx.x * V; i < end; i += (size_t)THREADS * V) {
        tr_pack<T, V> d = *reinterpret_cast<const tr_pack<T, V> *>(dy + first + i);
        const tr_pack<T, V> p = *reinterpret_cast<const tr_pack<T, V> *>(x + first + i);
        tr_pack<T, V> was = d;
        if (dx && add) was = *reinterpret_cast<const tr_pack<T, V> *>(dx + first + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float v = tr_load<T>(p.v[j]) * inverse, g = tr_load<T>(d.v[j]);
            const float q = TR_NEAREST(TR_CLAMP(v, r.least - 4, r.most + 4));
            sum += g * (q < r.least ? r.least : q > r.most ? r.most : q - v);
            d.v[j] = tr_store<T>((add ? tr_load<T>(was.v[j]) : 0.0f) +
                                 (q < r.least || q > r.most ? 0.0f : g));
        }
        if (dx) tr_put(dx + first + i, d);
    }
    const double all = tr_block_sum((double)sum, part);
    if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

// cost: fixed
__global__ void __launch_bounds__(THREADS)
    quantize_learned_sum(const double *partial, const float *scales, float *dscale, bool add,
                         float gain, unsigned pieces)
{
    TR_SHARED(double, part, TR_WARP);
    const unsigned row = blockIdx.x;
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < pieces; i += THREADS)
        sum += partial[(size_t)row * pieces + i];
    sum = tr_block_sum(sum, part) * (scales[row] < 0.0f ? -gain : gain);
    if (threadIdx.x == 0) dscale[row] = (add ? dscale[row] : 0.0f) + (float)sum;
}

unsigned pieces_of(size_t D)
{
    return (unsigned)((D + PIECE - 1) / PIECE);
}

template <typename T, int V> tr_status launch(const tr_cuda_learned_args *a, cudaStream_t stream)
{
    const rows_of r = {a->D, pieces_of(a->D), a->least, a->most};
    return TR_LAUNCH(TR_KERNEL(quantize_learned<T, V>), (unsigned)(a->rows * r.pieces), THREADS, 0,
                     stream, static_cast<const T *>(a->x), a->scale, static_cast<T *>(a->out), r);
}

template <typename T, int V>
tr_status launch_grad(const tr_cuda_learned_args *a, cudaStream_t stream)
{
    const rows_of r = {a->D, pieces_of(a->D), a->least, a->most};
    return TR_LAUNCH(TR_KERNEL(quantize_learned_grad<T, V>), (unsigned)(a->rows * r.pieces),
                     THREADS, 0, stream, static_cast<const T *>(a->dy),
                     static_cast<const T *>(a->x), a->scale, static_cast<T *>(a->out), a->add,
                     a->partial, r);
}

bool is_packed(const tr_cuda_learned_args *a, size_t V)
{
    return a->D % V == 0 && tr_is_aligned(a->x, 16) && tr_is_aligned(a->dy, 16) &&
           tr_is_aligned(a->out, 16);
}

} // namespace

size_t tr_cuda_learned_workspace(size_t rows, size_t D)
{
    return rows * pieces_of(D) * sizeof(double);
}

tr_status tr_cuda_learned_run(tr_dtype t, const tr_cuda_learned_args *a, cudaStream_t stream)
{
    if (a->rows == 0 || a->D == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = 16 / sizeof(T);
        return is_packed(a, V) ? launch<T, V>(a, stream) : launch<T, 1>(a, stream);
    })
    return TR_OK;
}

tr_status tr_cuda_learned_grad_run(tr_dtype t, const tr_cuda_learned_args *a, cudaStream_t stream)
{
    tr_status st = TR_OK;
    if (a->rows == 0 || a->D == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = 16 / sizeof(T);
        st = is_packed(a, V) ? launch_grad<T, V>(a, stream) : launch_grad<T, 1>(a, stream);
    })
    if (st != TR_OK || !a->dscale) return st;
    return TR_LAUNCH(quantize_learned_sum, (unsigned)a->rows, THREADS, 0, stream, a->partial,
                     a->scale, a->dscale, a->add_scale, a->gain, pieces_of(a->D));
}
