/* Dropout, forward and backward alike: the mask is made again from the sample's ordinal and the
 * element's place in it (ops.h), which does not depend on how the work is cut.
 *
 * Bytes: x once, y once: the minimum. Each four elements take one Philox block, about 40 integer
 * operations: with 2-byte types an H100's integer units are nearly as busy as its memory. A sample
 * of a multiple of the pack's elements is read by packs; else a thread does the up to four elements
 * of a block. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/philox.cuh"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

enum { THREADS = 256 };

template <typename T> struct arguments {
    const T *x;
    T *y;
    tr_divider pieces;      /* of a sample */
    size_t elements, total; /* of a sample; pieces of all samples */
    uint64_t key, ordinal;
    const tr_control *control;
    uint32_t least; /* the least 24-bit number that is kept: uniform = number / 2^24 >= p */
    float scale;
};

template <typename T> __device__ T drop(T v, uint32_t bits, const arguments<T> &a)
{
    const float kept = tr_load<T>(v) * a.scale;
    return tr_store<T>(bits >> 8 >= a.least ? kept : 0.0f);
}

// cost: read 1x write 1x min 2x flops 16 shape 8192x4096
template <typename T, int V> __global__ void __launch_bounds__(THREADS) dropout(arguments<T> a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.total) return;
    const size_t sample = tr_quotient(a.pieces, i), piece = i - sample * a.pieces.by;
    const uint64_t ordinal = (a.control ? a.control->in.ordinal : a.ordinal) + sample;
    if (V > 1) { /* whole packs, one after the other over all samples */
        using pack = tr_pack<T, V>;
        pack p = *reinterpret_cast<const pack *>(a.x + i * V);
        TR_UNROLL
        for (int b = 0; b < V / 4; b++) {
            const tr_philox r = tr_device_philox(a.key, ordinal, (uint32_t)(piece * (V / 4) + b));
            TR_UNROLL
            for (int w = 0; w < 4; w++) p.v[4 * b + w] = drop(p.v[4 * b + w], r.v[w], a);
        }
        tr_put(a.y + i * V, p);
    } else {
        const tr_philox r = tr_device_philox(a.key, ordinal, (uint32_t)piece);
        const size_t from = piece * 4;
        const T *x = a.x + sample * a.elements + from;
        T *y = a.y + sample * a.elements + from;
        TR_UNROLL
        for (int w = 0; w < 4; w++)
            if (from + w < a.elements) y[w] = drop(x[w], r.v[w], a);
    }
}

/* Elements of a sample that is dropped are not read. */
// cost: read 1x write 1x min 2x flops 2 shape 8192x4096
template <typename T, int V> __global__ void __launch_bounds__(THREADS) drop_path(arguments<T> a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.total) return;
    const uint64_t ordinal = (a.control ? a.control->in.ordinal : a.ordinal);
    const tr_philox r = tr_device_philox(a.key, ordinal + tr_quotient(a.pieces, i), 0);
    tr_pack<T, V> p;
    if (r.v[0] >> 8 >= a.least) {
        p = *reinterpret_cast<const tr_pack<T, V> *>(a.x + i * V);
        TR_UNROLL
        for (int j = 0; j < V; j++) p.v[j] = tr_store<T>(tr_load<T>(p.v[j]) * a.scale);
    } else {
        TR_UNROLL
        for (int j = 0; j < V; j++) p.v[j] = tr_store<T>(0.0f);
    }
    tr_put(a.y + i * V, p);
}

/* `width`: elements of a piece. */
template <typename T> arguments<T> arguments_of(const tr_cuda_dropout_args *d, size_t width)
{
    const size_t pieces = (d->elements + width - 1) / width;
    const double least = ceil((double)d->p * 0x1p24);
    return {static_cast<const T *>(d->x),
            static_cast<T *>(d->y),
            tr_divide_by(pieces),
            d->elements,
            pieces * d->samples,
            d->key,
            d->ordinal,
            d->control,
            (uint32_t)least,
            d->scale};
}

template <typename T, int V> tr_status launch(const tr_cuda_dropout_args *d, cudaStream_t stream)
{
    const arguments<T> a = arguments_of<T>(d, V > 1 ? V : 4);
    return TR_LAUNCH(TR_KERNEL(dropout<T, V>), tr_blocks(a.total, THREADS, INT32_MAX), THREADS, 0,
                     stream, a);
}

template <typename T, int V>
tr_status launch_path(const tr_cuda_dropout_args *d, cudaStream_t stream)
{
    const arguments<T> a = arguments_of<T>(d, V);
    return TR_LAUNCH(TR_KERNEL(drop_path<T, V>), tr_blocks(a.total, THREADS, INT32_MAX), THREADS, 0,
                     stream, a);
}

} // namespace

tr_status tr_cuda_dropout_run(tr_dtype t, const tr_cuda_dropout_args *a, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(a->x, 16) && tr_is_aligned(a->y, 16);
    if (a->samples == 0 || a->elements == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        return aligned && a->elements % V == 0 ? launch<T, V>(a, stream) : launch<T, 1>(a, stream);
    })
    return TR_OK;
}

tr_status tr_cuda_drop_path_run(tr_dtype t, const tr_cuda_dropout_args *a, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(a->x, 16) && tr_is_aligned(a->y, 16);
    if (a->samples == 0 || a->elements == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        return aligned && a->elements % V == 0 ? launch_path<T, V>(a, stream)
                                               : launch_path<T, 1>(a, stream);
    })
    return TR_OK;
}
