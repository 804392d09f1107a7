/* The class token: rows copied with one of weights before those of each sample.
 *
 * Bytes: x and y once each: the minimum. A thread owns 16 bytes of a row of y, or one element where
 * features fill no 16 bytes. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/tokens.h"

namespace
{

enum { BLOCK = 256 };

// cost: read 1x write 1x min 2x flops 0 shape 256x196x768 per x
template <typename T, int V>
__global__ void __launch_bounds__(BLOCK)
    class_token(const tr_pack<T, V> *x, const float *weight, tr_pack<T, V> *y, size_t packs,
                tr_divider by_width, tr_divider by_rows)
{
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < packs;
         i += (size_t)gridDim.x * BLOCK) {
        const size_t row = tr_quotient(by_width, i), sample = tr_quotient(by_rows, row);
        const size_t pack = i - row * by_width.by;
        tr_pack<T, V> p;
        if (row == sample * by_rows.by) {
            TR_UNROLL
            for (int k = 0; k < V; k++) p.v[k] = tr_store<T>(weight[pack * V + k]);
        } else {
            p = x[i - (sample + 1) * by_width.by];
        }
        tr_put(y[i].v, p);
    }
}

// cost: read 1x+1f write 1x min 2x+1f flops 1 shape 8x1x768
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    place_rows(const T *x, const float *table, const int32_t *past, T *y, size_t count, size_t most,
               tr_divider by_width, tr_divider by_rows)
{
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (size_t)gridDim.x * BLOCK) {
        const size_t row = tr_quotient(by_width, i), sample = tr_quotient(by_rows, row);
        const size_t at = (size_t)past[sample] + row - sample * by_rows.by;
        const size_t place = at < most ? at : most - 1; /* what lies behind does not count */
        y[i] = tr_store<T>(tr_load<T>(x[i]) + table[place * by_width.by + i - row * by_width.by]);
    }
}

template <typename T, int V>
tr_status launch(cudaStream_t stream, const void *x, const float *weight, void *y, size_t samples,
                 size_t rows, size_t features)
{
    const size_t width = features / V, packs = samples * (rows + 1) * width;
    if (packs == 0) return TR_OK;
    return TR_LAUNCH(TR_KERNEL(class_token<T, V>), tr_rounds(packs, BLOCK), BLOCK, 0, stream,
                     static_cast<const tr_pack<T, V> *>(x), weight, static_cast<tr_pack<T, V> *>(y),
                     packs, tr_divide_by(width), tr_divide_by(rows + 1));
}

} // namespace

tr_status tr_cuda_class_token_run(cudaStream_t stream, tr_dtype type, const void *x,
                                  const float *weight, void *y, size_t samples, size_t rows,
                                  size_t features)
{
    TR_BY_TYPE(type, T, {
        constexpr int V = 16 / sizeof(T);
        if (features % V == 0) return (launch<T, V>(stream, x, weight, y, samples, rows, features));
        return (launch<T, 1>(stream, x, weight, y, samples, rows, features));
    })
    return TR_OK;
}

tr_status tr_cuda_place_rows_run(cudaStream_t stream, tr_dtype type, const void *x,
                                 const float *table, size_t most, const int32_t *past, void *y,
                                 size_t samples, size_t rows, size_t features)
{
    const size_t count = samples * rows * features;
    if (count == 0) return TR_OK;
    TR_BY_TYPE(type, T,
               return TR_LAUNCH(place_rows<T>, tr_rounds(count, BLOCK), BLOCK, 0, stream,
                                static_cast<const T *>(x), table, past, static_cast<T *>(y), count,
                                most, tr_divide_by(features), tr_divide_by(rows)))
    return TR_OK;
}
