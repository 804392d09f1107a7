/* Ranges of values, and sums of products of them times scales that were found at run time. */
#include "kernels/cpu/loops/vmath.h"

TR_INLINE float largest_body(tr_dtype t, bool is_signed, const void *x, size_t n)
{
    float most = 0;
    _Pragma("omp simd reduction(max : most)") for (size_t i = 0; i < n; i++)
    {
        const float v = is_signed ? fabsf(tr_load(t, x, i)) : tr_load(t, x, i);
        most = v > most ? v : most;
    }
    return most;
}

float TR_LOOP(largest)(tr_dtype t, bool is_signed, const void *x, size_t n)
{
    if (t == TR_F32)
        return is_signed ? largest_body(TR_F32, true, x, n) : largest_body(TR_F32, false, x, n);
    return is_signed ? largest_body(TR_BF16, true, x, n) : largest_body(TR_BF16, false, x, n);
}

/* fmaf: the same bits at every level, but for what an activation makes of them. */
TR_INLINE void row(tr_dtype t, tr_act act, const float *x, float scale, const float *bias,
                   const void *residual, void *y, size_t C)
{
    TR_SIMD for (size_t c = 0; c < C; c++)
    {
        float v = fmaf(x[c], scale, bias ? bias[c] : 0.0f);
        if (residual) v += tr_load(t, residual, c);
        tr_store(t, y, c, tr_vact(act, v));
    }
}

TR_INLINE void rescale_body(tr_dtype t, tr_act act, const float *x, const float *scale,
                            size_t places, const float *bias, const void *residual, void *y,
                            size_t rows, size_t C)
{
    for (size_t r = 0; r < rows; r++) {
        const float *from = x + r * C;
        const float s = scale[r / places];
        const void *add = residual ? tr_from(t, residual, r * C) : NULL;
        void *to = tr_into(t, y, r * C);
        if (bias && add)
            row(t, act, from, s, bias, add, to, C);
        else if (bias)
            row(t, act, from, s, bias, NULL, to, C);
        else
            row(t, act, from, s, NULL, add, to, C);
    }
}

void TR_LOOP(rescale)(tr_dtype t, tr_act act, const float *x, const float *scale, size_t places,
                      const float *bias, const void *residual, void *y, size_t rows, size_t C)
{
    TR_BY_TYPE_ACT(t, act, rescale_body(T, ACT, x, scale, places, bias, residual, y, rows, C));
}
