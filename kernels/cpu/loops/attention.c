/* What attention does to a tile of scores between its products, and to rows of what they give.
 *
 * A row sees a range of the tile's columns (tr_attention_keys); the others have probability 0. Sums are in float32 over a
 * row of a tile (at most 256 columns), in float64 over tiles. A NaN is not seen by the maximum but makes the sum NaN, and
 * with it the row. */
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

/* e^x of what lies below 0, or hardly above: tr_vexp without its care for large numbers; 0 below -87. */
TR_INLINE float exp_below(float x)
{
    const float magic = 0x1.8p23f;
    const float y = x < -87.0f ? -87.0f : x;
    const float t = y * 0x1.715476p0f + magic, n = t - magic;
    float r = y - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6dbc68p-10f;
    p = p * r + 0x1.124148p-7f;
    p = p * r + 0x1.555454p-5f;
    p = p * r + 0x1.555486p-3f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    p *= tr_float((tr_bits(t) - tr_bits(magic) + 127u) << 23);
    return x < -87.0f ? 0.0f : p;
}

/* Scores that distances take something off are scaled in place: then returns 1, else what scores are still times. */
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

TR_INLINE void probs_body(tr_dtype t, const tr_cpu_scores *a, float *s, void *p, float *top,
                          double *sum, float *fade)
{
    float keep[COLUMNS];
    for (int64_t r = 0; r < a->rows; r++) {
        float *sr = s + (size_t)r * a->pitch, most = -INFINITY, add = 0.0f;
        void *pr = tr_into(t, p, (size_t)r * a->pitch);
        int64_t begin, end;
        seen_of(a, r, &begin, &end);
        const float scale = bias_row(a, r, sr, begin, end);
#pragma omp simd reduction(max : most)
        for (int64_t c = begin; c < end; c++) most = sr[c] > most ? sr[c] : most;
        most = most * scale > top[r] ? most * scale : top[r];
        fade[r] = top[r] == most ? 1.0f : exp_below(top[r] - most);
        top[r] = most;
        if (a->drop > 0.0f) {
            keep_row(a, r, begin, end, keep);
#pragma omp simd reduction(+ : add)
            for (int64_t c = begin; c < end; c++) {
                const float e = exp_below(sr[c] * scale - most);
                add += e;
                tr_store(t, pr, (size_t)c, e * keep[c]);
            }
        } else {
#pragma omp simd reduction(+ : add)
            for (int64_t c = begin; c < end; c++) {
                const float e = exp_below(sr[c] * scale - most);
                add += e;
                tr_store(t, pr, (size_t)c, e);
            }
        }
        sum[r] = sum[r] * (double)fade[r] + (double)add;
        zero(t, pr, 0, begin);
        zero(t, pr, end, a->columns);
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
        const float less = lse[r], mean = delta[r], gain = a->scale;
        int64_t begin, end;
        seen_of(a, r, &begin, &end);
        const float scale = bias_row(a, r, sr, begin, end);
        if (a->drop > 0.0f) {
            keep_row(a, r, begin, end, keep);
            TR_SIMD for (int64_t c = begin; c < end; c++)
            {
                const float e = exp_below(sr[c] * scale - less), k = keep[c];
                tr_store(t, dr, (size_t)c, e * (gr[c] * k - mean) * gain);
                tr_store(t, pr, (size_t)c, e * k);
            }
        } else {
            TR_SIMD for (int64_t c = begin; c < end; c++)
            {
                const float e = exp_below(sr[c] * scale - less);
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

TR_INLINE void out_body(tr_dtype t, const float *o, const float *top, const double *sum, void *y,
                        size_t pitch, float *lse, size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const float scale = sum[r] == 0.0 ? 0.0f : (float)(1.0 / sum[r]);
        void *yr = tr_into(t, y, r * pitch);
        TR_SIMD for (size_t d = 0; d < D; d++) tr_store(t, yr, d, o[r * D + d] * scale);
        if (lse) lse[r] = (float)((double)top[r] + log(sum[r]));
    }
}

void TR_LOOP(attention_out)(tr_dtype t, const float *o, const float *top, const double *sum,
                            void *y, size_t pitch, float *lse, size_t rows, size_t D)
{
    TR_BY_TYPE(t, out_body(T, o, top, sum, y, pitch, lse, rows, D));
}

TR_INLINE void delta_body(tr_dtype t, const void *dy, const void *y, size_t pitch, float *delta,
                          size_t rows, size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const void *dyr = tr_from(t, dy, r * pitch), *yr = tr_from(t, y, r * pitch);
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
