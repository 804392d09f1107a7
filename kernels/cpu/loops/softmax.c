/* Softmax over rows of D and its gradient, cross entropy of one row, and matrix transposition.
 *
 * The largest logit is taken off first, so exp never overflows. A NaN in a row is not seen by the
 * maximum but makes the sum NaN, and so the whole row. */
#include "kernels/cpu/loops/vmath.h"

enum { BLOCK = 2048 };

TR_INLINE float largest(tr_dtype t, const void *x, size_t n)
{
    float m = -INFINITY;
#pragma omp simd reduction(max : m)
    for (size_t i = 0; i < n; i++) {
        float v = tr_load(t, x, i);
        m = v > m ? v : m;
    }
    return m;
}

TR_INLINE double sum_exp(tr_dtype t, const void *x, size_t n, float shift)
{
    double sum = 0.0;
    for (size_t from = 0; from < n; from += BLOCK) {
        size_t end = tr_least(n, from + BLOCK);
        float s = 0.0f;
#pragma omp simd reduction(+ : s)
        for (size_t i = from; i < end; i++) s += tr_vexp(tr_load(t, x, i) - shift);
        sum += (double)s;
    }
    return sum;
}

TR_INLINE void softmax_body(tr_dtype t, const void *x, void *y, size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const void *xr = tr_from(t, x, r * D);
        void *yr = tr_into(t, y, r * D);
        float m = largest(t, xr, D), scale = (float)(1.0 / sum_exp(t, xr, D, m));
        TR_SIMD for (size_t i = 0; i < D; i++)
            tr_store(t, yr, i, tr_vexp(tr_load(t, xr, i) - m) * scale);
    }
}

void TR_LOOP(softmax)(tr_dtype t, const void *x, void *y, size_t rows, size_t D)
{
    TR_BY_TYPE(t, softmax_body(T, x, y, rows, D));
}

TR_INLINE void softmax_grad_body(tr_dtype t, const void *dy, const void *y, void *dx, size_t rows,
                                 size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const void *dyr = tr_from(t, dy, r * D), *yr = tr_from(t, y, r * D);
        void *dxr = tr_into(t, dx, r * D);
        double dot = 0.0;
        for (size_t from = 0; from < D; from += BLOCK) {
            size_t end = tr_least(D, from + BLOCK);
            float s = 0.0f;
#pragma omp simd reduction(+ : s)
            for (size_t i = from; i < end; i++) s += tr_load(t, dyr, i) * tr_load(t, yr, i);
            dot += (double)s;
        }
        float mean = (float)dot;
        TR_SIMD for (size_t i = 0; i < D; i++)
            tr_store(t, dxr, i, tr_load(t, yr, i) * (tr_load(t, dyr, i) - mean));
    }
}

void TR_LOOP(softmax_grad)(tr_dtype t, const void *dy, const void *y, void *dx, size_t rows,
                           size_t D)
{
    TR_BY_TYPE(t, softmax_grad_body(T, dy, y, dx, rows, D));
}

/* ---- Cross entropy --------------------------------------------------------------------------- */

/* Rank of the true class, and the first of the largest. */
TR_INLINE void place(tr_dtype t, const void *z, size_t n, size_t label, float top, tr_xent *out)
{
    float mine = tr_load(t, z, label);
    int64_t above = 0, level = 0, first = (int64_t)n;
#pragma omp simd reduction(+ : above)
    for (size_t i = 0; i < n; i++) above += tr_load(t, z, i) > mine;
#pragma omp simd reduction(+ : level)
    for (size_t i = 0; i < label; i++) level += tr_load(t, z, i) == mine;
#pragma omp simd reduction(min : first)
    for (size_t i = 0; i < n; i++) {
        int64_t at = tr_load(t, z, i) == top ? (int64_t)i : (int64_t)n;
        first = at < first ? at : first;
    }
    out->rank = above + level;
    out->argmax = first < (int64_t)n ? first : 0;
}

/* What (1 - p)^gamma makes of a loss, `far` = -log p: the loss times it; returns what the gradient
 * is times: (1 - p)^gamma * (1 + gamma * p * far / (1 - p)). */
TR_INLINE double focus(double far, double gamma, double *loss)
{
    const double wrong = -expm1(-far), power = pow(wrong, gamma);
    *loss *= power;
    return wrong > 0.0 ? power * (1.0 + gamma * (1.0 - wrong) * far / wrong) : power;
}

/* dz_i = scale * ((1-s) w_label (p_i - [i = label]) + s/n (p_i sum w - w_i)) */
TR_INLINE tr_xent xent_body(tr_dtype t, const void *z, size_t n, size_t label, double smoothing,
                            double gamma, const double *weights, void *dz, float scale)
{
    tr_xent out;
    float top = largest(t, z, n);
    double total = sum_exp(t, z, n, top), weight = weights ? weights[label] : 1.0;
    double lse = log(total) + (double)top, all = 0.0, spread = smoothing / (double)n;
    place(t, z, n, label, top, &out);
    out.label = (int64_t)label;
    out.finite = isfinite(lse);
    out.loss = (1.0 - smoothing) * weight * (lse - (double)tr_load(t, z, label));
    if (gamma > 0.0) weight *= focus(lse - (double)tr_load(t, z, label), gamma, &out.loss);
    if (smoothing > 0.0) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++) {
            double w = weights ? weights[i] : 1.0;
            all += w;
            sum += w * (lse - (double)tr_load(t, z, i));
        }
        out.loss += spread * sum;
    }
    if (!dz) return out;
    float gain = (float)((double)scale * ((1.0 - smoothing) * weight + spread * all) / total);
    float hit = (float)((double)scale * (1.0 - smoothing) * weight);
    float each = (float)((double)scale * spread);
    float zl = tr_load(t, z, label), pl = tr_vexp(zl - top) * gain;
    float off = each * (weights ? (float)weights[label] : 1.0f);
    if (smoothing > 0.0 && weights) {
        TR_SIMD for (size_t i = 0; i < n; i++)
            tr_store(t, dz, i, tr_vexp(tr_load(t, z, i) - top) * gain - each * (float)weights[i]);
    } else {
        TR_SIMD for (size_t i = 0; i < n; i++)
            tr_store(t, dz, i, tr_vexp(tr_load(t, z, i) - top) * gain - each);
    }
    tr_store(t, dz, label, pl - hit - off);
    return out;
}

tr_xent TR_LOOP(xent)(tr_dtype t, const void *logits, size_t classes, size_t label,
                      double smoothing, double gamma, const double *weights, void *dlogits,
                      float scale)
{
    if (t == TR_BF16)
        return xent_body(TR_BF16, logits, classes, label, smoothing, gamma, weights, dlogits,
                         scale);
    return xent_body(TR_F32, logits, classes, label, smoothing, gamma, weights, dlogits, scale);
}

/* With shares q_i = w_i ((1-s) t_i + s/n): the loss is the sum of q_i * -log p_i, dz_i = scale *
 * (p_i sum q - q_i). What has no share counts nothing, however far away. */
TR_INLINE tr_xent xent_soft_body(tr_dtype t, const void *z, const float *target, size_t n,
                                 double smoothing, const double *weights, void *dz, float scale)
{
    tr_xent out = {.loss = 0.0};
    const float top = largest(t, z, n);
    const double total = sum_exp(t, z, n, top), lse = log(total) + (double)top;
    const double spread = smoothing / (double)n;
    double all = 0.0;
    size_t label = 0;
    for (size_t i = 0; i < n; i++) {
        const double q =
            ((1.0 - smoothing) * (double)target[i] + spread) * (weights ? weights[i] : 1.0);
        all += q;
        if (q != 0.0) out.loss += q * (lse - (double)tr_load(t, z, i));
        label = target[i] > target[label] ? i : label;
    }
    place(t, z, n, label, top, &out);
    out.label = (int64_t)label;
    out.finite = isfinite(lse);
    if (!isfinite(lse)) out.loss = NAN;
    if (!dz) return out;
    const float gain = (float)((double)scale * all / total);
    const float straight = scale * (float)(1.0 - smoothing), each = scale * (float)spread;
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        const float q = (straight * target[i] + each) * (weights ? (float)weights[i] : 1.0f);
        tr_store(t, dz, i, tr_vexp(tr_load(t, z, i) - top) * gain - q);
    }
    return out;
}

tr_xent TR_LOOP(xent_soft)(tr_dtype t, const void *logits, const float *target, size_t classes,
                           double smoothing, const double *weights, void *dlogits, float scale)
{
    if (t == TR_BF16)
        return xent_soft_body(TR_BF16, logits, target, classes, smoothing, weights, dlogits, scale);
    return xent_soft_body(TR_F32, logits, target, classes, smoothing, weights, dlogits, scale);
}

/* ---- Transposition --------------------------------------------------------------------------- */

enum { SIDE = 16 };

/* Square pieces, so that both sides touch whole cache lines. */
#define TRANSPOSE(type)                                                                            \
    for (size_t r0 = 0; r0 < rows; r0 += SIDE)                                                     \
        for (size_t c0 = 0; c0 < cols; c0 += SIDE) {                                               \
            size_t r1 = tr_least(rows, r0 + SIDE), c1 = tr_least(cols, c0 + SIDE);                 \
            for (size_t c = c0; c < c1; c++)                                                       \
                for (size_t r = r0; r < r1; r++)                                                   \
                    ((type *)y)[c * rows + r] = ((const type *)x)[r * cols + c];                   \
        }

void TR_LOOP(transpose)(size_t size, const void *x, void *y, size_t rows, size_t cols)
{
    if (size == 1) {
        TRANSPOSE(uint8_t)
    } else if (size == 2) {
        TRANSPOSE(uint16_t)
    } else {
        TRANSPOSE(uint32_t)
    }
}
