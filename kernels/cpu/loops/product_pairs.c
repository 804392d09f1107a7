/* Products of small matrices of bfloat16 that lie in caches, two numbers that follow one another along the depth in a word:
 * what VDPBF16PS multiplies, where the CPU has it. Blocks are those of product.c, and an element's sum does not depend on the
 * block that it is in. */
#include "kernels/cpu/loops/vec.h"

typedef uint32_t __attribute__((may_alias)) word;

/* Plain C. */
TR_INLINE void plain(const tr_cpu_product *p, const word *a, const word *b, float *c)
{
    for (size_t r = 0; r < p->m; r++, a += p->a_row, c += p->c_pitch) {
        if (!p->add) memset(c, 0, p->n * sizeof *c);
        for (size_t k = 0; k < p->depth; k++) {
            const word both = a[k * p->a_column], *row = b + k * p->b_pitch;
            const float first = tr_float(both << 16), second = tr_float(both & 0xffff0000u);
            TR_SIMD for (size_t n = 0; n < p->n; n++)
            {
                c[n] += second * tr_float(row[n] & 0xffff0000u);
                c[n] += first * tr_float(row[n] << 16);
            }
        }
    }
}

#ifdef __AVX512BW__
#include <immintrin.h>

#define HERE           __attribute__((target("avx512bf16")))
#define EACH(i, count) _Pragma("GCC unroll 16") for (size_t i = 0; i < (count); i++)
enum { LANES = 16, ROWS = 6, MOST_ROWS = 12, VECTORS = 4 };

HERE TR_INLINE void block(size_t rows, size_t vectors, const tr_cpu_product *p, const word *a,
                          const word *b, float *c)
{
    __m512 sums[MOST_ROWS][VECTORS];
    __m512i row[VECTORS];
    const size_t a_row = p->a_row, a_column = p->a_column, b_pitch = p->b_pitch,
                 c_pitch = p->c_pitch;
    EACH(r, rows)
    EACH(v, vectors)
    sums[r][v] = p->add ? _mm512_loadu_ps(c + r * c_pitch + v * LANES) : _mm512_setzero_ps();
    for (size_t k = 0; k < p->depth; k++, a += a_column, b += b_pitch) {
        EACH(v, vectors) row[v] = _mm512_loadu_si512(b + v * LANES);
        EACH(r, rows)
        {
            const __m512i pair = _mm512_set1_epi32((int)a[r * a_row]);
            EACH(v, vectors)
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)pair, (__m512bh)row[v]);
        }
    }
    EACH(r, rows)
    EACH(v, vectors) _mm512_storeu_ps(c + r * c_pitch + v * LANES, sums[r][v]);
}

/* All rows of a piece of columns. */
HERE TR_INLINE void columns(size_t rows, size_t vectors, const tr_cpu_product *p, const word *a,
                            const word *b, float *c)
{
    size_t left = p->m;
#define ROWS_OF(n)                                                                                 \
    block(n, vectors, p, a, b, c), a += (n)*p->a_row, c += (n)*p->c_pitch, left -= (n)
    while (left >= rows && left != 8) ROWS_OF(rows);
    while (left >= 4) ROWS_OF(4);
    while (left > 0) ROWS_OF(1);
#undef ROWS_OF
}

HERE static void by_pairs(const tr_cpu_product *p, const word *a, const word *b, float *c)
{
    size_t left = p->n / LANES;
#define COLUMNS_OF(rows, n)                                                                        \
    columns(rows, n, p, a, b, c), b += (n)*LANES, c += (n)*LANES, left -= (n)
    while (left >= VECTORS && left != 5) COLUMNS_OF(ROWS, VECTORS);
    if (left >= 3) COLUMNS_OF(8, 3);
    if (left >= 2) COLUMNS_OF(12, 2);
    if (left >= 1) COLUMNS_OF(12, 1);
#undef COLUMNS_OF
}
#endif

void TR_LOOP(product_pairs)(const tr_cpu_product *p, const void *a, const void *b, float *c)
{
#ifdef __AVX512BW__
    if (__builtin_cpu_supports("avx512bf16")) {
        by_pairs(p, a, b, c);
        return;
    }
#endif
    plain(p, a, b, c);
}

void TR_LOOP(pair_rows)(const tr_bf16 *first, const tr_bf16 *second, void *y, size_t n)
{
    word *to = y;
    if (second)
        TR_SIMD for (size_t i = 0; i < n; i++) to[i] = first[i] | (word)second[i] << 16;
    else
        TR_SIMD for (size_t i = 0; i < n; i++) to[i] = first[i];
}
