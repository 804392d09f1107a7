/* Optimizer steps and the gradient's sum of squares: one pass over memory each.
 *
 *  adamw  Loshchilov, Hutter 2019; in PyTorch's order: w *= 1 - lr decay; m += (1-b1)(g - m);
 *         v = b2 v + (1-b2) g^2; w -= lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps)
 *  sgd    PyTorch's: g += decay w; m = momentum m + g; g = nesterov ? g + momentum m : m; w -= lr g
 *  adam   Kingma, Ba 2015, PyTorch's: adamw of g + decay w, without the first line
 *  rmsprop  PyTorch's: g += decay w; v = alpha v + (1-alpha) g^2; centered: a += (1-alpha)(g - a);
 *         g /= sqrt(v - a^2) + eps; m = momentum m + g; w -= lr m
 *  lars   You et al. 2017: sgd of trust * (g + decay w), trust = coefficient |w| / (|g| + decay |w|
 *         + eps)
 *  lamb   You et al. 2019: m, v as adamw's; u = m/bc1 / (sqrt(v)/sqrt(bc2) + eps) + decay w;
 *         w -= lr |w|/|u| u
 *  lion   Chen et al. 2023: w *= 1 - lr decay; w -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g
 *
 * The fused average follows: ema = d ema + (1-d) w. Where a segment is masked, a weight that is 0
 * stays so. */
#include "kernels/cpu/loops/vec.h"

typedef struct {
    float lr, step, keep, decay, trust, correct1, b1, c1, b2, c2, eps, root, momentum, scale,
        ema_keep, ema_take;
} coefficients;

static coefficients prepare(const tr_sweep *u)
{
    return (coefficients){
        .lr = (float)u->lr,
        .step = (float)(u->lr / u->correct1),
        .keep = (float)(1.0 - u->lr * u->decay),
        .decay = (float)u->decay,
        .trust = (float)u->trust,
        .correct1 = (float)(1.0 / u->correct1),
        .b1 = (float)u->beta1,
        .c1 = (float)(1.0 - u->beta1),
        .b2 = (float)u->beta2,
        .c2 = (float)(1.0 - u->beta2),
        .eps = (float)u->eps,
        .root = (float)(1.0 / sqrt(u->correct2)),
        .momentum = (float)u->momentum,
        .scale = (float)u->grad_scale,
        .ema_keep = (float)u->ema_decay,
        .ema_take = (float)(1.0 - u->ema_decay),
    };
}

TR_INLINE float kept(bool masked, float was, float next)
{
    return masked && was == 0.0f ? 0.0f : next;
}

TR_INLINE void average(bool on, const coefficients *k, float *ema, size_t i, float w)
{
    if (on) ema[i] = k->ema_keep * ema[i] + k->ema_take * w;
}

TR_INLINE void adamw(const tr_sweep *u, const coefficients k, bool masked, bool ema, size_t begin,
                     size_t end)
{
    float *restrict w = u->w, *restrict m = u->m, *restrict v = u->v;
    const float *restrict g = u->g;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float d = g[i] * k.scale;
        float mean = m[i] + k.c1 * (d - m[i]);
        float square = k.b2 * v[i] + k.c2 * (d * d);
        float next = w[i] * k.keep - k.step * (mean / (sqrtf(square) * k.root + k.eps));
        next = kept(masked, w[i], next);
        m[i] = mean;
        v[i] = square;
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

TR_INLINE void adam(const tr_sweep *u, const coefficients k, bool masked, bool ema, size_t begin,
                    size_t end)
{
    float *restrict w = u->w, *restrict m = u->m, *restrict v = u->v;
    const float *restrict g = u->g;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float d = g[i] * k.scale + k.decay * w[i];
        float mean = m[i] + k.c1 * (d - m[i]);
        float square = k.b2 * v[i] + k.c2 * (d * d);
        float next = w[i] - k.step * (mean / (sqrtf(square) * k.root + k.eps));
        next = kept(masked, w[i], next);
        m[i] = mean;
        v[i] = square;
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

TR_INLINE void rmsprop(const tr_sweep *u, const coefficients k, bool moment, bool centered,
                       bool masked, bool ema, size_t begin, size_t end)
{
    float *restrict w = u->w, *restrict m = u->m, *restrict v = u->v, *restrict a = u->a;
    const float *restrict g = u->g;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float d = g[i] * k.scale + k.decay * w[i];
        float square = k.b2 * v[i] + k.c2 * (d * d);
        float variance = square;
        v[i] = square;
        if (centered) {
            float mean = a[i] + k.c2 * (d - a[i]);
            a[i] = mean;
            variance = square - mean * mean;
            variance = variance < 0.0f ? 0.0f : variance; /* rounding */
        }
        d = d / (sqrtf(variance) + k.eps);
        if (moment) {
            d = k.momentum * m[i] + d;
            m[i] = d;
        }
        float next = kept(masked, w[i], w[i] - k.lr * d);
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

TR_INLINE void lars(const tr_sweep *u, const coefficients k, bool moment, bool masked, bool ema,
                    size_t begin, size_t end)
{
    float *restrict w = u->w, *restrict m = u->m;
    const float *restrict g = u->g;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float d = k.trust * (g[i] * k.scale + k.decay * w[i]);
        if (moment) {
            d = k.momentum * m[i] + d;
            m[i] = d;
        }
        float next = kept(masked, w[i], w[i] - k.lr * d);
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

TR_INLINE float lamb_step(const coefficients *k, float w, float mean, float square)
{
    return mean * k->correct1 / (sqrtf(square) * k->root + k->eps) + k->decay * w;
}

/* The moments are there: update_norms. */
TR_INLINE void lamb(const tr_sweep *u, const coefficients k, bool masked, bool ema, size_t begin,
                    size_t end)
{
    float *restrict w = u->w;
    const float *restrict m = u->m, *restrict v = u->v;
    const float rate = k.lr * k.trust;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float next = kept(masked, w[i], w[i] - rate * lamb_step(&k, w[i], m[i], v[i]));
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

/* 16 at a time, in one order. */
TR_INLINE void norms(const tr_sweep *u, const coefficients k, bool is_lamb, size_t begin,
                     size_t end, double *weight, double *step)
{
    for (size_t at = begin, b = 0; at < end; at += 16, b++) {
        double ws = 0.0, ds = 0.0;
        for (size_t i = at; i < at + 16; i++) {
            float w = u->w[i], d = u->g[i] * k.scale;
            if (is_lamb) {
                float mean = u->m[i] + k.c1 * (d - u->m[i]);
                float square = k.b2 * u->v[i] + k.c2 * (d * d);
                u->m[i] = mean;
                u->v[i] = square;
                d = lamb_step(&k, w, mean, square);
            }
            if (u->masked && w == 0.0f) d = 0.0f; /* pruned: it takes no step */
            ws += (double)w * (double)w;
            ds += (double)d * (double)d;
        }
        weight[b] = ws;
        step[b] = ds;
    }
}

void TR_LOOP(update_norms)(const tr_sweep *u, size_t begin, size_t end, double *weight,
                           double *step)
{
    const coefficients k = prepare(u);
    if (u->kind == TR_UPDATE_LAMB)
        norms(u, k, true, begin, end, weight, step);
    else
        norms(u, k, false, begin, end, weight, step);
}

TR_INLINE void by_moments(const tr_sweep *u, const coefficients k, bool masked, bool ema,
                          size_t begin, size_t end)
{
    if (u->m && u->a)
        rmsprop(u, k, true, true, masked, ema, begin, end);
    else if (u->m)
        rmsprop(u, k, true, false, masked, ema, begin, end);
    else if (u->a)
        rmsprop(u, k, false, true, masked, ema, begin, end);
    else
        rmsprop(u, k, false, false, masked, ema, begin, end);
}

TR_INLINE void sgd(const tr_sweep *u, const coefficients k, bool moment, bool nesterov, bool masked,
                   bool ema, size_t begin, size_t end)
{
    float *restrict w = u->w, *restrict m = u->m;
    const float *restrict g = u->g;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float d = g[i] * k.scale + k.decay * w[i];
        if (moment) {
            float run = k.momentum * m[i] + d;
            m[i] = run;
            d = nesterov ? d + k.momentum * run : run;
        }
        float next = kept(masked, w[i], w[i] - k.lr * d);
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

TR_INLINE void lion(const tr_sweep *u, const coefficients k, bool masked, bool ema, size_t begin,
                    size_t end)
{
    float *restrict w = u->w, *restrict m = u->m;
    const float *restrict g = u->g;
    TR_SIMD for (size_t i = begin; i < end; i++)
    {
        float d = g[i] * k.scale;
        float c = k.b1 * m[i] + k.c1 * d;
        float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c; /* 0 and NaN stay */
        float next = kept(masked, w[i], w[i] * k.keep - k.lr * sign);
        m[i] = k.b2 * m[i] + k.c2 * d;
        w[i] = next;
        average(ema, &k, u->ema, i, next);
    }
}

TR_INLINE void by_kind(const tr_sweep *u, bool masked, bool ema, size_t begin, size_t end)
{
    coefficients k = prepare(u);
    if (u->kind == TR_UPDATE_ADAMW)
        adamw(u, k, masked, ema, begin, end);
    else if (u->kind == TR_UPDATE_LION)
        lion(u, k, masked, ema, begin, end);
    else if (u->kind == TR_UPDATE_ADAM)
        adam(u, k, masked, ema, begin, end);
    else if (u->kind == TR_UPDATE_RMSPROP)
        by_moments(u, k, masked, ema, begin, end);
    else if (u->kind == TR_UPDATE_LAMB)
        lamb(u, k, masked, ema, begin, end);
    else if (u->kind == TR_UPDATE_LARS && u->m)
        lars(u, k, true, masked, ema, begin, end);
    else if (u->kind == TR_UPDATE_LARS)
        lars(u, k, false, masked, ema, begin, end);
    else if (!u->m)
        sgd(u, k, false, false, masked, ema, begin, end);
    else if (u->nesterov)
        sgd(u, k, true, true, masked, ema, begin, end);
    else
        sgd(u, k, true, false, masked, ema, begin, end);
}

TR_INLINE void by_mask(const tr_sweep *u, bool ema, size_t begin, size_t end)
{
    if (u->masked)
        by_kind(u, true, ema, begin, end);
    else
        by_kind(u, false, ema, begin, end);
}

void TR_LOOP(update)(const tr_sweep *u, size_t begin, size_t end)
{
    if (u->ema)
        by_mask(u, true, begin, end);
    else
        by_mask(u, false, begin, end);
}
