/* A row of a model beside a teacher's: Kullback-Leibler divergence of two softmaxes, and squared
 * distance. */
#include "kernels/cpu/loops/vmath.h"

enum { BLOCK = 2048 };

/* Of the row times `inverse`: the largest value, and the sum of exp(value - largest). */
typedef struct {
    float top;
    double sum;
} softened;

TR_INLINE softened soften(tr_dtype t, const void *x, size_t n, float inverse)
{
    softened s = {-INFINITY, 0.0};
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (size_t i = 0; i < n; i++) {
        const float v = tr_load(t, x, i) * inverse;
        top = v > top ? v : top;
    }
    s.top = top;
    for (size_t from = 0; from < n; from += BLOCK) {
        const size_t end = tr_least(n, from + BLOCK);
        float some = 0.0f;
#pragma omp simd reduction(+ : some)
        for (size_t i = from; i < end; i++) some += tr_vexp(tr_load(t, x, i) * inverse - top);
        s.sum += (double)some;
    }
    return s;
}

/* sum p (log p - log q), with log p = z - top - log(sum): what differs between p and q is summed
 * apart from the logarithms. A class that the teacher rules out adds nothing. */
TR_INLINE double soft_body(tr_dtype t, const void *z, const void *teacher, size_t n, float inverse,
                           void *dz, float gain)
{
    const softened q = soften(t, z, n, inverse), p = soften(t, teacher, n, inverse);
    const float over_q = (float)(1.0 / q.sum), over_p = (float)(1.0 / p.sum);
    double sum = 0.0;
    for (size_t from = 0; from < n; from += BLOCK) {
        const size_t end = tr_least(n, from + BLOCK);
        float some = 0.0f;
#pragma omp simd reduction(+ : some)
        for (size_t i = from; i < end; i++) {
            const float a = tr_load(t, z, i) * inverse - q.top;
            const float b = tr_load(t, teacher, i) * inverse - p.top;
            const float part = tr_vexp(b) * over_p;
            some += part == 0.0f ? 0.0f : part * (b - a);
            if (dz) tr_store(t, dz, i, gain * (tr_vexp(a) * over_q - part));
        }
        sum += (double)some;
    }
    return sum + log(q.sum) - log(p.sum);
}

double TR_LOOP(soft)(tr_dtype t, const void *z, const void *teacher, size_t n, float inverse,
                     void *dz, float gain)
{
    if (t == TR_BF16)
        return dz ? soft_body(TR_BF16, z, teacher, n, inverse, dz, gain)
                  : soft_body(TR_BF16, z, teacher, n, inverse, NULL, gain);
    return dz ? soft_body(TR_F32, z, teacher, n, inverse, dz, gain)
              : soft_body(TR_F32, z, teacher, n, inverse, NULL, gain);
}

TR_INLINE double distance_body(tr_dtype t, const void *x, const void *teacher, size_t n, void *dx,
                               float gain)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        const float d = tr_load(t, x, i) - tr_load(t, teacher, i);
        sum += (double)d * (double)d;
        if (dx) tr_store(t, dx, i, gain * d);
    }
    return sum;
}

double TR_LOOP(distance)(tr_dtype t, const void *x, const void *teacher, size_t n, void *dx,
                         float gain)
{
    if (t == TR_BF16)
        return dx ? distance_body(TR_BF16, x, teacher, n, dx, gain)
                  : distance_body(TR_BF16, x, teacher, n, NULL, gain);
    return dx ? distance_body(TR_F32, x, teacher, n, dx, gain)
              : distance_body(TR_F32, x, teacher, n, NULL, gain);
}
