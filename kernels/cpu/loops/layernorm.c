/* Layer normalization of rows of D, or the same by the root of the mean square (`centered` false),
 * and sums over rows.
 *
 * A row is read three times (mean, deviations, output) and stays in the first-level cache for that
 * up to D of about 10,000. Sums run in float32 over at most BLOCK elements, then in float64. */
#include "kernels/cpu/loops/vmath.h"

enum { BLOCK = 2048, TILE = 512, ROWS = 32 };

/* A first mean, then the deviations from it, which also tell how far off it was: a float32 sum of
 * values far from zero loses what their deviations do not. */
TR_INLINE void moments(tr_dtype t, const void *x, size_t D, double eps, bool centered, float *mean,
                       float *rstd)
{
    double sum = 0.0, off = 0.0, squares = 0.0;
    for (size_t from = 0; centered && from < D; from += BLOCK) {
        size_t end = tr_least(D, from + BLOCK);
        float s = 0.0f;
#pragma omp simd reduction(+ : s)
        for (size_t i = from; i < end; i++) s += tr_load(t, x, i);
        sum += (double)s;
    }
    float first = (float)(sum / (double)D);
    for (size_t from = 0; from < D; from += BLOCK) {
        size_t end = tr_least(D, from + BLOCK);
        float s = 0.0f, s2 = 0.0f;
#pragma omp simd reduction(+ : s, s2)
        for (size_t i = from; i < end; i++) {
            float d = tr_load(t, x, i) - first;
            s += d;
            s2 += d * d;
        }
        off += (double)s;
        squares += (double)s2;
    }
    off = centered ? off / (double)D : 0.0;
    double variance = squares / (double)D - off * off;
    *mean = (float)((double)first + off);
    *rstd = (float)(1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + eps));
}

TR_INLINE void ln_apply_body(tr_dtype t, const void *x, const float *weight, const float *bias,
                             double eps, bool centered, void *y, float *stats, size_t rows,
                             size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const void *xr = tr_from(t, x, r * D);
        void *yr = tr_into(t, y, r * D);
        float mean, rstd;
        moments(t, xr, D, eps, centered, &mean, &rstd);
        if (bias) {
            TR_SIMD for (size_t i = 0; i < D; i++)
                tr_store(t, yr, i, (tr_load(t, xr, i) - mean) * rstd * weight[i] + bias[i]);
        } else {
            TR_SIMD for (size_t i = 0; i < D; i++)
                tr_store(t, yr, i, (tr_load(t, xr, i) - mean) * rstd * weight[i]);
        }
        if (!stats) continue;
        stats[2 * r] = mean;
        stats[2 * r + 1] = rstd;
    }
}

void TR_LOOP(ln_apply)(tr_dtype t, const void *x, const float *weight, const float *bias,
                       double eps, bool centered, void *y, float *stats, size_t rows, size_t D)
{
    TR_BY_TYPE(t, ln_apply_body(T, x, weight, bias, eps, centered, y, stats, rows, D));
}

/* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight; not centered: without
 * mean(g) */
TR_INLINE void ln_grad_input_body(tr_dtype t, const void *dy, const void *x, const float *weight,
                                  const float *stats, bool centered, void *dx, size_t rows,
                                  size_t D)
{
    for (size_t r = 0; r < rows; r++) {
        const void *dyr = tr_from(t, dy, r * D), *xr = tr_from(t, x, r * D);
        void *dxr = tr_into(t, dx, r * D);
        float mean = stats[2 * r], rstd = stats[2 * r + 1];
        double sum_g = 0.0, sum_gx = 0.0;
        for (size_t from = 0; from < D; from += BLOCK) {
            size_t end = tr_least(D, from + BLOCK);
            float s = 0.0f, sx = 0.0f;
#pragma omp simd reduction(+ : s, sx)
            for (size_t i = from; i < end; i++) {
                float g = tr_load(t, dyr, i) * weight[i];
                s += g;
                sx += g * (tr_load(t, xr, i) - mean);
            }
            sum_g += (double)s;
            sum_gx += (double)sx;
        }
        float mean_g = centered ? (float)(sum_g / (double)D) : 0.0f;
        float slope = (float)(sum_gx / (double)D) * rstd * rstd;
        TR_SIMD for (size_t i = 0; i < D; i++)
        {
            float g = tr_load(t, dyr, i) * weight[i];
            tr_store(t, dxr, i, rstd * (g - mean_g - (tr_load(t, xr, i) - mean) * slope));
        }
    }
}

void TR_LOOP(ln_grad_input)(tr_dtype t, const void *dy, const void *x, const float *weight,
                            const float *stats, bool centered, void *dx, size_t rows, size_t D)
{
    TR_BY_TYPE(t, ln_grad_input_body(T, dy, x, weight, stats, centered, dx, rows, D));
}

TR_INLINE void ln_grad_param_body(tr_dtype t, const void *dy, const void *x, const float *stats,
                                  size_t rows, size_t D, double *dw, double *db)
{
    float w[TILE], b[TILE];
    for (size_t from = 0; from < D; from += TILE) {
        size_t n = tr_least(TILE, D - from);
        for (size_t r = 0; r < rows;) {
            size_t end = tr_least(rows, r + ROWS);
            memset(w, 0, n * sizeof *w);
            memset(b, 0, n * sizeof *b);
            for (; r < end; r++) {
                const void *dyr = tr_from(t, dy, r * D + from), *xr = tr_from(t, x, r * D + from);
                float mean = stats[2 * r], rstd = stats[2 * r + 1];
                TR_SIMD for (size_t i = 0; i < n; i++)
                {
                    float d = tr_load(t, dyr, i);
                    w[i] += d * ((tr_load(t, xr, i) - mean) * rstd);
                    b[i] += d;
                }
            }
            TR_SIMD for (size_t i = 0; i < n; i++)
            {
                dw[from + i] += (double)w[i];
                db[from + i] += (double)b[i];
            }
        }
    }
}

void TR_LOOP(ln_grad_param)(tr_dtype t, const void *dy, const void *x, const float *stats,
                            size_t rows, size_t D, double *dw, double *db)
{
    TR_BY_TYPE(t, ln_grad_param_body(T, dy, x, stats, rows, D, dw, db));
}

/* ---- Sums over rows -------------------------------------------------------------------------
 * Elements of bfloat16 go two at a time, their sums where tr_pair_place says. */

/* Of one element of four rows. */
#define FOUR(load, i) ((load(x0, i) + load(x1, i)) + (load(x2, i) + load(x3, i)))

/* sums += four rows of n elements. */
TR_INLINE void add_four(tr_dtype t, const void *x0, size_t stride, size_t n, float *sums)
{
    const void *x1 = tr_from(t, x0, stride), *x2 = tr_from(t, x0, 2 * stride),
               *x3 = tr_from(t, x0, 3 * stride);
    float *seconds = sums + tr_pair_place(t, n, 1);
#define LOAD(x, i) tr_load(t, x, i)
    TR_SIMD for (size_t i = 0; i < tr_paired(t, n) / 2; i++)
    {
        sums[i] += FOUR(tr_load_first, i);
        seconds[i] += FOUR(tr_load_second, i);
    }
    TR_SIMD for (size_t i = tr_paired(t, n); i < n; i++) sums[tr_pair_place(t, n, i)] +=
        FOUR(LOAD, i);
#undef LOAD
}

TR_INLINE void column_sums_body(tr_dtype t, const void *x, size_t rows, size_t C, size_t stride,
                                float *sums, bool accumulate)
{
    float part[TILE];
    double total[TILE];
    for (size_t from = 0; from < C; from += TILE) {
        size_t n = tr_least(TILE, C - from);
        for (size_t i = 0; i < n; i++) total[i] = 0.0;
        for (size_t r = 0; r < rows;) {
            size_t end = tr_least(rows, r + 2 * ROWS);
            memset(part, 0, n * sizeof *part);
            for (; r + 4 <= end; r += 4)
                add_four(t, tr_from(t, x, r * stride + from), stride, n, part);
            for (; r < end; r++) {
                const void *xr = tr_from(t, x, r * stride + from);
                TR_SIMD for (size_t i = 0; i < n; i++) part[tr_pair_place(t, n, i)] +=
                    tr_load(t, xr, i);
            }
            TR_SIMD for (size_t i = 0; i < n; i++) total[i] += (double)part[i];
        }
        for (size_t i = 0; i < n; i++)
            sums[from + i] =
                (accumulate ? sums[from + i] : 0.0f) + (float)total[tr_pair_place(t, n, i)];
    }
}

void TR_LOOP(column_sums)(tr_dtype t, const void *x, size_t rows, size_t C, size_t stride,
                          float *sums, bool accumulate)
{
    TR_BY_TYPE(t, column_sums_body(T, x, rows, C, stride, sums, accumulate));
}
