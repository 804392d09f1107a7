/* What attention does to a tile of scores between its products, and to rows of what they give.
 *
 * A row sees a range of the tile's columns (tr_attention_keys); the others have probability 0. Sums
 * are in float32 over a row of a tile (at most 256 columns), in float64 over tiles. A NaN is not
 * seen by the maximum but makes the sum NaN, and with it the row. */
#include "kernels/cpu/loops/pairs.h"
#include "kernels/cpu/loops/philox.h"
#include "kernels/cpu/loops/vmath.h"

/* Columns of the tile that row r sees. */
TR_INLINE void seen_of(const tr_cpu_scores *a, int64_t r, int64_t *begin, int64_t *end)
{
    const tr_key_range k = tr_attention_keys(a->row + r, a->keys, a->causal, a->window);
    *begin = k.begin > a->column ? k.begin - a->column : 0;
    *end = k.end - a->column < a->columns ? k.end - a->column : a->columns;
    if (*begin > a->columns) *begin = a->columns;
    if (*end < *begin) *end = *begin;
}

static const float LOG2_E = 0x1.715476p0f;

/* A probability, with no sum of them 0: at least 2^-126. */
TR_INLINE float exp2_below(float x)
{
    return tr_vexp2_below(x, -126.0f);
}

/* ALiBi: turns the row's products in place into scores, scaled and less slope times the distance,
 * and returns 1. Otherwise leaves them, and returns the factor that is still to be applied, the
 * scale. */
TR_INLINE float bias_row(const tr_cpu_scores *a, int64_t r, float *s, int64_t begin, int64_t end)
{
    const int32_t to = (int32_t)(a->row + r - a->column);
    const float slope = a->slope, scale = a->scale;
    if (slope == 0.0f) return scale;
    TR_SIMD for (int32_t c = (int32_t)begin; c < (int32_t)end; c++)
    {
        const int32_t distance = to - c;
        s[c] = s[c] * scale - slope * (float)(distance < 0 ? -distance : distance);
    }
    return 1.0f;
}

/* keep[c] of columns [begin, end) of a row: 0 or 1 / (1 - p). Columns begin at a multiple of 4. */
TR_INLINE void keep_row(const tr_cpu_scores *a, int64_t r, int64_t begin, int64_t end, float *keep)
{
    uint32_t bits[4 * TR_PHILOX_BLOCKS];
    const int64_t size = 4 * TR_PHILOX_BLOCKS;
    const float drop = a->drop, value = a->keep;
    for (int64_t from = begin / size * size; from < end; from += size) {
        const int64_t n = end - from < size ? end - from : size;
        tr_philox_blocks(a->key, a->index + (uint64_t)r, (uint32_t)((a->column + from) / 4), bits);
        TR_SIMD for (int64_t c = 0; c < n; c++)
        {
            const float uniform = (float)(int32_t)(bits[c] >> 8) * 0x1p-24f;
            keep[from + c] = uniform >= drop ? value : 0.0f;
        }
    }
}

enum { COLUMNS = 256 }; /* of a tile at most */

TR_INLINE void zero(tr_dtype t, void *p, int64_t begin, int64_t end)
{
    memset(tr_into(t, p, (size_t)begin), 0, (size_t)(end - begin) * (t == TR_BF16 ? 2 : 4));
}

/* Largest score of one row. */
TR_INLINE float most_of(const float *s, int64_t begin, int64_t end)
{
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t c = begin; c < end; c++) most = s[c] > most ? s[c] : most;
    return most;
}

/* e = 2^(s factor - less) to p; returns the sum. */
TR_INLINE float exps_of(tr_dtype t, const float *s, void *p, int64_t begin, int64_t end,
                        float factor, float less)
{
    float add = 0.0f;
#pragma omp simd reduction(+ : add)
    for (int64_t c = begin; c < end; c++) {
        const float e = exp2_below(s[c] * factor - less);
        add += e;
        tr_store(t, p, (size_t)c, e);
    }
    return add;
}

/* The same of four rows, whose chains of additions then run side by side. */
enum { ROWS = 4 };
TR_INLINE void most_of_rows(const float *s, size_t pitch, int64_t begin, int64_t end, float *most)
{
    const float *s1 = s + pitch, *s2 = s1 + pitch, *s3 = s2 + pitch;
    float m0 = -INFINITY, m1 = m0, m2 = m0, m3 = m0;
#pragma omp simd reduction(max : m0, m1, m2, m3)
    for (int64_t c = begin; c < end; c++) {
        m0 = s[c] > m0 ? s[c] : m0;
        m1 = s1[c] > m1 ? s1[c] : m1;
        m2 = s2[c] > m2 ? s2[c] : m2;
        m3 = s3[c] > m3 ? s3[c] : m3;
    }
    most[0] = m0, most[1] = m1, most[2] = m2, most[3] = m3;
}

TR_INLINE void exps_of_rows(tr_dtype t, const float *s, void *p, size_t pitch, int64_t begin,
                            int64_t end, float factor, const float *less, float *add)
{
    const float *s1 = s + pitch, *s2 = s1 + pitch, *s3 = s2 + pitch;
    void *p1 = tr_into(t, p, pitch), *p2 = tr_into(t, p1, pitch), *p3 = tr_into(t, p2, pitch);
    const float l0 = less[0], l1 = less[1], l2 = less[2], l3 = less[3];
    float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
#pragma omp simd reduction(+ : a0, a1, a2, a3)
    for (int64_t c = begin; c < end; c++) {
        const float e0 = exp2_below(s[c] * factor - l0), e1 = exp2_below(s1[c] * factor - l1);
        const float e2 = exp2_below(s2[c] * factor - l2), e3 = exp2_below(s3[c] * factor - l3);
        a0 += e0, a1 += e1, a2 += e2, a3 += e3;
        tr_store(t, p, (size_t)c, e0);
        tr_store(t, p1, (size_t)c, e1);
        tr_store(t, p2, (size_t)c, e2);
        tr_store(t, p3, (size_t)c, e3);
    }
    add[0] = a0, add[1] = a1, add[2] = a2, add[3] = a3;
}

#ifdef __AVX512BW__
/* Columns [begin, end) of the rows, rounded to bfloat16. Probabilities are normal or no numbers,
 * and of these AVX512-BF16 makes what tr_round_bf16 does. */
__attribute__((target("avx512bf16"))) static void
round_rows(const float *s, tr_bf16 *p, size_t pitch, int64_t begin, int64_t end)
{
    for (int k = 0; k < ROWS; k++, s += pitch, p += pitch) {
        int64_t c = begin;
        for (; c + 32 <= end; c += 32)
            _mm512_storeu_si512(p + c, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(s + c + 16),
                                                                    _mm512_loadu_ps(s + c)));
        for (; c < end; c += 16) {
            const __mmask16 left = tr_pairs_lower((size_t)(end - c));
            const __m512 e = _mm512_maskz_loadu_ps(left, s + c);
            _mm256_mask_storeu_epi16(p + c, left, (__m256i)_mm512_cvtneps_pbh(e));
        }
    }
}
#endif

/* The exponentials of exps_of_rows, through s where the CPU rounds more of them at a time than
 * gcc's loop does. */
TR_INLINE void probs_by_rows(tr_dtype t, float *s, void *p, size_t pitch, int64_t begin,
                             int64_t end, float factor, const float *less, float *add)
{
#ifdef __AVX512BW__
    if (t == TR_BF16 && __builtin_cpu_supports("avx512bf16")) {
        exps_of_rows(TR_F32, s, s, pitch, begin, end, factor, less, add);
        round_rows(s, p, pitch, begin, end);
        return;
    }
#endif
    exps_of_rows(t, s, p, pitch, begin, end, factor, less, add);
}

/* Behind what a row sees, up to whole vectors where it is so long: what loops may read and write
 * there costs less than single columns; it is cleared then. */
enum { VECTOR = 16 };
TR_INLINE int64_t whole_vectors(const tr_cpu_scores *a, int64_t end)
{
    const int64_t to = (end + VECTOR - 1) / VECTOR * VECTOR;
    return to <= (int64_t)a->pitch ? to : end;
}

/* The range that rows [r, r + ROWS) see together, where each sees any: what one of them does not
 * see of it is made so small that it changes nothing. */
TR_INLINE bool range_of_rows(const tr_cpu_scores *a, int64_t r, float *s, int64_t *begin,
                             int64_t *end)
{
    int64_t from[ROWS], to[ROWS];
    *begin = a->columns, *end = 0;
    for (int k = 0; k < ROWS; k++) {
        seen_of(a, r + k, &from[k], &to[k]);
        if (from[k] == to[k]) return false;
        *begin = from[k] < *begin ? from[k] : *begin;
        *end = to[k] > *end ? to[k] : *end;
    }
    *end = whole_vectors(a, *end);
    for (int k = 0; k < ROWS; k++, s += a->pitch) {
        for (int64_t c = *begin; c < from[k]; c++) s[c] = -INFINITY;
        for (int64_t c = to[k]; c < *end; c++) s[c] = -INFINITY;
    }
    return true;
}

/* A row's new maximum, and what was added up before is times. Returns log2 of what its exponentials
 * are to be divided by. */
TR_INLINE float raise(float most, float *top, float *fade)
{
    most = most > *top ? most : *top;
    *fade = *top == most ? 1.0f : exp2_below((*top - most) * LOG2_E);
    *top = most;
    return most * LOG2_E;
}

/* Zeros where a row sees nothing. */
TR_INLINE void clear_unseen(tr_dtype t, const tr_cpu_scores *a, int64_t r, void *p)
{
    int64_t begin, end;
    seen_of(a, r, &begin, &end);
    zero(t, p, 0, begin);
    zero(t, p, end, a->columns);
}

TR_INLINE void probs_of_rows(tr_dtype t, const tr_cpu_scores *a, int64_t r, float *s, void *p,
                             int64_t begin, int64_t end, float *top, double *sum, float *fade)
{
    float most[ROWS], less[ROWS], add[ROWS];
    most_of_rows(s, a->pitch, begin, end, most);
    for (int k = 0; k < ROWS; k++) less[k] = raise(most[k] * a->scale, &top[k], &fade[k]);
    probs_by_rows(t, s, p, a->pitch, begin, end, a->scale * LOG2_E, less, add);
    for (int k = 0; k < ROWS; k++) {
        sum[k] = sum[k] * (double)fade[k] + (double)add[k];
        clear_unseen(t, a, r + k, tr_into(t, p, (size_t)k * a->pitch));
    }
}

TR_INLINE void probs_of_row(tr_dtype t, const tr_cpu_scores *a, int64_t r, float *s, void *p,
                            float *top, double *sum, float *fade)
{
    float keep[COLUMNS];
    int64_t begin, end;
    seen_of(a, r, &begin, &end);
    const float scale = bias_row(a, r, s, begin, end);
    const float less = raise(most_of(s, begin, end) * scale, top, fade);
    const float add = exps_of(t, s, p, begin, end, scale * LOG2_E, less);
    if (a->drop > 0.0f) {
        keep_row(a, r, begin, end, keep);
        TR_SIMD for (int64_t c = begin; c < end; c++)
            tr_store(t, p, (size_t)c, tr_load(t, p, (size_t)c) * keep[c]);
    }
    *sum = *sum * (double)*fade + (double)add;
    clear_unseen(t, a, r, p);
}

TR_INLINE void probs_body(tr_dtype t, const tr_cpu_scores *a, float *s, void *p, float *top,
                          double *sum, float *fade)
{
    const bool plain = a->slope == 0.0f && !(a->drop > 0.0f);
    for (int64_t r = 0; r < a->rows;) {
        const size_t at = (size_t)r * a->pitch;
        int64_t begin, end;
        if (plain && r + ROWS <= a->rows && range_of_rows(a, r, s + at, &begin, &end)) {
            probs_of_rows(t, a, r, s + at, tr_into(t, p, at), begin, end, top + r, sum + r,
                          fade + r);
            r += ROWS;
        } else {
            probs_of_row(t, a, r, s + at, tr_into(t, p, at), top + r, sum + r, fade + r);
            r++;
        }
    }
}

void TR_LOOP(attention_probs)(tr_dtype t, const tr_cpu_scores *a, float *s, void *p, float *top,
                              double *sum, float *fade)
{
    TR_BY_TYPE(t, probs_body(T, a, s, p, top, sum, fade));
}

TR_INLINE void grad_body(tr_dtype t, const tr_cpu_scores *a, float *s, float *dp, const float *lse,
                         const float *delta, void *p, void *ds)
{
    float keep[COLUMNS];
    for (int64_t r = 0; r < a->rows; r++) {
        float *sr = s + (size_t)r * a->pitch, *gr = dp + (size_t)r * a->pitch;
        void *pr = tr_into(t, p, (size_t)r * a->pitch), *dr = tr_into(t, ds, (size_t)r * a->pitch);
        const float less = lse[r] * LOG2_E, mean = delta[r], gain = a->scale;
        int64_t begin, end;
        seen_of(a, r, &begin, &end);
        const float factor = bias_row(a, r, sr, begin, end) * LOG2_E;
        if (a->drop > 0.0f) {
            keep_row(a, r, begin, end, keep);
            TR_SIMD for (int64_t c = begin; c < end; c++)
            {
                const float e = exp2_below(sr[c] * factor - less), k = keep[c];
                tr_store(t, dr, (size_t)c, e * (gr[c] * k - mean) * gain);
                tr_store(t, pr, (size_t)c, e * k);
            }
        } else {
            const int64_t to = whole_vectors(a, end);
            TR_SIMD for (int64_t c = begin; c < to; c++)
            {
                const float e = exp2_below(sr[c] * factor - less);
                tr_store(t, dr, (size_t)c, e * (gr[c] - mean) * gain);
                tr_store(t, pr, (size_t)c, e);
            }
        }
        zero(t, pr, 0, begin);
        zero(t, pr, end, a->columns);
        zero(t, dr, 0, begin);
        zero(t, dr, end, a->columns);
    }
}

void TR_LOOP(attention_grad)(tr_dtype t, const tr_cpu_scores *a, float *s, float *dp,
                             const float *lse, const float *delta, void *p, void *ds)
{
    TR_BY_TYPE(t, grad_body(T, a, s, dp, lse, delta, p, ds));
}

void TR_LOOP(attention_fade)(float *o, const float *fade, size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const float factor = fade[r];
        if (factor == 1.0f) continue;
        TR_SIMD for (size_t d = 0; d < D; d++) o[r * D + d] *= factor;
    }
}

/* Rows stand apart, each on a page of its own often, where no hardware looks ahead. */
enum { AHEAD = 12, LINE = 64 };
TR_INLINE void fetch(tr_dtype t, const void *row, size_t D)
{
    for (size_t at = 0; at < D * (t == TR_BF16 ? 2 : 4); at += LINE)
        __builtin_prefetch((const char *)row + at);
}

TR_INLINE void out_body(tr_dtype t, const float *o, size_t o_pitch, const float *top,
                        const double *sum, void *y, size_t pitch, float *lse, size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const float scale = sum[r] == 0.0 ? 0.0f : (float)(1.0 / sum[r]);
        void *yr = tr_into(t, y, r * pitch);
        if (r + AHEAD < rows) fetch(t, tr_into(t, yr, AHEAD * pitch), D);
        TR_SIMD for (size_t d = 0; d < D; d++) tr_store(t, yr, d, o[r * o_pitch + d] * scale);
        if (lse) lse[r] = (float)((double)top[r] + log(sum[r]));
    }
}

void TR_LOOP(attention_out)(tr_dtype t, const float *o, size_t o_pitch, const float *top,
                            const double *sum, void *y, size_t pitch, float *lse, size_t rows,
                            size_t D)
{
    TR_BY_TYPE(t, out_body(T, o, o_pitch, top, sum, y, pitch, lse, rows, D));
}

TR_INLINE void delta_body(tr_dtype t, const void *dy, const void *y, size_t pitch, float *delta,
                          size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const void *dyr = tr_from(t, dy, r * pitch), *yr = tr_from(t, y, r * pitch);
        if (r + AHEAD < rows) fetch(t, tr_from(t, yr, AHEAD * pitch), D);
        if (r + AHEAD < rows) fetch(t, tr_from(t, dyr, AHEAD * pitch), D);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t d = 0; d < D; d++) sum += tr_load(t, dyr, d) * tr_load(t, yr, d);
        delta[r] = sum;
    }
}

void TR_LOOP(attention_delta)(tr_dtype t, const void *dy, const void *y, size_t pitch, float *delta,
                              size_t rows, size_t D)
{
    TR_BY_TYPE(t, delta_body(T, dy, y, pitch, delta, rows, D));
}

TR_INLINE void rotate_body(tr_dtype t, const void *x, void *y, size_t pairs, size_t step,
                           size_t apart, const float *turn, float sign)
{
    TR_SIMD for (size_t k = 0; k < pairs; k++)
    {
        const float c = turn[k], s = turn[pairs + k] * sign;
        const float a = tr_load(t, x, step * k), b = tr_load(t, x, step * k + apart);
        tr_store(t, y, step * k, a * c - b * s);
        tr_store(t, y, step * k + apart, b * c + a * s);
    }
}

void TR_LOOP(rotate)(tr_dtype t, const void *x, void *y, size_t pairs, size_t apart,
                     const float *turn, float sign)
{
    if (apart == 0)
        TR_BY_TYPE(t, rotate_body(T, x, y, pairs, 2, 1, turn, sign));
    else
        TR_BY_TYPE(t, rotate_body(T, x, y, pairs, 1, apart, turn, sign));
}
