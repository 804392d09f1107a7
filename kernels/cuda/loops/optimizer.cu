/* Optimizer steps over all segments in one launch, one pass over memory:
 *
 *  adamw  Loshchilov, Hutter 2019; in PyTorch's order: w *= 1 - lr decay; m += (1-b1)(g - m);
 *         v = b2 v + (1-b2) g^2; w -= lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps)
 *  sgd    PyTorch's: g += decay w; m = momentum m + g; g = nesterov ? g + momentum m : m; w -= lr g
 *  lion   Chen et al. 2023: w *= 1 - lr decay; w -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g
 *
 * The fused average follows: ema = d ema + (1-d) w. A table says which part of which segment a
 * block works on; what changes by step (lr, gradient scale with unscaling and clipping, bias
 * corrections, whether to update at all) is read from the control, so that a recorded launch stays
 * right. In masked chunks a weight that is 0 stays so.
 *
 * Bytes a parameter, each the minimum: adamw 16 read + 12 written; sgd 8 + 4, with momentum 12 + 8;
 * lion 12 + 8; the average 4 + 4 more. A launch that does not apply moves nothing. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/optimizer.h"

enum { THREADS = 256, WIDTH = 4 };

typedef tr_pack<float, WIDTH> quad;

/* Which arrays an update has and what it does with them. */
enum update_rule { ADAMW, LION, SGD, SGD_MOMENTUM, SGD_NESTEROV };

struct update_coefficients {
    float lr, step, keep, decay, b1, c1, b2, c2, eps, root, momentum, scale, ema_keep, ema_take;
    bool apply;
};

/* Worked out by one thread a block: float64 divisions are slow on consumer devices. */
static __device__ inline update_coefficients
coefficients_of(const tr_update &u, const tr_control *c, const tr_update_chunk &chunk)
{
    const double lr = c->in.lr * chunk.lr_factor, decay = chunk.decay;
    update_coefficients k;
    k.apply = c->apply != 0;
    k.lr = (float)lr;
    k.step = (float)(lr / c->correct1);
    k.keep = (float)(1.0 - lr * decay);
    k.decay = (float)decay;
    k.b1 = (float)u.beta1;
    k.c1 = (float)(1.0 - u.beta1);
    k.b2 = (float)u.beta2;
    k.c2 = (float)(1.0 - u.beta2);
    k.eps = (float)u.eps;
    k.root = (float)(1.0 / sqrt(c->correct2));
    k.momentum = (float)u.momentum;
    k.scale = (float)c->grad_scale;
    k.ema_keep = (float)u.ema_decay;
    k.ema_take = (float)(1.0 - u.ema_decay);
    return k;
}

/* One element: returns the new weight, moves the moments on. */
template <update_rule R>
static __device__ inline float next_weight(const update_coefficients &k, float w, float g, float &m,
                                           float &v)
{
    float d = g * k.scale;
    if constexpr (R == ADAMW) {
        m = m + k.c1 * (d - m);
        v = k.b2 * v + k.c2 * (d * d);
        return w * k.keep - k.step * (m / (sqrtf(v) * k.root + k.eps));
    } else if constexpr (R == LION) {
        const float c = k.b1 * m + k.c1 * d;
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c; /* 0 and NaN stay */
        m = k.b2 * m + k.c2 * d;
        return w * k.keep - k.lr * sign;
    } else {
        d += k.decay * w;
        if constexpr (R != SGD) {
            m = k.momentum * m + d;
            d = R == SGD_NESTEROV ? d + k.momentum * m : m;
        }
        return w - k.lr * d;
    }
}

// cost: read 4f write 3f min 7f flops 16 shape 25557032
template <update_rule R, bool EMA>
static __global__ void __launch_bounds__(THREADS)
    update(tr_update u, const tr_update_chunk *chunks, const tr_control *control)
{
    TR_SHARED(update_coefficients, shared, 1);
    const tr_update_chunk chunk = chunks[blockIdx.x];
    if (threadIdx.x == 0) shared[0] = coefficients_of(u, control, chunk);
    __syncthreads();
    const update_coefficients k = shared[0];
    if (!k.apply) return;
    const float *__restrict__ gs = u.g + chunk.begin;
    float *__restrict__ ws = u.w + chunk.begin;
    float *__restrict__ ms = R == SGD ? nullptr : u.m + chunk.slot;
    float *__restrict__ vs = R == ADAMW ? u.v + chunk.slot : nullptr;
    float *__restrict__ es = EMA ? u.ema + chunk.slot : nullptr;
    for (unsigned i = threadIdx.x * WIDTH; i < chunk.count; i += THREADS * WIDTH) {
        const quad g = *reinterpret_cast<const quad *>(gs + i);
        quad w = *reinterpret_cast<const quad *>(ws + i), m = {}, v = {}, e = {};
        if constexpr (R != SGD) m = *reinterpret_cast<const quad *>(ms + i);
        if constexpr (R == ADAMW) v = *reinterpret_cast<const quad *>(vs + i);
        if constexpr (EMA) e = *reinterpret_cast<const quad *>(es + i);
        TR_UNROLL
        for (int j = 0; j < WIDTH; j++) {
            const float next = next_weight<R>(k, w.v[j], g.v[j], m.v[j], v.v[j]);
            w.v[j] = chunk.masked && w.v[j] == 0.0f ? 0.0f : next;
            e.v[j] = k.ema_keep * e.v[j] + k.ema_take * w.v[j];
        }
        tr_put(ws + i, w);
        if constexpr (R != SGD) tr_put(ms + i, m);
        if constexpr (R == ADAMW) tr_put(vs + i, v);
        if constexpr (EMA) tr_put(es + i, e);
    }
}

template <update_rule R>
static tr_status launch_update(cudaStream_t stream, const tr_update_plan *p,
                               const tr_control *control)
{
    const unsigned blocks = (unsigned)p->nchunks;
    return p->u.ema ? TR_LAUNCH(TR_KERNEL(update<R, true>), blocks, THREADS, 0, stream, p->u,
                                p->chunks, control)
                    : TR_LAUNCH(TR_KERNEL(update<R, false>), blocks, THREADS, 0, stream, p->u,
                                p->chunks, control);
}

tr_status tr_update_launch(cudaStream_t stream, const tr_update_plan *p, const tr_control *control)
{
    const tr_update *u = &p->u;
    if (u->kind == TR_UPDATE_ADAMW) return launch_update<ADAMW>(stream, p, control);
    if (u->kind == TR_UPDATE_LION) return launch_update<LION>(stream, p, control);
    if (!u->m) return launch_update<SGD>(stream, p, control);
    return u->nesterov ? launch_update<SGD_NESTEROV>(stream, p, control)
                       : launch_update<SGD_MOMENTUM>(stream, p, control);
}

/* ---- The average ----------------------------------------------------------------------------- */

// cost: read 2f write 2f min 4f flops 0 shape 25557032
static __global__ void __launch_bounds__(THREADS)
    swap_ema(float *w, float *ema, const tr_update_chunk *chunks)
{
    const tr_update_chunk chunk = chunks[blockIdx.x];
    float *__restrict__ ws = w + chunk.begin, *__restrict__ es = ema + chunk.slot;
    for (unsigned i = threadIdx.x * WIDTH; i < chunk.count; i += THREADS * WIDTH) {
        const quad a = *reinterpret_cast<const quad *>(ws + i),
                   b = *reinterpret_cast<const quad *>(es + i);
        tr_put(ws + i, b);
        tr_put(es + i, a);
    }
}

tr_status tr_swap_launch(cudaStream_t stream, const tr_update_plan *p)
{
    return TR_LAUNCH(swap_ema, (unsigned)p->nchunks, THREADS, 0, stream, p->u.w, p->u.ema,
                     p->chunks);
}
