/* Rows of a table looked up by number, and what comes back for them.
 *
 * Bound by memory: a row is read where the table has it and written once; its gradient is added to
 * in cache while the same id comes again soon. */
#include "kernels/cpu/loops/vec.h"

TR_INLINE void gather_body(tr_dtype t, const float *table, size_t D, const int32_t *ids,
                           size_t rows, void *y)
{
    for (size_t r = 0; r < rows; r++) {
        const float *from = table + (size_t)ids[r] * D;
        void *to = tr_into(t, y, r * D);
        TR_SIMD for (size_t i = 0; i < D; i++) tr_store(t, to, i, from[i]);
    }
}

void TR_LOOP(gather_rows)(tr_dtype t, const float *table, size_t D, const int32_t *ids, size_t rows,
                          void *y)
{
    TR_BY_TYPE(t, gather_body(T, table, D, ids, rows, y));
}

TR_INLINE void scatter_body(tr_dtype t, const void *dy, size_t D, const int32_t *ids, size_t rows,
                            size_t begin, size_t end, uint32_t of, uint32_t which, float *table)
{
    for (size_t r = 0; r < rows; r++) {
        if (of > 1 && (uint32_t)ids[r] % of != which) continue;
        float *to = table + (size_t)ids[r] * D;
        const void *from = tr_from(t, dy, r * D);
        TR_SIMD for (size_t i = begin; i < end; i++) to[i] += tr_load(t, from, i);
    }
}

void TR_LOOP(scatter_rows)(tr_dtype t, const void *dy, size_t D, const int32_t *ids, size_t rows,
                           size_t begin, size_t end, uint32_t of, uint32_t which, float *table)
{
    TR_BY_TYPE(t, scatter_body(T, dy, D, ids, rows, begin, end, of, which, table));
}
