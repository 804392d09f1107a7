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

/* max(z, 0) - z * target + log(1 + exp(-|z|)) */
TR_INLINE double bce_body(tr_dtype t, const void *y, const float *target, void *dy, bool grad,
                          size_t n, float scale, size_t *correct)
{
    double sum = 0.0;
    uint64_t right = 0;
#pragma omp simd reduction(+ : sum, right)
    for (size_t i = 0; i < n; i++) {
        float z = tr_load(t, y, i), goal = target[i], e = tr_vexp(-fabsf(z));
        float inverse = 1.0f / (1.0f + e);
        float positive = z < 0.0f ? 0.0f : z; /* NaN stays */
        sum += (double)positive - (double)z * (double)goal + (double)tr_vlog1p(e);
        right += (z > 0.0f) == (goal > 0.5f) && z == z;
        if (grad) tr_store(t, dy, i, scale * ((z < 0.0f ? e * inverse : inverse) - goal));
    }
    *correct = right;
    return sum;
}

double TR_LOOP(bce)(tr_dtype t, const void *y, const float *target, void *dy, size_t n, float scale,
                    size_t *correct)
{
    if (t == TR_BF16)
        return dy ? bce_body(TR_BF16, y, target, dy, true, n, scale, correct)
                  : bce_body(TR_BF16, y, target, NULL, false, n, scale, correct);
    return dy ? bce_body(TR_F32, y, target, dy, true, n, scale, correct)
              : bce_body(TR_F32, y, target, NULL, false, n, scale, correct);
}
