/* Losses of one output and one target each: squared and absolute errors of values, binary cross
 * entropy and focal loss of logits (tr_elementwise_loss_attrs); sums in float64.
 *
 * Bytes: output, target and gradient once each: the minimum.
 * bce: max(z, 0) - z * target + log(1 + exp(-|z|)). */
#include "kernels/cuda/loops/rows.cuh"
#include "kernels/cuda/loops/tally.cuh"
#include "runtime/graph/ops.h"

namespace
{

enum { THREADS = 256 };

template <typename T> struct pointers {
    const T *y;
    const float *target;
    T *dy;
};

/* Of pos_weight: the place of element i. Where there are weights, elements are counted in 32 bits:
 * wider divisions are calls, with a stack. */
struct weights {
    const float *v; /* NULL: all 1 */
    unsigned n;
    __device__ float at(unsigned i) const
    {
        return v[n > 1 ? i % n : 0];
    }
};

struct options {
    float delta, curve, slope, gamma, alpha;
    weights pos;
    const float *samples; /* weight of each; NULL: all 1 */
    unsigned width;       /* elements of a sample */
};

enum { SQUARE, ROBUST, BCE, FOCAL };

/* l1, huber and smooth_l1: a parabola, and straight lines from |d| = delta on. 0 and NaN stay. */
__device__ inline float robust(double &sum, const options &o, float d, float scale)
{
    const float far = fabsf(d);
    const bool near = far < o.delta; /* both sides are cheaper than a branch, and need no stack */
    const float straight = d > 0.0f ? o.slope : (d < 0.0f ? -o.slope : d);
    sum += (double)(near ? 0.5f * o.curve * d * d : o.slope * (far - 0.5f * o.delta));
    return scale * (near ? o.curve * d : straight);
}

/* As kernels/cpu/loops/loss.c has it: `p` and `other` add up to 1, `loss` is the binary cross
 * entropy. */
__device__ inline float focal(double &sum, const options &o, float p, float other, float loss,
                              float goal, float scale)
{
    const float q = other * goal + p * (1.0f - goal);
    const float power = o.gamma == 2.0f ? q * q : powf(q, o.gamma);
    const float counts = o.alpha < 0.0f ? 1.0f : o.alpha * goal + (1.0f - o.alpha) * (1.0f - goal);
    const float slope = q > 0.0f ? o.gamma * (1.0f - 2.0f * goal) * p * (other / q) : 0.0f;
    sum += (double)(counts * power * loss);
    return scale * counts * power * (p - goal + loss * slope);
}

/* Adds element i to the sums; returns its gradient. */
template <int KIND>
__device__ float element(tr_loss_sums &sums, const options &o, size_t i, float z, float goal,
                         float scale)
{
    if (KIND == SQUARE) {
        const float d = z - goal;
        sums.loss += (double)d * (double)d;
        return 2.0f * scale * d;
    }
    if (KIND == ROBUST) return robust(sums.loss, o, z - goal, scale);
    const float e = expf(-fabsf(z)), inverse = 1.0f / (1.0f + e);
    const float p = z < 0.0f ? e * inverse : inverse, other = z < 0.0f ? inverse : e * inverse;
    const float positive = z < 0.0f ? 0.0f : z; /* NaN stays */
    sums.correct += (z > 0.0f) == (goal > 0.5f) && z == z;
    if (KIND == FOCAL)
        return focal(sums.loss, o, p, other, positive - z * goal + log1pf(e), goal, scale);
    if (o.pos.v) {
        const float counts = 1.0f + (o.pos.at((unsigned)i) - 1.0f) * goal,
                    negative = z > 0.0f ? 0.0f : -z;
        sums.loss += (double)counts * ((double)log1pf(e) + (double)negative) +
                     (1.0 - (double)goal) * (double)z;
        return scale * (1.0f - goal - counts * other);
    }
    sums.loss += (double)positive - (double)z * (double)goal + (double)log1pf(e);
    return scale * (p - goal);
}

/* The same with the weight of its sample. */
template <int KIND>
__device__ float weighed(tr_loss_sums &sums, const options &o, size_t i, float z, float goal,
                         float scale)
{
    if (!o.samples) return element<KIND>(sums, o, i, z, goal, scale);
    tr_loss_sums one = {0.0, 0.0, 0.0, 0.0, 0.0};
    const float w = o.samples[(unsigned)i / o.width],
                d = element<KIND>(one, o, i, z, goal, scale * w);
    sums.loss += (double)w * one.loss;
    sums.weight += (double)w;
    sums.correct += one.correct;
    return d;
}

// cost: read 1x+1f write 1x min 2x+1f flops 12 shape 8192x1024
template <typename T, int V, int KIND>
__global__ void __launch_bounds__(THREADS)
    elementwise_loss(pointers<T> p, options o, size_t count, const tr_control *control, float fixed,
                     double *partial)
{
    TR_SHARED(double, part, TR_WARP);
    const float scale = p.dy ? tr_loss_scale(control, fixed) : 0.0f;
    const size_t packs = (count + V - 1) / V, step = (size_t)gridDim.x * THREADS;
    tr_loss_sums sums = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += step) {
        const size_t at = i * V;
        if (at + V <= count) {
            const tr_pack<T, V> y = *reinterpret_cast<const tr_pack<T, V> *>(p.y + at);
            const tr_pack<float, V> goal =
                *reinterpret_cast<const tr_pack<float, V> *>(p.target + at);
            tr_pack<T, V> dy;
            TR_UNROLL
            for (int j = 0; j < V; j++)
                dy.v[j] = tr_store<T>(
                    weighed<KIND>(sums, o, at + j, tr_load<T>(y.v[j]), goal.v[j], scale));
            if (p.dy) tr_put(p.dy + at, dy);
        } else {
            for (size_t j = at; j < count; j++) {
                const float d = weighed<KIND>(sums, o, j, tr_load<T>(p.y[j]), p.target[j], scale);
                if (p.dy) p.dy[j] = tr_store<T>(d);
            }
        }
    }
    if (!o.samples && blockIdx.x == 0 && threadIdx.x == 0) sums.weight = (double)count;
    tr_loss_leave(sums, partial, part);
}

template <typename T, int V>
tr_status launch(const tr_cuda_elementwise_loss_args *a, unsigned *grid, cudaStream_t stream)
{
    const pointers<T> p = {static_cast<const T *>(a->y), a->target, static_cast<T *>(a->dy)};
    *grid = tr_blocks(a->count, (size_t)THREADS * V, TR_LOSS_BLOCKS);
    const tr_elementwise_loss_attrs *l = a->loss;
    const options o = {l->delta,   l->curve,
                       l->slope,   l->gamma,
                       l->alpha,   {a->pos, (unsigned)l->npos},
                       a->weights, (unsigned)(a->count / a->samples)};
#define LAUNCH(KIND)                                                                               \
    TR_LAUNCH(TR_KERNEL(elementwise_loss<T, V, KIND>), *grid, THREADS, 0, stream, p, o, a->count,  \
              a->control, a->scale, a->partial)
    switch (l->kind) {
    case TR_LOSS_MSE:
        return LAUNCH(SQUARE);
    case TR_LOSS_BCE:
        return LAUNCH(BCE);
    case TR_LOSS_FOCAL:
        return LAUNCH(FOCAL);
    default:
        return LAUNCH(ROBUST);
    }
#undef LAUNCH
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
    const double samples = (double)a->samples;
    const tr_cuda_counted counted = {samples, samples, 1.0, samples, (double)a->count};
    return tr_cuda_tally_add(a->partial, blocks, &counted, a->tally, stream);
}
