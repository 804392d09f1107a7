/* Products of small matrices that lie in caches, and a transposition for them.
 *
 * A block of rows and columns of c stays in registers over the whole depth: each step loads a piece of a row of b and multiplies
 * it by one number of each row of a. No copies and no calls, on which a library's product of 64 x 64 x 64 spends a large part of
 * its time. An element's sum does not depend on the block that it is in. */
#include "kernels/cpu/loops/lanes.h"

/* Vectors of a row of c, and rows, that fit the registers with what is multiplied: 32 of them, or 16. */
#if defined __AVX512F__
enum { ROWS = 6, VECTORS = 4 };
#else
enum { ROWS = 6, VECTORS = 2 };
#endif
enum { MOST_ROWS = 12 };
_Static_assert(TR_CPU_PRODUCT_COLUMNS % TR_LANES == 0, "whole vectors");

#define EACH(i, count) _Pragma("GCC unroll 16") for (size_t i = 0; i < (count); i++)

TR_INLINE void block(size_t rows, size_t vectors, const tr_cpu_product *p, const float *a,
                     const float *b, float *c)
{
    tr_lanes sums[MOST_ROWS][VECTORS], row[VECTORS];
    const size_t a_row = p->a_row, a_column = p->a_column, b_pitch = p->b_pitch,
                 c_pitch = p->c_pitch;
    EACH(r, rows)
    EACH(v, vectors)
    {
        sums[r][v] = (tr_lanes){0};
        if (p->add) sums[r][v] = *(const tr_lanes *)(c + r * c_pitch + v * TR_LANES);
    }
    for (size_t k = 0; k < p->depth; k++, a += a_column, b += b_pitch) {
        EACH(v, vectors) row[v] = *(const tr_lanes *)(b + v * TR_LANES);
        EACH(r, rows)
        {
            const float factor = a[r * a_row];
            EACH(v, vectors) sums[r][v] += factor * row[v];
        }
    }
    EACH(r, rows)
    EACH(v, vectors) * (tr_lanes *)(c + r * c_pitch + v * TR_LANES) = sums[r][v];
}

/* All rows of a piece of columns. */
TR_INLINE void columns(size_t rows, size_t vectors, const tr_cpu_product *p, const float *a,
                       const float *b, float *c)
{
    size_t left = p->m;
#define ROWS_OF(n)                                                                                 \
    block(n, vectors, p, a, b, c), a += (n)*p->a_row, c += (n)*p->c_pitch, left -= (n)
    while (left >= rows && left != 8) ROWS_OF(rows);
    while (left >= 4) ROWS_OF(4);
    while (left > 0) ROWS_OF(1);
#undef ROWS_OF
}

void TR_LOOP(product)(const tr_cpu_product *p, const float *a, const float *b, float *c)
{
    size_t left = p->n / TR_LANES;
#define COLUMNS_OF(rows, n)                                                                        \
    columns(rows, n, p, a, b, c), b += (n)*TR_LANES, c += (n)*TR_LANES, left -= (n)
    while (left >= VECTORS && left != 5)
        COLUMNS_OF(ROWS, VECTORS); /* 3 and 2 take less time than 4 and 1 */
#if defined __AVX512F__
    if (left >= 3) COLUMNS_OF(8, 3);
    if (left >= 2) COLUMNS_OF(12, 2);
    if (left >= 1) COLUMNS_OF(12, 1);
#endif
#undef COLUMNS_OF
}

/* ---- Transposition --------------------------------------------------------------------------- */

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

#if defined __clang__
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* gcc has that from 12 on */
typedef int32_t places __attribute__((vector_size(16)));
#define MIX(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

void TR_LOOP(transpose_apart)(const float *x, size_t x_pitch, float *y, size_t y_pitch, size_t rows,
                              size_t cols)
{
    const size_t whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
    for (size_t r = 0; r < whole_rows; r += 4)
        for (size_t c = 0; c < whole_cols; c += 4) {
            const float *from = x + r * x_pitch + c;
            float *to = y + c * y_pitch + r;
            const four r0 = *(const four *)from, r1 = *(const four *)(from + x_pitch),
                       r2 = *(const four *)(from + 2 * x_pitch),
                       r3 = *(const four *)(from + 3 * x_pitch);
            const four low01 = MIX(r0, r1, 0, 4, 1, 5), high01 = MIX(r0, r1, 2, 6, 3, 7),
                       low23 = MIX(r2, r3, 0, 4, 1, 5), high23 = MIX(r2, r3, 2, 6, 3, 7);
            *(four *)to = MIX(low01, low23, 0, 1, 4, 5);
            *(four *)(to + y_pitch) = MIX(low01, low23, 2, 3, 6, 7);
            *(four *)(to + 2 * y_pitch) = MIX(high01, high23, 0, 1, 4, 5);
            *(four *)(to + 3 * y_pitch) = MIX(high01, high23, 2, 3, 6, 7);
        }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            y[c * y_pitch + r] = x[r * x_pitch + c];
}
