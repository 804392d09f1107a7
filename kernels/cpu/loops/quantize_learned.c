/* To 8 bits and back by a learned scale, and what its gradient is. The rounding is that of
 * fake_quantize. */
#include "kernels/cpu/loops/vec.h"

TR_INLINE void learned_body(tr_dtype t, float least, float most, float scale, const void *x,
                            void *y, size_t n)
{
    const float inverse = 1.0f / scale;
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        const float v = tr_load(t, x, i) * inverse;
        tr_store(t, y, i, TR_NEAREST(TR_CLAMP(v, least, most)) * scale); /* NaN stays */
    }
}

void TR_LOOP(learned)(tr_dtype t, const tr_learned_steps *steps, float scale, const void *x,
                      void *y, size_t n)
{
    TR_BY_TYPE(t, learned_body(T, steps->least, steps->most, scale, x, y, n));
}

enum { BLOCK = 4096 }; /* of a float32 sum */

TR_INLINE float grad_block(tr_dtype t, float least, float most, float scale, const void *dy,
                           const void *x, void *dx, bool add, size_t n)
{
    const float inverse = 1.0f / scale;
    float sum = 0;
    _Pragma("omp simd reduction(+ : sum)") for (size_t i = 0; i < n; i++)
    {
        const float v = tr_load(t, x, i) * inverse, d = tr_load(t, dy, i);
        const float q = TR_NEAREST(TR_CLAMP(v, least - 4, most + 4));
        sum += d * (q < least ? least : q > most ? most : q - v);
        if (dx)
            tr_store(t, dx, i,
                     (add ? tr_load(t, dx, i) : 0.0f) + (q < least || q > most ? 0.0f : d));
    }
    return sum;
}

TR_INLINE double grad_body(tr_dtype t, const tr_learned_steps *steps, float scale, const void *dy,
                           const void *x, void *dx, bool add, size_t n)
{
    double sum = 0;
    for (size_t at = 0; at < n; at += BLOCK)
        sum += (double)grad_block(t, steps->least, steps->most, scale, tr_from(t, dy, at),
                                  tr_from(t, x, at), dx ? tr_into(t, dx, at) : NULL, add,
                                  tr_least(BLOCK, n - at));
    return sum;
}

double TR_LOOP(learned_grad)(tr_dtype t, const tr_learned_steps *steps, float scale, const void *dy,
                             const void *x, void *dx, bool add, size_t n)
{
    double sum = 0;
    TR_BY_TYPE(t, sum = grad_body(T, steps, scale, dy, x, dx, add, n));
    return sum;
}
