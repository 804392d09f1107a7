/* Optimizer steps over all segments in one launch, one pass over memory:
 *
 *  adamw  Loshchilov, Hutter 2019; in PyTorch's order: w *= 1 - lr decay; m += (1-b1)(g - m);
 *         v = b2 v + (1-b2) g^2; w -= lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps)
 *  sgd    PyTorch's: g += decay w; m = momentum m + g; g = nesterov ? g + momentum m : m; w -= lr g
 *  adam, rmsprop  PyTorch's; lars, lamb: You et al. 2017, 2019; as kernels/cpu/loops/optimizer.c
 *                 has them
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
enum update_rule {
    ADAMW,
    LION,
    SGD,
    SGD_MOMENTUM,
    SGD_NESTEROV,
    ADAM,
    RMSPROP,
    RMSPROP_MOMENTUM,
    RMSPROP_CENTERED,
    RMSPROP_BOTH,
    LARS,
    LARS_MOMENTUM,
    LAMB
};

/* The arrays of a rule; those of LAMB were moved on when its norms were measured. */
template <update_rule R> struct has {
    static constexpr bool mean_gradient = R == RMSPROP_CENTERED || R == RMSPROP_BOTH;
    static constexpr bool rmsprop = mean_gradient || R == RMSPROP || R == RMSPROP_MOMENTUM;
    static constexpr bool v = R == ADAMW || R == ADAM || R == LAMB || rmsprop;
    static constexpr bool m = !(R == SGD || R == RMSPROP || R == RMSPROP_CENTERED || R == LARS);
    static constexpr bool g = R != LAMB;
    static constexpr bool writes = R != LAMB;
};

struct update_coefficients {
    float lr, step, keep, decay, trust, correct1, b1, c1, b2, c2, eps, root, momentum, scale,
        ema_keep, ema_take;
    bool apply;
};

/* Worked out by one thread a block: float64 divisions are slow on consumer devices. */
static __device__ inline update_coefficients
coefficients_of(const tr_update &u, const tr_control *c, const tr_update_chunk &chunk)
{
    const double lr = c->in.lr * chunk.lr_factor, decay = chunk.decay;
    const tr_rates r = tr_update_rates(&u, chunk.own, &chunk.rates);
    const double correct1 = tr_update_correct(&u, chunk.own, r.beta1, c->correct1, c->updates);
    const double correct2 = tr_update_correct(&u, chunk.own, r.beta2, c->correct2, c->updates);
    update_coefficients k;
    k.apply = c->apply != 0;
    k.lr = (float)lr;
    k.step = (float)(lr / correct1);
    k.keep = (float)(1.0 - lr * decay);
    k.decay = (float)decay;
    k.trust =
        chunk.adapt ? (float)tr_update_trust(&u, u.norms + chunk.row * TR_NORM_CELLS, decay) : 1.0f;
    k.correct1 = u.kind == TR_UPDATE_LAMB ? (float)(1.0 / correct1) : 1.0f;
    k.b1 = (float)r.beta1;
    k.c1 = (float)(1.0 - r.beta1);
    k.b2 = (float)r.beta2;
    k.c2 = (float)(1.0 - r.beta2);
    k.eps = (float)r.eps;
    k.root = (float)(1.0 / sqrt(correct2));
    k.momentum = (float)r.momentum;
    k.scale = (float)c->grad_scale;
    k.ema_keep = (float)u.ema_decay;
    k.ema_take = (float)(1.0 - u.ema_decay);
    return k;
}

static __device__ inline float lamb_step(const update_coefficients &k, float w, float m, float v)
{
    return m * k.correct1 / (sqrtf(v) * k.root + k.eps) + k.decay * w;
}

/* One element: returns the new weight, moves the moments on. */
template <update_rule R>
static __device__ inline float next_weight(const update_coefficients &k, float w, float g, float &m,
                                           float &v, float &a)
{
    float d = g * k.scale;
    if constexpr (R == LAMB) {
        return w - k.lr * k.trust * lamb_step(k, w, m, v);
    } else if constexpr (R == ADAM) {
        d += k.decay * w;
        m = m + k.c1 * (d - m);
        v = k.b2 * v + k.c2 * (d * d);
        return w - k.step * (m / (sqrtf(v) * k.root + k.eps));
    } else if constexpr (has<R>::rmsprop) {
        d += k.decay * w;
        v = k.b2 * v + k.c2 * (d * d);
        float variance = v;
        if constexpr (has<R>::mean_gradient) {
            a = a + k.c2 * (d - a);
            variance = v - a * a;
            variance = variance < 0.0f ? 0.0f : variance; /* rounding */
        }
        d = d / (sqrtf(variance) + k.eps);
        if constexpr (has<R>::m) d = m = k.momentum * m + d;
        return w - k.lr * d;
    } else if constexpr (R == LARS || R == LARS_MOMENTUM) {
        d = k.trust * (d + k.decay * w);
        if constexpr (has<R>::m) d = m = k.momentum * m + d;
        return w - k.lr * d;
    } else if constexpr (R == ADAMW) {
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
    float *__restrict__ ms = has<R>::m ? u.m + chunk.slot : nullptr;
    float *__restrict__ vs = has<R>::v ? u.v + chunk.slot : nullptr;
    float *__restrict__ as = has<R>::mean_gradient ? u.a + chunk.slot : nullptr;
    float *__restrict__ es = EMA ? u.ema + chunk.slot : nullptr;
    for (unsigned i = threadIdx.x * WIDTH; i < chunk.count; i += THREADS * WIDTH) {
        quad g = {}, w = *reinterpret_cast<const quad *>(ws + i), m = {}, v = {}, a = {}, e = {};
        if constexpr (has<R>::g) g = *reinterpret_cast<const quad *>(gs + i);
        if constexpr (has<R>::m) m = *reinterpret_cast<const quad *>(ms + i);
        if constexpr (has<R>::v) v = *reinterpret_cast<const quad *>(vs + i);
        if constexpr (has<R>::mean_gradient) a = *reinterpret_cast<const quad *>(as + i);
        if constexpr (EMA) e = *reinterpret_cast<const quad *>(es + i);
        TR_UNROLL
        for (int j = 0; j < WIDTH; j++) {
            const float next = next_weight<R>(k, w.v[j], g.v[j], m.v[j], v.v[j], a.v[j]);
            w.v[j] = chunk.masked && w.v[j] == 0.0f ? 0.0f : next;
            e.v[j] = k.ema_keep * e.v[j] + k.ema_take * w.v[j];
        }
        tr_put(ws + i, w);
        if constexpr (has<R>::m && has<R>::writes) tr_put(ms + i, m);
        if constexpr (has<R>::v && has<R>::writes) tr_put(vs + i, v);
        if constexpr (has<R>::mean_gradient) tr_put(as + i, a);
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
    if (u->kind == TR_UPDATE_ADAM) return launch_update<ADAM>(stream, p, control);
    if (u->kind == TR_UPDATE_LAMB) return launch_update<LAMB>(stream, p, control);
    if (u->kind == TR_UPDATE_LARS)
        return u->m ? launch_update<LARS_MOMENTUM>(stream, p, control)
                    : launch_update<LARS>(stream, p, control);
    if (u->kind == TR_UPDATE_RMSPROP && u->a)
        return u->m ? launch_update<RMSPROP_BOTH>(stream, p, control)
                    : launch_update<RMSPROP_CENTERED>(stream, p, control);
    if (u->kind == TR_UPDATE_RMSPROP)
        return u->m ? launch_update<RMSPROP_MOMENTUM>(stream, p, control)
                    : launch_update<RMSPROP>(stream, p, control);
    if (!u->m) return launch_update<SGD>(stream, p, control);
    return u->nesterov ? launch_update<SGD_NESTEROV>(stream, p, control)
                       : launch_update<SGD_MOMENTUM>(stream, p, control);
}

/* ---- Norms ----------------------------------------------------------------------------------- */

/* Sums of squares of 16 elements, which four neighbouring threads have, in one order; then exact
 * integers, whose order does not matter. */
static __device__ inline void add_exactly(double sum, unsigned long long *cells)
{
    uint64_t digits[3];
    int at;
    for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(TR_ALL_LANES, sum, offset);
    if (threadIdx.x % 4 != 0 || !tr_exact_cut(sum, &at, digits)) return;
    for (int d = 0; d < 3; d++)
        if (digits[d]) atomicAdd(cells + at + d, (unsigned long long)digits[d]);
}

/* The cost is that of LARS; LAMB reads and writes both moments, too. */
// cost: read 2f min 2f flops 4 shape 25557032
template <bool IS_LAMB>
static __global__ void __launch_bounds__(THREADS)
    measure(tr_update u, const tr_update_chunk *chunks, const tr_control *control)
{
    TR_SHARED(update_coefficients, shared, 1);
    TR_SHARED(unsigned long long, cells, TR_NORM_CELLS);
    tr_update_chunk chunk = chunks[blockIdx.x];
    chunk.adapt = false; /* what it goes by is made here */
    if (threadIdx.x == 0) shared[0] = coefficients_of(u, control, chunk);
    if (threadIdx.x < TR_NORM_CELLS) cells[threadIdx.x] = 0;
    __syncthreads();
    const update_coefficients k = shared[0];
    if (!k.apply) return;
    const float *__restrict__ gs = u.g + chunk.begin;
    const float *__restrict__ ws = u.w + chunk.begin;
    float *__restrict__ ms = IS_LAMB ? u.m + chunk.slot : nullptr;
    float *__restrict__ vs = IS_LAMB ? u.v + chunk.slot : nullptr;
    for (unsigned first = 0; first < chunk.count; first += THREADS * WIDTH) {
        const unsigned i = first + threadIdx.x * WIDTH;
        double weight = 0.0, step = 0.0;
        if (i < chunk.count) {
            const quad g = *reinterpret_cast<const quad *>(gs + i),
                       w = *reinterpret_cast<const quad *>(ws + i);
            quad m = {}, v = {};
            if constexpr (IS_LAMB) {
                m = *reinterpret_cast<const quad *>(ms + i);
                v = *reinterpret_cast<const quad *>(vs + i);
            }
            TR_UNROLL
            for (int j = 0; j < WIDTH; j++) {
                float d = g.v[j] * k.scale;
                if constexpr (IS_LAMB) {
                    m.v[j] = m.v[j] + k.c1 * (d - m.v[j]);
                    v.v[j] = k.b2 * v.v[j] + k.c2 * (d * d);
                    d = lamb_step(k, w.v[j], m.v[j], v.v[j]);
                }
                if (chunk.masked && w.v[j] == 0.0f) d = 0.0f; /* pruned: it takes no step */
                weight += (double)w.v[j] * (double)w.v[j];
                step += (double)d * (double)d;
            }
            if constexpr (IS_LAMB) {
                tr_put(ms + i, m);
                tr_put(vs + i, v);
            }
        }
        add_exactly(weight, cells + TR_NORM_WEIGHT * TR_EXACT_DIGITS);
        add_exactly(step, cells + TR_NORM_STEP * TR_EXACT_DIGITS);
    }
    __syncthreads();
    unsigned long long *row =
        reinterpret_cast<unsigned long long *>(u.norms) + chunk.row * TR_NORM_CELLS;
    if (threadIdx.x < TR_NORM_CELLS && cells[threadIdx.x])
        atomicAdd(row + threadIdx.x, cells[threadIdx.x]);
}

// cost: fixed
static __global__ void __launch_bounds__(THREADS) settle(double *norms, size_t count)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) tr_exact_settle(norms + i * TR_EXACT_DIGITS);
}

tr_status tr_measure_begin(cudaStream_t stream, const tr_update_plan *p)
{
    const size_t count = p->u.nrows * TR_NORMS * TR_EXACT_DIGITS;
    return tr_cuda_check(cudaMemsetAsync(p->u.norms, 0, count * sizeof *p->u.norms, stream),
                         "cudaMemsetAsync(norms)");
}

tr_status tr_measure_launch(cudaStream_t stream, const tr_update_plan *p, const tr_control *control)
{
    const unsigned blocks = (unsigned)p->nchunks;
    if (!blocks) return TR_OK;
    return p->u.kind == TR_UPDATE_LAMB
               ? TR_LAUNCH(measure<true>, blocks, THREADS, 0, stream, p->u, p->chunks, control)
               : TR_LAUNCH(measure<false>, blocks, THREADS, 0, stream, p->u, p->chunks, control);
}

tr_status tr_measure_end(cudaStream_t stream, const tr_update_plan *p)
{
    const size_t count = p->u.nrows * TR_NORMS;
    if (!count) return TR_OK;
    return TR_LAUNCH(settle, (unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, stream,
                     p->u.norms, count);
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

tr_status tr_swap_launch(cudaStream_t stream, const tr_update_plan *p, const tr_control *control)
{
    (void)control;
    return TR_LAUNCH(swap_ema, (unsigned)p->nchunks, THREADS, 0, stream, p->u.w, p->u.ema,
                     p->chunks);
}
