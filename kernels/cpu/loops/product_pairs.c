/* Products of small matrices of bfloat16 that lie in caches, two numbers that follow one another
 * along the depth in a word: what VDPBF16PS multiplies, where the CPU has it. */
#include "kernels/cpu/loops/lanes.h"

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

typedef word number;
#define TARGET __attribute__((target("avx512bf16")))
#define MULTIPLY_ADD(sums, factor, row)                                                            \
    _mm512_dpbf16_ps(sums, (__m512bh)_mm512_set1_epi32((int)(factor)), (__m512bh)(row))

#include "kernels/cpu/loops/product_blocks.h"

TARGET static void by_pairs(const tr_cpu_product *p, const word *a, const word *b, float *c)
{
    by_blocks(p, a, b, c);
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
