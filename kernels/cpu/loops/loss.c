/* Elementwise losses; sums in float64. */
#include "kernels/cpu/loops/vmath.h"

TR_INLINE double mse_body(tr_dtype t, const void *y, const float *target, void *dy, bool grad,
                          size_t n, float scale)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        float d = tr_load(t, y, i) - target[i];
        sum += (double)d * (double)d;
        if (grad) tr_store(t, dy, i, 2.0f * scale * d);
    }
    return sum;
}

double TR_LOOP(mse)(tr_dtype t, const void *y, const float *target, void *dy, size_t n, float scale)
{
    if (t == TR_BF16)
        return dy ? mse_body(TR_BF16, y, target, dy, true, n, scale)
                  : mse_body(TR_BF16, y, target, NULL, false, n, scale);
    return dy ? mse_body(TR_F32, y, target, dy, true, n, scale)
              : mse_body(TR_F32, y, target, NULL, false, n, scale);
}

/* l1, huber and smooth_l1: a parabola, and straight lines from |d| = delta on. */
TR_INLINE double robust_body(tr_dtype t, const tr_elementwise_loss_attrs *a, const void *y,
                             const float *target, void *dy, bool grad, size_t n, float scale)
{
    const float delta = a->delta, half = 0.5f * a->curve, slope = a->slope;
    const float curve = scale * a->curve, steep = scale * slope;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        float d = tr_load(t, y, i) - target[i], far = fabsf(d);
        sum += (double)(far < delta ? half * d * d : slope * (far - 0.5f * delta));
        if (grad) /* 0 and NaN stay */
            tr_store(t, dy, i,
                     far < delta ? curve * d : (d > 0.0f ? steep : (d < 0.0f ? -steep : d)));
    }
    return sum;
}

double TR_LOOP(robust)(const tr_elementwise_loss_attrs *a, tr_dtype t, const void *y,
                       const float *target, void *dy, size_t n, float scale)
{
    if (t == TR_BF16)
        return dy ? robust_body(TR_BF16, a, y, target, dy, true, n, scale)
                  : robust_body(TR_BF16, a, y, target, NULL, false, n, scale);
    return dy ? robust_body(TR_F32, a, y, target, dy, true, n, scale)
              : robust_body(TR_F32, a, y, target, NULL, false, n, scale);
}

/* max(z, 0) - z * target + log(1 + exp(-|z|)); with weights the last two terms are
 * (1 + (pos - 1) * target) * (log(1 + exp(-|z|)) + max(-z, 0)) + (1 - target) * z */
TR_INLINE double bce_body(tr_dtype t, const void *y, const float *target, const float *pos,
                          bool weighted, void *dy, bool grad, size_t n, float scale,
                          size_t *correct)
{
    double sum = 0.0;
    uint64_t right = 0;
#pragma omp simd reduction(+ : sum, right)
    for (size_t i = 0; i < n; i++) {
        float z = tr_load(t, y, i), goal = target[i], e = tr_vexp(-fabsf(z));
        float inverse = 1.0f / (1.0f + e);
        right += (z > 0.0f) == (goal > 0.5f) && z == z;
        if (weighted) {
            float counts = 1.0f + (pos[i] - 1.0f) * goal;
            float negative = z > 0.0f ? 0.0f : -z; /* NaN stays */
            sum += (double)counts * ((double)tr_vlog1p(e) + (double)negative) +
                   (1.0 - (double)goal) * (double)z;
            if (grad)
                tr_store(t, dy, i,
                         scale * (1.0f - goal - counts * (z < 0.0f ? inverse : e * inverse)));
        } else {
            float positive = z < 0.0f ? 0.0f : z; /* NaN stays */
            sum += (double)positive - (double)z * (double)goal + (double)tr_vlog1p(e);
            if (grad) tr_store(t, dy, i, scale * ((z < 0.0f ? e * inverse : inverse) - goal));
        }
    }
    *correct = right;
    return sum;
}

double TR_LOOP(bce)(tr_dtype t, const void *y, const float *target, const float *pos, void *dy,
                    size_t n, float scale, size_t *correct)
{
#define BCE(T, grad)                                                                               \
    (pos ? bce_body(T, y, target, pos, true, dy, grad, n, scale, correct)                          \
         : bce_body(T, y, target, NULL, false, dy, grad, n, scale, correct))
    if (t == TR_BF16) return dy ? BCE(TR_BF16, true) : BCE(TR_BF16, false);
    return dy ? BCE(TR_F32, true) : BCE(TR_F32, false);
#undef BCE
}

/* q = 1 - p_t: how wrong an output is. The gradient of q^gamma is gamma q^gamma * (1 - 2 target) p
 * (1 - p) / q, where the fraction stays up to 1 while q goes to 0. */
TR_INLINE double focal_body(tr_dtype t, const tr_elementwise_loss_attrs *a, const void *y,
                            const float *target, void *dy, bool grad, size_t n, float scale,
                            size_t *correct)
{
    const float gamma = a->gamma, alpha = a->alpha;
    double sum = 0.0;
    uint64_t right = 0;
    for (size_t i = 0; i < n; i++) {
        float z = tr_load(t, y, i), goal = target[i], e = tr_vexp(-fabsf(z));
        float inverse = 1.0f / (1.0f + e), p = z < 0.0f ? e * inverse : inverse;
        float other = z < 0.0f ? inverse : e * inverse; /* 1 - p, and exact where it is small */
        float positive = z < 0.0f ? 0.0f : z, loss = positive - z * goal + tr_vlog1p(e);
        float q = other * goal + p * (1.0f - goal);
        float power = gamma == 2.0f ? q * q : powf(q, gamma);
        float counts = alpha < 0.0f ? 1.0f : alpha * goal + (1.0f - alpha) * (1.0f - goal);
        sum += (double)(counts * power * loss);
        right += (z > 0.0f) == (goal > 0.5f) && z == z;
        if (!grad) continue;
        float slope = q > 0.0f ? gamma * (1.0f - 2.0f * goal) * p * (other / q) : 0.0f;
        tr_store(t, dy, i, scale * counts * power * (p - goal + loss * slope));
    }
    *correct = right;
    return sum;
}

double TR_LOOP(focal)(const tr_elementwise_loss_attrs *a, tr_dtype t, const void *y,
                      const float *target, void *dy, size_t n, float scale, size_t *correct)
{
    if (t == TR_BF16)
        return dy ? focal_body(TR_BF16, a, y, target, dy, true, n, scale, correct)
                  : focal_body(TR_BF16, a, y, target, NULL, false, n, scale, correct);
    return dy ? focal_body(TR_F32, a, y, target, dy, true, n, scale, correct)
              : focal_body(TR_F32, a, y, target, NULL, false, n, scale, correct);
}
