/* Mean squared error and binary cross entropy on logits, element by element; sums in float64.
 *
 * Bytes: output, target and gradient once each: the minimum.
 * bce: max(z, 0) - z * target + log(1 + exp(-|z|)). */
#include "kernels/cuda/loops/rows.cuh"
#include "kernels/cuda/loops/tally.cuh"

namespace
{

enum { THREADS = 256 };

template <typename T> struct pointers {
    const T *y;
    const float *target;
    T *dy;
};

/* Adds one element to the sums; returns its gradient. */
template <bool BCE> __device__ float element(tr_loss_sums &sums, float z, float goal, float scale)
{
    if (!BCE) {
        const float d = z - goal;
        sums.loss += (double)d * (double)d;
        return 2.0f * scale * d;
    }
    const float e = expf(-fabsf(z)), inverse = 1.0f / (1.0f + e);
    const float positive = z < 0.0f ? 0.0f : z; /* NaN stays */
    sums.loss += (double)positive - (double)z * (double)goal + (double)log1pf(e);
    sums.correct += (z > 0.0f) == (goal > 0.5f) && z == z;
    return scale * ((z < 0.0f ? e * inverse : inverse) - goal);
}

// cost: read 1x+1f write 1x min 2x+1f flops 12 shape 8192x1024
template <typename T, int V, bool BCE>
__global__ void __launch_bounds__(THREADS)
    elementwise_loss(pointers<T> p, size_t count, const tr_control *control, float fixed,
                     double *partial)
{
    TR_SHARED(double, part, TR_WARP);
    const float scale = p.dy ? tr_loss_scale(control, fixed) : 0.0f;
    const size_t packs = (count + V - 1) / V, step = (size_t)gridDim.x * THREADS;
    tr_loss_sums sums = {0.0, 0.0, 0.0, 0.0};
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += step) {
        const size_t at = i * V;
        if (at + V <= count) {
            const tr_pack<T, V> y = *reinterpret_cast<const tr_pack<T, V> *>(p.y + at);
            const tr_pack<float, V> goal =
                *reinterpret_cast<const tr_pack<float, V> *>(p.target + at);
            tr_pack<T, V> dy;
            TR_UNROLL
            for (int j = 0; j < V; j++)
                dy.v[j] = tr_store<T>(element<BCE>(sums, tr_load<T>(y.v[j]), goal.v[j], scale));
            if (p.dy) tr_put(p.dy + at, dy);
        } else {
            for (size_t j = at; j < count; j++) {
                const float d = element<BCE>(sums, tr_load<T>(p.y[j]), p.target[j], scale);
                if (p.dy) p.dy[j] = tr_store<T>(d);
            }
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) sums.weight = (double)count;
    tr_loss_leave(sums, partial, part);
}

template <typename T, int V>
tr_status launch(const tr_cuda_elementwise_loss_args *a, unsigned *grid, cudaStream_t stream)
{
    const pointers<T> p = {static_cast<const T *>(a->y), a->target, static_cast<T *>(a->dy)};
    *grid = tr_blocks(a->count, (size_t)THREADS * V, TR_LOSS_BLOCKS);
    if (a->bce)
        return TR_LAUNCH(TR_KERNEL(elementwise_loss<T, V, true>), *grid, THREADS, 0, stream, p,
                         a->count, a->control, a->scale, a->partial);
    return TR_LAUNCH(TR_KERNEL(elementwise_loss<T, V, false>), *grid, THREADS, 0, stream, p,
                     a->count, a->control, a->scale, a->partial);
}

} // namespace

tr_status tr_cuda_elementwise_loss_run(tr_dtype t, const tr_cuda_elementwise_loss_args *a,
                                       cudaStream_t stream)
{
    const bool aligned =
        tr_is_aligned(a->y, 16) && tr_is_aligned(a->dy, 16) && tr_is_aligned(a->target, 32);
    unsigned blocks = 0;
    tr_status st = TR_OK;
    if (a->count == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        st = aligned ? launch<T, V>(a, &blocks, stream) : launch<T, 1>(a, &blocks, stream);
    })
    if (st != TR_OK) return st;
    return tr_cuda_tally_add(a->partial, blocks, (double)a->samples, (double)a->samples,
                             (double)a->count, a->tally, stream);
}
