/* To 8 bits and back, at the rate of memory. The rounding is that of fake_quantize. */
#include "kernels/cpu/loops/vec.h"

TR_INLINE void quantize_body(tr_dtype t, bool is_signed, float least, float inverse, const void *x,
                             void *y, size_t n)
{
    const float most = is_signed ? 127.0f : 255.0f;
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        float v = tr_load(t, x, i) * inverse;
        v = v > least ? v : least; /* NaN too */
        v = v < most ? v : most;
        ((uint8_t *)y)[i] = (uint8_t)(int32_t)TR_NEAREST(v);
    }
}

void TR_LOOP(quantize)(tr_dtype t, bool is_signed, float least, float inverse, const void *x,
                       void *y, size_t n)
{
    if (is_signed)
        TR_BY_TYPE(t, quantize_body(T, true, least, inverse, x, y, n));
    else
        TR_BY_TYPE(t, quantize_body(T, false, least, inverse, x, y, n));
}

TR_INLINE void requantize_body(bool x_signed, bool y_signed, float factor, const void *x, void *y,
                               size_t n)
{
    const float least = y_signed ? -128.0f : 0.0f, most = least + 255;
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        float v =
            (float)(x_signed ? (int32_t)((const int8_t *)x)[i] : (int32_t)((const uint8_t *)x)[i]) *
            factor;
        v = v > least ? v : least;
        v = v < most ? v : most;
        ((uint8_t *)y)[i] = (uint8_t)(int32_t)TR_NEAREST(v);
    }
}

void TR_LOOP(requantize)(bool x_signed, bool y_signed, float factor, const void *x, void *y,
                         size_t n)
{
    if (x_signed && y_signed)
        requantize_body(true, true, factor, x, y, n);
    else if (x_signed)
        requantize_body(true, false, factor, x, y, n);
    else if (y_signed)
        requantize_body(false, true, factor, x, y, n);
    else
        requantize_body(false, false, factor, x, y, n);
}

TR_INLINE void dequantize_body(tr_dtype t, bool is_signed, float scale, const void *x, void *y,
                               size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++) tr_store(
        t, y, i,
        (float)(is_signed ? (int32_t)((const int8_t *)x)[i] : (int32_t)((const uint8_t *)x)[i]) *
            scale);
}

void TR_LOOP(dequantize)(tr_dtype t, bool is_signed, float scale, const void *x, void *y, size_t n)
{
    if (is_signed)
        TR_BY_TYPE(t, dequantize_body(T, true, scale, x, y, n));
    else
        TR_BY_TYPE(t, dequantize_body(T, false, scale, x, y, n));
}

void TR_LOOP(quantize_rows)(const float *x, float *y, size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++, x += D, y += D) {
        float most = 0;
        _Pragma("omp simd reduction(max : most)") for (size_t i = 0; i < D; i++)
        {
            const float v = fabsf(x[i]);
            most = v > most ? v : most;
        }
        const float scale = most > 1e-30f ? most / 127 : 1;
        TR_SIMD for (size_t i = 0; i < D; i++)
        {
            const float q = x[i] / scale;
            y[i] = TR_NEAREST(TR_CLAMP(q, -127.0f, 127.0f)) * scale; /* NaN stays */
        }
    }
}
