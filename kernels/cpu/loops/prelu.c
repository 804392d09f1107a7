/* Rows times weights where they are not above zero, and the gradients: of both operands in one
 * sweep. Sums run in float32 over blocks of ROWS (of BLOCK elements where all have one weight) and
 * are added in float64. */
#include "kernels/cpu/loops/vec.h"

enum { ROWS = 32, TILE = 512, BLOCK = 2048 };

TR_INLINE void row(tr_dtype t, const void *x, const float *weight, bool each, void *y, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
    {
        const float v = tr_load(t, x, i), w = weight[each ? i : 0];
        tr_store(t, y, i, v > 0.0f ? v : w * v);
    }
}

TR_INLINE void prelu_body(tr_dtype t, const void *x, const float *weight, bool each, void *y,
                          size_t rows, size_t C)
{
    for (size_t r = 0; r < rows; r++)
        row(t, tr_from(t, x, r * C), weight, each, tr_into(t, y, r * C), C);
}

void TR_LOOP(prelu)(tr_dtype t, const void *x, const float *weight, bool each, void *y, size_t rows,
                    size_t C)
{
    if (each)
        TR_BY_TYPE(t, prelu_body(T, x, weight, true, y, rows, C));
    else
        TR_BY_TYPE(t, row(T, x, weight, false, y, rows * C));
}

/* dx may be dy. */
TR_INLINE void one_weight(tr_dtype t, const void *dy, const void *x, const float *weight, void *dx,
                          size_t n, double *dw)
{
    const float w = weight[0];
    double all = 0.0;
    for (size_t from = 0; from < n; from += BLOCK) {
        const size_t end = tr_least(n, from + BLOCK);
        float some = 0.0f;
#pragma omp simd reduction(+ : some)
        for (size_t i = from; i < end; i++) {
            const float d = tr_load(t, dy, i), v = tr_load(t, x, i);
            some += v > 0.0f ? 0.0f : d * v;
            if (dx) tr_store(t, dx, i, v > 0.0f ? d : w * d);
        }
        all += (double)some;
    }
    *dw = all;
}

TR_INLINE void weights(tr_dtype t, const void *dy, const void *x, const float *weight, void *dx,
                       size_t rows, size_t C, size_t from, size_t n, double *dw)
{
    float some[TILE];
    for (size_t r = 0; r < rows;) {
        const size_t end = tr_least(rows, r + ROWS);
        memset(some, 0, n * sizeof *some);
        for (; r < end; r++) {
            const void *dyr = tr_from(t, dy, r * C + from), *xr = tr_from(t, x, r * C + from);
            void *dxr = dx ? tr_into(t, dx, r * C + from) : NULL;
            TR_SIMD for (size_t i = 0; i < n; i++)
            {
                const float d = tr_load(t, dyr, i), v = tr_load(t, xr, i);
                some[i] += v > 0.0f ? 0.0f : d * v;
                if (dx) tr_store(t, dxr, i, v > 0.0f ? d : weight[from + i] * d);
            }
        }
        TR_SIMD for (size_t i = 0; i < n; i++) dw[from + i] += (double)some[i];
    }
}

TR_INLINE void prelu_grad_body(tr_dtype t, const void *dy, const void *x, const float *weight,
                               bool each, void *dx, size_t rows, size_t C, double *dw)
{
    if (!each) {
        one_weight(t, dy, x, weight, dx, rows * C, dw);
        return;
    }
    memset(dw, 0, C * sizeof *dw);
    for (size_t from = 0; from < C; from += TILE)
        weights(t, dy, x, weight, dx, rows, C, from, tr_least(TILE, C - from), dw);
}

void TR_LOOP(prelu_grad)(tr_dtype t, const void *dy, const void *x, const float *weight, bool each,
                         void *dx, size_t rows, size_t C, double *dw)
{
    if (dx)
        TR_BY_TYPE(t, prelu_grad_body(T, dy, x, weight, each, dx, rows, C, dw));
    else
        TR_BY_TYPE(t, prelu_grad_body(T, dy, x, weight, each, NULL, rows, C, dw));
}
