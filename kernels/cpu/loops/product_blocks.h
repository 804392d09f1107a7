/* A product of small matrices that lie in caches, by blocks of rows and columns of c that stay in
 * registers over the whole depth: each step loads a piece of a row of b and multiplies it by one
 * number of each row of a. No copies and no calls, on which a library's product of 64 x 64 x 64
 * spends a large part of its time. An element's sum does not depend on the block that it is in.
 *
 * A file that includes it says before
 *  number                           the type of an element of a and b, of 4 bytes
 *  TARGET                           attributes of functions that hold blocks
 *  MULTIPLY_ADD(sums, factor, row)  sums and a number times a vector of them */
#ifndef TR_CPU_LOOPS_PRODUCT_BLOCKS_H
#define TR_CPU_LOOPS_PRODUCT_BLOCKS_H

#include "kernels/cpu/loops/lanes.h"

/* Vectors of a row of c, and rows, that fit the registers with what is multiplied: 32 of them, or
 * 16. */
#if defined __AVX512F__
enum { ROWS = 6, VECTORS = 4 };
_Static_assert(TR_CPU_PRODUCT_COLUMNS % TR_LANES == 0, "whole vectors");
#else
enum { ROWS = 6, VECTORS = 2 };
_Static_assert(TR_CPU_PRODUCT_COLUMNS % (VECTORS * TR_LANES) == 0, "whole blocks");
#endif
enum { MOST_ROWS = 12 };

/* As instructions take it, so aligned: gcc keeps others in memory where intrinsics give them. */
typedef float lanes __attribute__((vector_size(TR_LANE_BYTES), may_alias));

#define EACH(i, count) _Pragma("GCC unroll 16") for (size_t i = 0; i < (count); i++)

TARGET TR_INLINE void block(size_t rows, size_t vectors, const tr_cpu_product *p, const number *a,
                            const number *b, float *c)
{
    lanes sums[MOST_ROWS][VECTORS], row[VECTORS];
    const size_t a_row = p->a_row, a_column = p->a_column, b_pitch = p->b_pitch,
                 c_pitch = p->c_pitch;
    EACH(r, rows)
    EACH(v, vectors)
    {
        sums[r][v] = (lanes){0};
        if (p->add) sums[r][v] = *(const tr_lanes *)(c + r * c_pitch + v * TR_LANES);
    }
    for (size_t k = 0; k < p->depth; k++, a += a_column, b += b_pitch) {
        EACH(v, vectors) row[v] = *(const tr_lanes *)(b + v * TR_LANES);
        EACH(r, rows)
        {
            const number factor = a[r * a_row];
            EACH(v, vectors) sums[r][v] = MULTIPLY_ADD(sums[r][v], factor, row[v]);
        }
    }
    EACH(r, rows)
    EACH(v, vectors) * (tr_lanes *)(c + r * c_pitch + v * TR_LANES) = sums[r][v];
}

/* All rows of a piece of columns. */
TARGET TR_INLINE void columns(size_t rows, size_t vectors, const tr_cpu_product *p, const number *a,
                              const number *b, float *c)
{
    size_t left = p->m;
#define ROWS_OF(n)                                                                                 \
    block(n, vectors, p, a, b, c), a += (n)*p->a_row, c += (n)*p->c_pitch, left -= (n)
    while (left >= rows && left != 8) ROWS_OF(rows);
    while (left >= 4) ROWS_OF(4);
    while (left > 0) ROWS_OF(1);
#undef ROWS_OF
}

TARGET TR_INLINE void by_blocks(const tr_cpu_product *p, const number *a, const number *b, float *c)
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

#endif
