/* One query of attention that looks back on keys and values as they lie in a cache, and the sums of
 * products of a vector with rows, which it begins with: what generating a token is made of. Both
 * read each row once and one after the other, in the order in which they lie: of four side by side
 * a Zen 4 gets half as much from memory (14 GB/s, 29 so).
 *
 * Keys go by in blocks, with the largest score, sum and weighted values so far (Milakov and
 * Gimelshein 2018). */
#include "kernels/cpu/loops/lanes.h"
#include "kernels/cpu/loops/vmath.h"

#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* Two vectors of a row, of elements in this order: float32 as they lie; bfloat16 the first ones of
 * its words, then the second ones, as shifts and masks take them apart. */
typedef struct {
    tr_lanes a, b;
} two;
enum { TWO = 2 * TR_LANES };

TR_INLINE two load(tr_dtype t, const void *p, size_t i)
{
    typedef uint32_t words __attribute__((vector_size(TR_LANE_BYTES), aligned(2), may_alias));
    const float *wide = (const float *)p + i;
    if (t != TR_BF16) return (two){*(const tr_lanes *)wide, *(const tr_lanes *)(wide + TR_LANES)};
    const words w = *(const words *)(const void *)((const tr_bf16 *)p + i);
    return (two){(tr_lanes)(w << 16), (tr_lanes)(w & 0xffff0000u)};
}

/* One vector of a row, of elements as they lie: what is left of a row behind its pairs of
 * vectors. */
TR_INLINE tr_lanes load_one(tr_dtype t, const void *p, size_t i)
{
    typedef uint16_t halves __attribute__((vector_size(TR_LANE_BYTES / 2), aligned(2), may_alias));
    typedef uint32_t words __attribute__((vector_size(TR_LANE_BYTES)));
    if (t != TR_BF16) return *(const tr_lanes *)((const float *)p + i);
    const halves h = *(const halves *)(const void *)((const tr_bf16 *)p + i);
    return (tr_lanes)(__builtin_convertvector(h, words) << 16);
}

#if TR_LANE_BYTES == 64
#define FIRST  0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define SECOND 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW    0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif TR_LANE_BYTES == 32
#define FIRST  0, 2, 4, 6, 8, 10, 12, 14
#define SECOND 1, 3, 5, 7, 9, 11, 13, 15
#define LOW    0, 8, 1, 9, 2, 10, 3, 11
#define HIGH   4, 12, 5, 13, 6, 14, 7, 15
#else
#define FIRST  0, 2, 4, 6
#define SECOND 1, 3, 5, 7
#define LOW    0, 4, 1, 5
#define HIGH   2, 6, 3, 7
#endif

/* Of a vector of float32, in the order of rows of type t. */
TR_INLINE two load_for(tr_dtype t, const float *x)
{
    const two v = load(TR_F32, x, 0);
    return t == TR_BF16 ? (two){MIX(v.a, v.b, FIRST), MIX(v.a, v.b, SECOND)} : v;
}

TR_INLINE void store_for(tr_dtype t, float *x, two v)
{
    if (t == TR_BF16) v = (two){MIX(v.a, v.b, LOW), MIX(v.a, v.b, HIGH)};
    *(tr_lanes *)x = v.a;
    *(tr_lanes *)(x + TR_LANES) = v.b;
}

TR_INLINE four fold(tr_lanes v)
{
#if TR_LANE_BYTES == 64
    typedef float eight __attribute__((vector_size(32)));
    const eight h = MIX(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + MIX(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    return MIX(h, h, 0, 1, 2, 3) + MIX(h, h, 4, 5, 6, 7);
#elif TR_LANE_BYTES == 32
    return MIX(v, v, 0, 1, 2, 3) + MIX(v, v, 4, 5, 6, 7);
#else
    return v;
#endif
}

/* The sums of four vectors' elements. */
TR_INLINE four sums_of(const tr_lanes s[4])
{
    const four a = fold(s[0]), b = fold(s[1]), c = fold(s[2]), d = fold(s[3]);
    const four ab = MIX(a, b, 0, 4, 2, 6) + MIX(a, b, 1, 5, 3, 7);
    const four cd = MIX(c, d, 0, 4, 2, 6) + MIX(c, d, 1, 5, 3, 7);
    return MIX(ab, cd, 0, 1, 4, 5) + MIX(ab, cd, 2, 3, 6, 7);
}

/* Asks for what is used some microseconds later: a CPU's own guesses come too late for rows that
 * are done at the rate of memory (bfloat16 on an AVX-512 machine: twice as fast so). Where the rows
 * end, at `end`, it goes on at `then`. */
enum { AHEAD = 12288, LINE = 64 };
typedef struct {
    const char *end, *then;
} road;

TR_INLINE void ask_ahead(const road *r, const void *p, size_t nbytes)
{
    const char *at = (const char *)p + AHEAD;
    if (at >= r->end) at = r->then + (at - r->end);
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
                         const road *r, float *out)
{
    enum { ROWS = 4 };
    const size_t size = t == TR_BF16 ? 2 : 4, pairs = D / TWO * TWO,
                 whole = D / TR_LANES * TR_LANES;
    size_t i = 0;
    for (; i + ROWS <= n; i += ROWS) {
        const void *row[ROWS];
        tr_lanes s[ROWS];
        for (int k = 0; k < ROWS; k++) {
            two sum = {{0}, {0}};
            row[k] = tr_from(t, rows, (i + (size_t)k) * D);
            for (size_t d = 0; d < pairs; d += TWO) {
                const two v = load_for(t, x + d), w = load(t, row[k], d);
                ask_ahead(r, tr_from(t, row[k], d), TWO * size);
                sum.a += v.a * w.a;
                sum.b += v.b * w.b;
            }
            s[k] = sum.a + sum.b;
        }
        for (int k = 0; pairs < whole && k < ROWS; k++) {
            ask_ahead(r, tr_from(t, row[k], pairs), TR_LANES * size);
            s[k] += load_one(TR_F32, x, pairs) * load_one(t, row[k], pairs);
        }
        four sums = sums_of(s);
        for (size_t d = whole; d < D; d++)
            for (int k = 0; k < ROWS; k++) sums[k] += x[d] * tr_load(t, row[k], d);
        *(four *)(out + i) = sums;
    }
    for (; i < n; i++) out[i] = dot(t, x, tr_from(t, rows, i * D), D);
}

void TR_LOOP(dots)(tr_dtype t, const float *x, const void *rows, size_t n, size_t D, float *out)
{
    const road on = {(const char *)UINTPTR_MAX, NULL}; /* behind an array's end nothing happens */
    TR_BY_TYPE(t, dots_body(T, x, rows, n, D, &on, out));
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

/* Columns [d, d + C vectors) of what add_rows does; `asks`: for all of each row. */
TR_INLINE void add_columns(tr_dtype t, const int C, bool asks, const float *p, const void *rows,
                           size_t n, size_t D, size_t d, const road *r, float *acc)
{
    enum { MOST = 4 };
    const size_t size = t == TR_BF16 ? 2 : 4;
    two s[MOST];
    for (int c = 0; c < C; c++) s[c] = load_for(t, acc + d + (size_t)c * TWO);
    for (size_t i = 0; i < n; i++) {
        const void *row = tr_from(t, rows, i * D + d);
        if (asks) ask_ahead(r, row, D * size);
        for (int c = 0; c < C; c++) {
            const two w = load(t, row, (size_t)c * TWO);
            s[c].a += p[i] * w.a;
            s[c].b += p[i] * w.b;
        }
    }
    for (int c = 0; c < C; c++) store_for(t, acc + d + (size_t)c * TWO, s[c]);
}

/* The same of one vector of columns. */
TR_INLINE void add_lanes(tr_dtype t, const float *p, const void *rows, size_t n, size_t D, size_t d,
                         const road *r, float *acc)
{
    const size_t size = t == TR_BF16 ? 2 : 4;
    tr_lanes s = load_one(TR_F32, acc, d);
    for (size_t i = 0; i < n; i++) {
        const void *row = tr_from(t, rows, i * D + d);
        if (d == 0) ask_ahead(r, row, D * size);
        s += p[i] * load_one(t, row, 0);
    }
    *(tr_lanes *)(acc + d) = s;
}

/* acc += sum of p[i] * row i. */
TR_INLINE void add_rows(tr_dtype t, const float *p, const void *rows, size_t n, size_t D,
                        const road *r, float *acc)
{
    size_t d = 0;
    for (; d + 4 * TWO <= D; d += 4 * TWO) add_columns(t, 4, d == 0, p, rows, n, D, d, r, acc);
    for (; d + 2 * TWO <= D; d += 2 * TWO) add_columns(t, 2, d == 0, p, rows, n, D, d, r, acc);
    for (; d + TWO <= D; d += TWO) add_columns(t, 1, d == 0, p, rows, n, D, d, r, acc);
    for (; d + TR_LANES <= D; d += TR_LANES) add_lanes(t, p, rows, n, D, d, r, acc);
    for (size_t i = 0; d < D && i < n; i++) {
        const void *row = tr_from(t, rows, i * D);
        for (size_t e = d; e < D; e++) acc[e] += p[i] * tr_load(t, row, e);
    }
}

/* Scores of keys `first` on to probabilities, but for the factor that all have; returns their
 * largest score, or `top`. */
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
            const void *key = tr_from(t, keys, (size_t)at * D);
            const void *value = tr_from(t, values, (size_t)at * D);
            const road then_values = {tr_from(t, key, n * D), value};
            const road then_keys = {tr_from(t, value, n * D), then_values.end};
            float add;
            dots_body(t, x + h * D, key, n, D, &then_values, s);
            const float most = soften(a, slope, at, s, n, top, &add);
            const float fade = top == most ? 1.0f : tr_vexp(top - most);
            if (fade != 1.0f) TR_SIMD for (size_t d = 0; d < D; d++) acc[h * D + d] *= fade;
            sum = sum * (double)fade + (double)add;
            top = most;
            add_rows(t, s, value, n, D, &then_keys, acc + h * D);
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
