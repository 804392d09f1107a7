/* Products of rows with factors for their columns, and the gradient of these factors. Sums run in
 * float32 over blocks of ROWS and are added in float64. */
#include "kernels/cpu/loops/vec.h"

enum { ROWS = 64, COLUMNS = 64 };

TR_INLINE void mul_body(tr_dtype t, const void *x, const void *factor, void *y, size_t n)
{
    TR_SIMD for (size_t i = 0; i < n; i++)
        tr_store(t, y, i, tr_load(t, x, i) * tr_load(t, factor, i));
}

void TR_LOOP(mul)(tr_dtype t, const void *x, const void *factor, size_t stride, void *y,
                  size_t rows, size_t C)
{
    if (stride == C) {
        TR_BY_TYPE(t, mul_body(T, x, factor, y, rows * C));
        return;
    }
    TR_BY_TYPE(t, for (size_t r = 0; r < rows; r++)
                      mul_body(T, tr_from(T, x, r * C), factor, tr_into(T, y, r * C), C));
}

TR_INLINE void sums_body(tr_dtype t, const void *dy, const void *x, void *sums, size_t rows,
                         size_t C, size_t from, size_t n)
{
    double all[COLUMNS] = {0};
    for (size_t first = 0; first < rows; first += ROWS) {
        const size_t last = first + tr_least(ROWS, rows - first);
        float some[COLUMNS] = {0};
        for (size_t r = first; r < last; r++)
            TR_SIMD for (size_t i = 0; i < n; i++) some[i] +=
                tr_load(t, dy, r * C + from + i) * tr_load(t, x, r * C + from + i);
        for (size_t i = 0; i < n; i++) all[i] += (double)some[i];
    }
    for (size_t i = 0; i < n; i++) tr_store(t, sums, from + i, (float)all[i]);
}

void TR_LOOP(mul_sums)(tr_dtype t, const void *dy, const void *x, void *sums, size_t rows, size_t C,
                       size_t begin, size_t end)
{
    for (size_t from = begin; from < end; from += COLUMNS)
        TR_BY_TYPE(t, sums_body(T, dy, x, sums, rows, C, from, tr_least(COLUMNS, end - from)));
}
