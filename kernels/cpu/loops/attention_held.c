/* One query of attention that looks back on keys and values as they lie in a cache, and the sums of products of a vector
 * with rows, which it begins with: what generating a token is made of. Both read each row once, four at a time, so that
 * sums of different rows do not wait for each other; they are as fast as memory is.
 *
 * Keys go by in blocks, with the largest score, sum and weighted values so far (Milakov and Gimelshein 2018). */
#include "kernels/cpu/loops/vmath.h"

/* Asks for what is used some microseconds later: a CPU's own guesses come too late for rows that are done at the rate of
 * memory (bfloat16 on an AVX-512 machine: twice as fast so). Behind an array's end nothing happens. */
enum { AHEAD = 12288, LINE = 64 };
TR_INLINE void ask_ahead(const void *p, size_t nbytes)
{
    const char *at = (const char *)p + AHEAD;
    for (size_t i = 0; i < nbytes; i += LINE) __builtin_prefetch(at + i);
}

TR_INLINE float dot(tr_dtype t, const float *x, const void *row, size_t D)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < D; d++) sum += x[d] * tr_load(t, row, d);
    return sum;
}

TR_INLINE void dots_body(tr_dtype t, const float *x, const void *rows, size_t n, size_t D,
                         float *out)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const void *r0 = tr_from(t, rows, i * D), *r1 = tr_from(t, r0, D);
        const void *r2 = tr_from(t, r1, D), *r3 = tr_from(t, r2, D);
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
        ask_ahead(r0, 4 * D * (t == TR_BF16 ? 2 : 4));
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (size_t d = 0; d < D; d++) {
            const float v = x[d];
            s0 += v * tr_load(t, r0, d);
            s1 += v * tr_load(t, r1, d);
            s2 += v * tr_load(t, r2, d);
            s3 += v * tr_load(t, r3, d);
        }
        out[i] = s0, out[i + 1] = s1, out[i + 2] = s2, out[i + 3] = s3;
    }
    for (; i < n; i++) out[i] = dot(t, x, tr_from(t, rows, i * D), D);
}

void TR_LOOP(dots)(tr_dtype t, const float *x, const void *rows, size_t n, size_t D, float *out)
{
    TR_BY_TYPE(t, dots_body(T, x, rows, n, D, out));
}

TR_INLINE void add_act_body(tr_dtype t, tr_act act, const float *x, const float *bias, void *y,
                            size_t n)
{
    if (bias)
        TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, i, tr_vact(act, x[i] + bias[i]));
    else
        TR_SIMD for (size_t i = 0; i < n; i++) tr_store(t, y, i, tr_vact(act, x[i]));
}

void TR_LOOP(add_act)(tr_dtype t, tr_act act, const float *x, const float *bias, void *y, size_t n)
{
    TR_BY_TYPE_ACT(t, act, add_act_body(T, ACT, x, bias, y, n));
}

/* acc += sum of p[i] * row i. */
TR_INLINE void add_rows(tr_dtype t, const float *p, const void *rows, size_t n, size_t D,
                        float *acc)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const void *r0 = tr_from(t, rows, i * D), *r1 = tr_from(t, r0, D);
        const void *r2 = tr_from(t, r1, D), *r3 = tr_from(t, r2, D);
        const float p0 = p[i], p1 = p[i + 1], p2 = p[i + 2], p3 = p[i + 3];
        ask_ahead(r0, 4 * D * (t == TR_BF16 ? 2 : 4));
        TR_SIMD for (size_t d = 0; d < D; d++)
        {
            const float a = p0 * tr_load(t, r0, d) + p1 * tr_load(t, r1, d);
            acc[d] += a + (p2 * tr_load(t, r2, d) + p3 * tr_load(t, r3, d));
        }
    }
    for (; i < n; i++) {
        const void *row = tr_from(t, rows, i * D);
        const float factor = p[i];
        TR_SIMD for (size_t d = 0; d < D; d++) acc[d] += factor * tr_load(t, row, d);
    }
}

/* Scores of keys `first` on to probabilities, but for the factor that all have; returns their largest score, or `top`. */
TR_INLINE float soften(const tr_cpu_look_back *a, float slope, int64_t first, float *s, size_t n,
                       float top, float *sum)
{
    float most = -INFINITY, add = 0.0f;
    const float scale = a->scale, far = (float)(a->position - first);
#pragma omp simd reduction(max : most)
    for (int i = 0; i < (int)n; i++) {
        s[i] = s[i] * scale - slope * (far - (float)i);
        most = s[i] > most ? s[i] : most;
    }
    most = most > top ? most : top;
#pragma omp simd reduction(+ : add)
    for (size_t i = 0; i < n; i++) {
        s[i] = tr_vexp(s[i] - most);
        add += s[i];
    }
    *sum = add;
    return most;
}

TR_INLINE void look_back(tr_dtype t, const tr_cpu_look_back *a, const void *q, const void *keys,
                         const void *values, void *y, float *scratch)
{
    const size_t D = a->D;
    float *s = scratch, *x = s + TR_CPU_LOOK_BACK, *acc = x + a->heads * D;
    for (size_t d = 0; d < a->heads * D; d++) x[d] = tr_load(t, q, d), acc[d] = 0.0f;
    for (size_t h = 0; h < a->heads; h++) {
        const float slope = a->slopes ? a->slopes[h] : 0.0f;
        float top = -INFINITY;
        double sum = 0.0;
        for (int64_t at = a->begin; at < a->end; at += TR_CPU_LOOK_BACK) {
            const size_t n = tr_least((size_t)(a->end - at), TR_CPU_LOOK_BACK);
            float add;
            dots_body(t, x + h * D, tr_from(t, keys, (size_t)at * D), n, D, s);
            const float most = soften(a, slope, at, s, n, top, &add);
            const float fade = top == most ? 1.0f : tr_vexp(top - most);
            if (fade != 1.0f) TR_SIMD for (size_t d = 0; d < D; d++) acc[h * D + d] *= fade;
            sum = sum * (double)fade + (double)add;
            top = most;
            add_rows(t, s, tr_from(t, values, (size_t)at * D), n, D, acc + h * D);
        }
        const float inverse = sum == 0.0 ? 0.0f : (float)(1.0 / sum);
        for (size_t d = 0; d < D; d++) tr_store(t, y, h * D + d, acc[h * D + d] * inverse);
    }
}

void TR_LOOP(attention_held)(tr_dtype t, const tr_cpu_look_back *a, const void *q, const void *keys,
                             const void *values, void *y, float *scratch)
{
    TR_BY_TYPE(t, look_back(T, a, q, keys, values, y, scratch));
}
