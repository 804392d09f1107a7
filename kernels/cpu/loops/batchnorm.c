/* Batch normalization over rows of C contiguous channels (channels last).
 *
 * Rows narrower than a few vectors are taken several at a time: `fold` rows become one wide row
 * whose width is a multiple of 16 floats, with the coefficients repeated. Rows wider than WIDTH are
 * cut into tiles. Sums run in float32 over blocks of at most BLOCK wide rows and are merged in
 * float64 (Chan, Golub, LeVeque 1979). Each block's sums are taken about the mean so far, which
 * costs one pass; a block where that cancels more than 8 bits is summed again about its own mean
 * while in cache. */
#include "kernels/cpu/loops/vmath.h"

enum { WIDTH = 512, BLOCK = 64, TOGETHER = 4 };

typedef struct {
    size_t fold, width, stride, rows, rest; /* wide rows; channels rows that are left over */
} shape;

/* How rows of C channels are walked, from channel `from` on. */
static shape shape_of(size_t rows, size_t C, size_t from)
{
    shape s = {.fold = 1, .width = tr_least(C - from, WIDTH), .stride = C, .rows = rows};
    size_t odd = 16; /* rows until the width is a multiple of 16 */
    while (odd > 1 && (odd / 2 * C) % 16 == 0) odd /= 2;
    if (C * odd <= WIDTH && C < 128) {
        while (s.fold * C < 128 && (s.fold + odd) * C <= WIDTH)
            s.fold += s.fold < odd ? odd - 1 : odd;
        s.width = s.stride = s.fold * C;
        s.rows = rows / s.fold;
        s.rest = rows % s.fold;
    }
    return s;
}

/* Coefficients of the tile, repeated over the folded rows. */
static void repeat(const shape *s, const float *c, size_t from, float wide[WIDTH])
{
    size_t C = s->width / s->fold;
    for (size_t f = 0; f < s->fold; f++) memcpy(wide + f * C, c + from, C * sizeof *c);
}

/* ---- Statistics ------------------------------------------------------------------------------ */

typedef struct {
    float sum[WIDTH], squares[WIDTH], shift[WIDTH];
} sums;

TR_INLINE void sum_rows(tr_dtype t, const void *x, size_t width, size_t stride, size_t rows,
                        sums *a)
{
    memset(a->sum, 0, width * sizeof(float));
    memset(a->squares, 0, width * sizeof(float));
    size_t r = 0;
    for (; r + TOGETHER <= rows; r += TOGETHER) {
        TR_SIMD for (size_t c = 0; c < width; c++)
        {
            float sum = a->sum[c], squares = a->squares[c], shift = a->shift[c];
#pragma GCC unroll 4
            for (size_t k = 0; k < TOGETHER; k++) {
                float d = tr_load(t, x, (r + k) * stride + c) - shift;
                sum += d;
                squares += d * d;
            }
            a->sum[c] = sum;
            a->squares[c] = squares;
        }
    }
    for (; r < rows; r++) {
        TR_SIMD for (size_t c = 0; c < width; c++)
        {
            float d = tr_load(t, x, r * stride + c) - a->shift[c];
            a->sum[c] += d;
            a->squares[c] += d * d;
        }
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

TR_INLINE void stats_tile(tr_dtype t, const void *x, const shape *s, double *mean, double *m2)
{
    sums a;
    for (size_t c = 0; c < s->width; c++) {
        mean[c] = m2[c] = 0.0;
        a.shift[c] = s->rows ? tr_load(t, x, c) : 0.0f;
    }
    for (size_t r = 0; r < s->rows; r += BLOCK) {
        size_t n = tr_least(BLOCK, s->rows - r);
        const void *block = tr_from(t, x, r * s->stride);
        sum_rows(t, block, s->width, s->stride, n, &a);
        if (!merge_block(&a, s->width, n, r, false, mean, m2)) {
            for (size_t c = 0; c < s->width; c++) a.shift[c] += a.sum[c] / (float)n;
            sum_rows(t, block, s->width, s->stride, n, &a);
            merge_block(&a, s->width, n, r, true, mean, m2);
        }
        TR_SIMD for (size_t c = 0; c < s->width; c++) a.shift[c] = (float)mean[c];
    }
}

/* Chan's merge of one channel: (n, mean, m2) takes in (k, other, other_m2). */
static void merge_one(double *n, double *mean, double *m2, double k, double other, double other_m2)
{
    if (k == 0.0) return;
    double all = *n + k, delta = other - *mean;
    *mean += delta * (k / all);
    *m2 += other_m2 + delta * delta * (*n * k / all);
    *n = all;
}

void TR_LOOP(bn_stats)(tr_dtype t, const void *x, size_t rows, size_t C, double *mean, double *m2)
{
    double wide_mean[WIDTH], wide_m2[WIDTH];
    for (size_t from = 0; from < C;) {
        shape s = shape_of(rows, C, from);
        if (s.fold == 1) {
            TR_BY_TYPE(t, stats_tile(T, tr_from(T, x, from), &s, mean + from, m2 + from));
            from += s.width;
            continue;
        }
        TR_BY_TYPE(t, stats_tile(T, x, &s, wide_mean, wide_m2));
        for (size_t c = 0; c < C; c++) {
            double n = 0.0;
            mean[c] = m2[c] = 0.0;
            for (size_t f = 0; f < s.fold; f++)
                merge_one(&n, mean + c, m2 + c, (double)s.rows, wide_mean[f * C + c],
                          wide_m2[f * C + c]);
            for (size_t r = rows - s.rest; r < rows; r++)
                merge_one(&n, mean + c, m2 + c, 1.0, (double)tr_load(t, x, r * C + c), 0.0);
        }
        break;
    }
}

/* ---- Forward --------------------------------------------------------------------------------- */

TR_INLINE void apply_row(tr_dtype t, tr_act act, const void *x, const void *residual, bool has,
                         const float *scale, const float *shift, void *y, size_t n)
{
    TR_SIMD for (size_t c = 0; c < n; c++)
    {
        float v = tr_load(t, x, c) * scale[c] + shift[c];
        if (has) v += tr_load(t, residual, c);
        tr_store(t, y, c, tr_vact(act, v));
    }
}

TR_INLINE void apply_rows(tr_dtype t, tr_act act, const void *x, const void *residual, bool has,
                          const float *scale, const float *shift, void *y, const shape *s)
{
    for (size_t r = 0; r <= s->rows; r++) {
        size_t at = r * s->stride, n = r < s->rows ? s->width : s->rest * (s->width / s->fold);
        apply_row(t, act, tr_from(t, x, at), has ? tr_from(t, residual, at) : NULL, has, scale,
                  shift, tr_into(t, y, at), n);
    }
}

TR_INLINE void apply_body(tr_dtype t, tr_act act, const void *x, const void *residual,
                          const float *scale, const float *shift, void *y, const shape *s)
{
    if (residual)
        apply_rows(t, act, x, residual, true, scale, shift, y, s);
    else
        apply_rows(t, act, x, NULL, false, scale, shift, y, s);
}

void TR_LOOP(bn_apply)(tr_dtype t, tr_act act, const void *x, const void *residual,
                       const float *scale, const float *shift, void *y, size_t rows, size_t C)
{
    float wide_scale[WIDTH], wide_shift[WIDTH];
    for (size_t from = 0; from < C;) {
        shape s = shape_of(rows, C, from);
        repeat(&s, scale, from, wide_scale);
        repeat(&s, shift, from, wide_shift);
        TR_BY_TYPE_ACT(t, act,
                       apply_body(T, ACT, tr_from(T, x, from),
                                  residual ? tr_from(T, residual, from) : NULL, wide_scale,
                                  wide_shift, tr_into(T, y, from), &s));
        from += s.width / s.fold;
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

typedef struct {
    float d[WIDTH], dx[WIDTH], mean[WIDTH];
} grads;

/* `take` rows at once, so that the sums are loaded and stored once for all of them. */
TR_INLINE void grad_rows(tr_dtype t, size_t take, const void *dy, const void *dy2, const void *y,
                         const void *x, void *dz, size_t width, size_t stride, grads *a)
{
    TR_SIMD for (size_t c = 0; c < width; c++)
    {
        float sum_d = a->d[c], sum_dx = a->dx[c], mean = a->mean[c];
#pragma GCC unroll 4
        for (size_t k = 0; k < take; k++) {
            size_t i = k * stride + c;
            float d = tr_load(t, dy, i);
            if (dy2) d += tr_load(t, dy2, i);
            if (y) d = tr_load(t, y, i) > 0.0f ? d : 0.0f;
            if (dz) tr_store(t, dz, i, d);
            sum_d += d;
            sum_dx += d * (tr_load(t, x, i) - mean);
        }
        a->d[c] = sum_d;
        a->dx[c] = sum_dx;
    }
}

TR_INLINE void grad_tile(tr_dtype t, const void *dy, const void *dy2, const void *y, const void *x,
                         void *dz, const shape *s, grads *a, double *sum_d, double *sum_dx)
{
    for (size_t c = 0; c < s->width; c++) sum_d[c] = sum_dx[c] = 0.0;
    size_t tail = s->rest ? 1 : 0; /* the left-over rows, as one narrower row */
    for (size_t r = 0; r < s->rows + tail;) {
        size_t end = r < s->rows ? tr_least(r + BLOCK, s->rows) : r + 1;
        size_t width = r < s->rows ? s->width : s->rest * (s->width / s->fold);
        memset(a->d, 0, width * sizeof(float));
        memset(a->dx, 0, width * sizeof(float));
        while (r < end) {
            size_t at = r * s->stride;
            const void *dyr = tr_from(t, dy, at), *xr = tr_from(t, x, at);
            const void *dy2r = dy2 ? tr_from(t, dy2, at) : NULL, *yr = y ? tr_from(t, y, at) : NULL;
            void *dzr = dz ? tr_into(t, dz, at) : NULL;
            if (r + TOGETHER <= end) {
                grad_rows(t, TOGETHER, dyr, dy2r, yr, xr, dzr, width, s->stride, a);
                r += TOGETHER;
            } else {
                grad_rows(t, 1, dyr, dy2r, yr, xr, dzr, width, s->stride, a);
                r++;
            }
        }
        TR_SIMD for (size_t c = 0; c < width; c++)
        {
            sum_d[c] += (double)a->d[c];
            sum_dx[c] += (double)a->dx[c];
        }
    }
}

/* One plain loop for each set of operands. */
TR_INLINE void grad_body(tr_dtype t, const void *dy, const void *dy2, const void *y, const void *x,
                         void *dz, const shape *s, grads *a, double *sum_d, double *sum_dx)
{
    if (dy2 && y)
        grad_tile(t, dy, dy2, y, x, dz, s, a, sum_d, sum_dx);
    else if (dy2)
        grad_tile(t, dy, dy2, NULL, x, dz, s, a, sum_d, sum_dx);
    else if (y)
        grad_tile(t, dy, NULL, y, x, dz, s, a, sum_d, sum_dx);
    else
        grad_tile(t, dy, NULL, NULL, x, NULL, s, a, sum_d, sum_dx);
}

void TR_LOOP(bn_grad_stats)(tr_dtype t, const void *dy, const void *dy2, const void *y,
                            const void *x, const float *mean, void *dz, size_t rows, size_t C,
                            double *sum_d, double *sum_dx)
{
    grads a;
    double wide_d[WIDTH], wide_dx[WIDTH];
    for (size_t from = 0; from < C;) {
        shape s = shape_of(rows, C, from);
        repeat(&s, mean, from, a.mean);
        TR_BY_TYPE(t, grad_body(T, tr_from(T, dy, from), dy2 ? tr_from(T, dy2, from) : NULL,
                                y ? tr_from(T, y, from) : NULL, tr_from(T, x, from),
                                dz ? tr_into(T, dz, from) : NULL, &s, &a, wide_d, wide_dx));
        size_t width = s.width / s.fold;
        for (size_t c = 0; c < width; c++) {
            sum_d[from + c] = sum_dx[from + c] = 0.0;
            for (size_t f = 0; f < s.fold; f++) {
                sum_d[from + c] += wide_d[f * width + c];
                sum_dx[from + c] += wide_dx[f * width + c];
            }
        }
        from += width;
    }
}

TR_INLINE void grad_input_rows(tr_dtype t, const void *dz, const void *x, const float *a,
                               const float *b, const float *c0, void *dx, const shape *s)
{
    for (size_t r = 0; r <= s->rows; r++) {
        size_t at = r * s->stride, n = r < s->rows ? s->width : s->rest * (s->width / s->fold);
        TR_SIMD for (size_t c = 0; c < n; c++)
        {
            float v = b[c] * tr_load(t, x, at + c) + c0[c];
            tr_store(t, dx, at + c, a[c] * tr_load(t, dz, at + c) + v);
        }
    }
}

void TR_LOOP(bn_grad_input)(tr_dtype t, const void *dz, const void *x, const float *a,
                            const float *b, const float *c0, void *dx, size_t rows, size_t C)
{
    float wide_a[WIDTH], wide_b[WIDTH], wide_c0[WIDTH];
    for (size_t from = 0; from < C;) {
        shape s = shape_of(rows, C, from);
        repeat(&s, a, from, wide_a);
        repeat(&s, b, from, wide_b);
        repeat(&s, c0, from, wide_c0);
        TR_BY_TYPE(t, grad_input_rows(T, tr_from(T, dz, from), tr_from(T, x, from), wide_a, wide_b,
                                      wide_c0, tr_into(T, dx, from), &s));
        from += s.width / s.fold;
    }
}
