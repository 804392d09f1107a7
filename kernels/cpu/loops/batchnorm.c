/* Batch normalization forward. Sums run in float32 over blocks of at most TR_BN_BLOCK wide rows and
 * are merged in float64 (Chan, Golub, LeVeque 1979). Each block's sums are taken about the mean so
 * far, which costs one pass; a block where that cancels more than 8 bits is summed again about its
 * own mean while in cache. */
#include "kernels/cpu/loops/batchnorm.h"

/* ---- Statistics ------------------------------------------------------------------------------ */

typedef struct {
    float sum[TR_BN_WIDTH], squares[TR_BN_WIDTH], shift[TR_BN_WIDTH];
} sums;

TR_INLINE void take(float x, float shift, float *sum, float *squares)
{
    const float d = x - shift;
    *sum += d;
    *squares += d * d;
}

#ifdef __AVX512BW__
TR_INLINE void sum_vector(tr_dtype t, const void *x, const tr_bn_shape *s, size_t rows, sums *a,
                          size_t e, tr_pairs_mask k)
{
    const size_t second = tr_bn_second(s);
    const tr_pairs shift = tr_pairs_floats(t, a->shift, e, second, k);
    tr_pairs sum = tr_pairs_floats(t, a->sum, e, second, k);
    tr_pairs squares = tr_pairs_floats(t, a->squares, e, second, k);
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++) {
        const tr_pairs d =
            tr_pairs_sub(tr_pairs_load(t, tr_from(t, x, r * s->stride), e, k), shift);
        sum = tr_pairs_add(sum, d);
        squares = tr_pairs_fma(d, d, squares);
    }
    tr_pairs_put(t, a->sum, e, second, k, sum);
    tr_pairs_put(t, a->squares, e, second, k, squares);
}
#endif

/* `rows` rows at once, so that the sums are loaded and stored once for all of them. */
TR_INLINE void sum_rows(tr_dtype t, const void *x, const tr_bn_shape *s, size_t done, size_t rows,
                        sums *a)
{
    const size_t second = tr_bn_second(s), paired = tr_paired(t, s->width);
    TR_SIMD for (size_t i = done / 2; i < paired / 2; i++)
    {
        const size_t j = second + i;
        const float shift = a->shift[i], shift2 = a->shift[j];
        float sum = a->sum[i], squares = a->squares[i], sum2 = a->sum[j], squares2 = a->squares[j];
#pragma GCC unroll 4
        for (size_t k = 0; k < rows; k++) {
            const void *row = tr_from(t, x, k * s->stride);
            take(tr_load_first(row, i), shift, &sum, &squares);
            take(tr_load_second(row, i), shift2, &sum2, &squares2);
        }
        a->sum[i] = sum;
        a->squares[i] = squares;
        a->sum[j] = sum2;
        a->squares[j] = squares2;
    }
    TR_SIMD for (size_t e = done > paired ? done : paired; e < s->width; e++)
    {
        const size_t c = tr_bn_single(t, e);
        float sum = a->sum[c], squares = a->squares[c];
#pragma GCC unroll 4
        for (size_t k = 0; k < rows; k++)
            take(tr_load(t, x, k * s->stride + e), a->shift[c], &sum, &squares);
        a->sum[c] = sum;
        a->squares[c] = squares;
    }
}

/* Up to TR_BN_TOGETHER rows at once, so that sums are loaded and stored once for all of them. */
TR_INLINE void sum_group(tr_dtype t, const void *x, const tr_bn_shape *s, size_t rows, sums *a)
{
    size_t done = 0;
#ifdef __AVX512BW__
    done = tr_pairs_done(t, s->width);
    TR_EACH_PAIRS(t, done, sum_vector(t, x, s, rows, a, e, k));
    if (done == s->width) return;
#endif
    if (rows == TR_BN_TOGETHER)
        sum_rows(t, x, s, done, TR_BN_TOGETHER, a);
    else
        for (size_t r = 0; r < rows; r++) sum_rows(t, tr_from(t, x, r * s->stride), s, done, 1, a);
}

TR_INLINE void sum_block(tr_dtype t, const void *x, const tr_bn_shape *s, size_t rows, sums *a)
{
    memset(a->sum, 0, s->width * sizeof(float));
    memset(a->squares, 0, s->width * sizeof(float));
    for (size_t r = 0; r < rows;) {
        const size_t take = tr_least(TR_BN_TOGETHER, rows - r);
        tr_bn_fetch(t, tr_from(t, x, r * s->stride), s, take);
        sum_group(t, tr_from(t, x, r * s->stride), s, take, a);
        r += take;
    }
}

/* Merges a block of n rows into mean and M2 of the `seen` rows before; false where it cancelled. */
static bool merge_block(const sums *a, size_t width, size_t n, size_t seen, bool force,
                        double *mean, double *m2)
{
    double count = (double)n, inverse = 1.0 / count, share = count / (double)(seen + n);
    if (!force) {
        int cancelled = 0;
#pragma omp simd reduction(+ : cancelled)
        for (size_t c = 0; c < width; c++) {
            float within = a->squares[c] - a->sum[c] * a->sum[c] * (float)inverse;
            cancelled += within * 256.0f < a->squares[c];
        }
        if (cancelled) return false;
    }
    TR_SIMD for (size_t c = 0; c < width; c++)
    {
        double sum = (double)a->sum[c], within = (double)a->squares[c] - sum * sum * inverse;
        double delta = (double)a->shift[c] + sum * inverse - mean[c];
        within = within < 0.0 ? 0.0 : within; /* rounding */
        m2[c] += within + delta * delta * share * (double)seen;
        mean[c] += delta * share;
    }
    return true;
}

/* mean and m2 by place in pairs. */
TR_INLINE void stats_tile(tr_dtype t, const void *x, const tr_bn_shape *s, double *mean, double *m2)
{
    sums a;
    float first[TR_BN_WIDTH];
    for (size_t e = 0; e < s->width; e++) first[e] = s->rows ? tr_load(t, x, e) : 0.0f;
    tr_bn_to_pairs(t, s->width, first, a.shift);
    for (size_t c = 0; c < s->width; c++) mean[c] = m2[c] = 0.0;
    for (size_t r = 0; r < s->rows; r += TR_BN_BLOCK) {
        size_t n = tr_least(TR_BN_BLOCK, s->rows - r);
        const void *block = tr_from(t, x, r * s->stride);
        sum_block(t, block, s, n, &a);
        if (!merge_block(&a, s->width, n, r, false, mean, m2)) {
            for (size_t c = 0; c < s->width; c++) a.shift[c] += a.sum[c] / (float)n;
            sum_block(t, block, s, n, &a);
            merge_block(&a, s->width, n, r, true, mean, m2);
        }
        TR_SIMD for (size_t c = 0; c < s->width; c++) a.shift[c] = (float)mean[c];
    }
}

/* Chan's merge of C channels: n rows' mean and M2 take in those of k more. Returns the rows of
 * both. */
static double merge_rows(double n, size_t C, double *mean, double *m2, double k,
                         const double *other, const double *other_m2)
{
    const double all = n + k, share = k / all, spread = n * k / all;
    if (k == 0.0) return n;
    TR_SIMD for (size_t c = 0; c < C; c++)
    {
        const double delta = other[c] - mean[c];
        mean[c] += delta * share;
        m2[c] += other_m2[c] + delta * delta * spread;
    }
    return all;
}

void TR_LOOP(bn_stats)(tr_dtype t, const void *x, size_t rows, size_t C, double *mean, double *m2)
{
    double wide_mean[TR_BN_WIDTH], wide_m2[TR_BN_WIDTH], by_pairs[2][TR_BN_WIDTH];
    for (size_t from = 0; from < C;) {
        const tr_bn_shape s = tr_bn_shape_of(rows, C, from);
        const size_t width = s.width / s.fold;
        double n = 0.0;
        TR_BY_TYPE(t, stats_tile(T, tr_from(T, x, from), &s, by_pairs[0], by_pairs[1]));
        tr_bn_from_pairs(t, s.width, by_pairs[0], wide_mean);
        tr_bn_from_pairs(t, s.width, by_pairs[1], wide_m2);
        memset(mean + from, 0, width * sizeof *mean);
        memset(m2 + from, 0, width * sizeof *m2);
        for (size_t f = 0; f < s.fold; f++)
            n = merge_rows(n, width, mean + from, m2 + from, (double)s.rows, wide_mean + f * width,
                           wide_m2 + f * width);
        memset(wide_m2, 0, width * sizeof *wide_m2);
        for (size_t r = rows - s.rest; r < rows; r++) { /* one by one */
            for (size_t c = 0; c < width; c++)
                wide_mean[c] = (double)tr_load(t, x, r * C + from + c);
            n = merge_rows(n, width, mean + from, m2 + from, 1.0, wide_mean, wide_m2);
        }
        from += width;
    }
}

/* ---- Normalization --------------------------------------------------------------------------- */

/* A row of n elements. */
typedef struct {
    const void *x, *residual;
    void *y;
    size_t n;
} normalized;

#ifdef __AVX512BW__
TR_INLINE void apply_vector(tr_dtype t, tr_act act, const normalized *o, bool has,
                            const float *scale, const float *shift, size_t second, size_t e,
                            tr_pairs_mask k)
{
    const tr_pairs a = tr_pairs_floats(t, scale, e, second, k);
    const tr_pairs b = tr_pairs_floats(t, shift, e, second, k);
    tr_pairs v = tr_pairs_fma(tr_pairs_load(t, o->x, e, k), a, b);
    if (has) v = tr_pairs_add(v, tr_pairs_load(t, o->residual, e, k));
    if (act == TR_ACT_RELU) v = tr_pairs_relu(v);
    tr_pairs_store(t, o->y, e, k, v);
}

/* Returns the elements done: all, or none of an activation that is not of a few instructions. */
TR_INLINE size_t apply_vectors(tr_dtype t, tr_act act, const normalized *o, bool has,
                               const float *scale, const float *shift, size_t second)
{
    const size_t done = tr_pairs_done(t, o->n);
    if (act != TR_ACT_NONE && act != TR_ACT_RELU) return 0;
    TR_EACH_PAIRS(t, done, apply_vector(t, act, o, has, scale, shift, second, e, k));
    return done;
}
#endif

TR_INLINE void apply_row(tr_dtype t, tr_act act, const normalized *o, bool has, const float *scale,
                         const float *shift, size_t second)
{
    const size_t n = o->n, paired = tr_paired(t, n);
    size_t done = 0;
#ifdef __AVX512BW__
    done = apply_vectors(t, act, o, has, scale, shift, second);
    if (done == n) return;
#endif
    TR_SIMD for (size_t i = done / 2; i < paired / 2; i++)
    {
        float v = tr_load_first(o->x, i) * scale[i] + shift[i];
        float v2 = tr_load_second(o->x, i) * scale[second + i] + shift[second + i];
        if (has) {
            v += tr_load_first(o->residual, i);
            v2 += tr_load_second(o->residual, i);
        }
        tr_store_pair(o->y, i, tr_vact(act, v), tr_vact(act, v2));
    }
    TR_SIMD for (size_t e = done > paired ? done : paired; e < n; e++)
    {
        const size_t c = tr_bn_single(t, e);
        float v = tr_load(t, o->x, e) * scale[c] + shift[c];
        if (has) v += tr_load(t, o->residual, e);
        tr_store(t, o->y, e, tr_vact(act, v));
    }
}

TR_INLINE void apply_rows(tr_dtype t, tr_act act, const void *x, size_t pitch, const void *residual,
                          bool has, const float *scale, const float *shift, void *y,
                          const tr_bn_shape *s)
{
    for (size_t r = 0; r <= s->rows; r++) {
        const normalized o = {.x = tr_from(t, x, r * pitch),
                              .residual = has ? tr_from(t, residual, r * s->stride) : NULL,
                              .y = tr_into(t, y, r * s->stride),
                              .n = tr_bn_count(s, r)};
        apply_row(t, act, &o, has, scale, shift, tr_bn_second(s));
    }
}

TR_INLINE void apply_body(tr_dtype t, tr_act act, const void *x, size_t pitch, const void *residual,
                          const float *scale, const float *shift, void *y, const tr_bn_shape *s)
{
    if (residual)
        apply_rows(t, act, x, pitch, residual, true, scale, shift, y, s);
    else
        apply_rows(t, act, x, pitch, NULL, false, scale, shift, y, s);
}

void TR_LOOP(bn_apply)(tr_dtype t, tr_act act, const void *x, size_t pitch, const void *residual,
                       const float *scale, const float *shift, void *y, size_t rows, size_t C)
{
    float wide_scale[TR_BN_WIDTH], wide_shift[TR_BN_WIDTH];
    for (size_t from = 0; from < C;) {
        /* rows that stand apart are taken one by one */
        const tr_bn_shape s =
            pitch == C ? tr_bn_shape_of(rows, C, from) : tr_bn_shape_apart(rows, C, from);
        tr_bn_repeat_stored(t, &s, scale, from, wide_scale);
        tr_bn_repeat_stored(t, &s, shift, from, wide_shift);
        TR_BY_TYPE_ACT(t, act,
                       apply_body(T, ACT, tr_from(T, x, from), pitch == C ? s.stride : pitch,
                                  residual ? tr_from(T, residual, from) : NULL, wide_scale,
                                  wide_shift, tr_into(T, y, from), &s));
        from += s.width / s.fold;
    }
}
