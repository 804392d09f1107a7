/* One row made of a sample's, by its length. As in global pooling a block owns a strip of features
 * of one sample: DEPTH layers of threads walk every DEPTH-th row and are added in order in shared
 * memory. x is read once as far as it is taken, y written once, and the other way round in the
 * gradient, which is plain elementwise work. Sums in float32, in an order that the length fixes. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/take_rows.h"

enum { BLOCK = 256, STRIP = 16, DEPTH = BLOCK / STRIP };

// cost: read 1x write 0.01x min 1.01x flops 1 shape 32x128x768 per value of x
template <typename T, int V>
__global__ void take_kernel(const tr_pack<T, V> *x, const int32_t *lengths, T *y, tr_rows_attrs a,
                            size_t rows, unsigned width, unsigned strips)
{
    TR_SHARED(float, held, STRIP *DEPTH *V);
    const unsigned column = threadIdx.x % STRIP, layer = threadIdx.x / STRIP;
    const unsigned pack = blockIdx.x % strips * STRIP + column;
    const size_t sample = blockIdx.x / strips;
    const tr_row_range r = tr_rows_taken(a.mean, a.at, lengths, sample, (int64_t)rows);
    float sum[V];
    for (int k = 0; k < V; k++) sum[k] = 0;
    if (pack < width)
        for (int64_t i = r.begin + layer; i < r.end; i += DEPTH) {
            const tr_pack<T, V> v = x[(sample * rows + (size_t)i) * width + pack];
            for (int k = 0; k < V; k++) sum[k] += tr_load<T>(v.v[k]);
        }
    for (int k = 0; k < V; k++) held[(layer * V + k) * STRIP + column] = sum[k];
    __syncthreads();
    if (layer != 0 || pack >= width) return;
    const float scale = r.end > r.begin ? 1.0f / (float)(r.end - r.begin) : 0;
    tr_pack<T, V> mean;
    TR_UNROLL
    for (int k = 0; k < V; k++) {
        float all = 0;
        for (int l = 0; l < DEPTH; l++) all += held[(l * V + k) * STRIP + column];
        mean.v[k] = tr_store<T>(all * scale);
    }
    tr_put(y + (sample * width + pack) * V, mean);
}

// cost: read 0.01x write 1x min 1.01x flops 1 shape 32x128x768 per value of dx
template <typename T, int V>
__global__ void take_grad_kernel(const tr_pack<T, V> *dy, const int32_t *lengths, tr_pack<T, V> *dx,
                                 tr_rows_attrs a, size_t packs, tr_divider by_width,
                                 tr_divider by_rows)
{
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < packs;
         i += (size_t)gridDim.x * BLOCK) {
        const size_t at = tr_quotient(by_width, i), sample = tr_quotient(by_rows, at);
        const int64_t row = (int64_t)(at - sample * by_rows.by);
        const tr_row_range r = tr_rows_taken(a.mean, a.at, lengths, sample, (int64_t)by_rows.by);
        const bool taken = row >= r.begin && row < r.end;
        const float scale = taken ? 1.0f / (float)(r.end - r.begin) : 0;
        tr_pack<T, V> v = dy[sample * by_width.by + (i - at * by_width.by)];
        for (int k = 0; k < V; k++) v.v[k] = tr_store<T>(taken ? tr_load<T>(v.v[k]) * scale : 0);
        tr_put(dx[i].v, v);
    }
}

template <typename T, int V>
static tr_status take(cudaStream_t stream, const tr_cuda_rows *r, const void *x,
                      const int32_t *lengths, void *y)
{
    const unsigned width = (unsigned)(r->features / V), strips = (width + STRIP - 1) / STRIP;
    return TR_LAUNCH(TR_KERNEL(take_kernel<T, V>), (unsigned)(r->samples * strips), BLOCK, 0,
                     stream, static_cast<const tr_pack<T, V> *>(x), lengths, static_cast<T *>(y),
                     r->a, r->rows, width, strips);
}

template <typename T, int V>
static tr_status take_grad(cudaStream_t stream, const tr_cuda_rows *r, const void *dy,
                           const int32_t *lengths, void *dx)
{
    const size_t width = r->features / V, packs = r->samples * r->rows * width;
    return TR_LAUNCH(TR_KERNEL(take_grad_kernel<T, V>), tr_rounds(packs, BLOCK), BLOCK, 0, stream,
                     static_cast<const tr_pack<T, V> *>(dy), lengths,
                     static_cast<tr_pack<T, V> *>(dx), r->a, packs, tr_divide_by(width),
                     tr_divide_by(r->rows));
}

tr_status tr_cuda_take_rows_run(cudaStream_t stream, tr_dtype type, const tr_cuda_rows *r,
                                const void *x, const int32_t *lengths, void *y)
{
    if (r->samples * r->features == 0) return TR_OK;
    TR_BY_TYPE(type, T, {
        constexpr int V = 16 / sizeof(T);
        if (r->features % V == 0) return take<T, V>(stream, r, x, lengths, y);
        return take<T, 1>(stream, r, x, lengths, y);
    });
    return TR_OK;
}

tr_status tr_cuda_take_rows_grad_run(cudaStream_t stream, tr_dtype type, const tr_cuda_rows *r,
                                     const void *dy, const int32_t *lengths, void *dx)
{
    if (r->samples * r->rows * r->features == 0) return TR_OK;
    TR_BY_TYPE(type, T, {
        constexpr int V = 16 / sizeof(T);
        if (r->features % V == 0) return take_grad<T, V>(stream, r, dy, lengths, dx);
        return take_grad<T, 1>(stream, r, dy, lengths, dx);
    });
    return TR_OK;
}
