/* Images made of weighted sums over rows and columns of others: places one by one, a block of
 * channels in registers, sums in float32 that are rounded once. */
#include "kernels/cpu/loops/vec.h"

enum { BLOCK = 64 };

TR_INLINE void block(tr_dtype t, const tr_cpu_resampling *p, const void *image, size_t row,
                     size_t column, size_t c, size_t n, void *y, size_t to)
{
    const int32_t *h = p->rows.begin + row, *w = p->columns.begin + column;
    float sum[BLOCK];
    const float first = h[0] == h[1] || w[0] == w[1] ? p->value : 0;
    for (size_t k = 0; k < n; k++) sum[k] = first;
    for (int32_t i = h[0]; i < h[1]; i++)
        for (int32_t j = w[0]; j < w[1]; j++) {
            const tr_tap a = p->rows.taps[i], b = p->columns.taps[j];
            const size_t from = ((size_t)a.from * p->W + (size_t)b.from) * p->C + c;
            const float weight = a.weight * b.weight;
            TR_SIMD for (size_t k = 0; k < n; k++) sum[k] += weight * tr_load(t, image, from + k);
        }
    TR_SIMD for (size_t k = 0; k < n; k++) tr_store(t, y, to + k, sum[k]);
}

TR_INLINE void places(tr_dtype t, const tr_cpu_resampling *p, const void *x, void *y, size_t begin,
                      size_t end)
{
    for (size_t r = begin; r < end; r++) {
        const void *image = tr_from(t, x, r / p->rows.size * p->H * p->W * p->C);
        for (size_t column = 0; column < p->columns.size; column++) {
            const size_t to = (r * p->columns.size + column) * p->C, row = r % p->rows.size;
            size_t c = 0;
            for (; c + BLOCK <= p->C; c += BLOCK)
                block(t, p, image, row, column, c, BLOCK, y, to + c);
            if (c < p->C) block(t, p, image, row, column, c, p->C - c, y, to + c);
        }
    }
}

void TR_LOOP(resample)(const tr_cpu_resampling *p, const void *x, void *y, size_t begin, size_t end)
{
    TR_BY_TYPE(p->type, places(T, p, x, y, begin, end));
}
