/* Pairs of bfloat16 (vec.h) by whole vectors, at the level that has AVX-512: 16 words of two elements each. By instructions
 * on halves of words, which gcc makes of no plain loop, both elements of a word are rounded at once.
 *
 * `high` holds the upper halves of both, each where the result has it, `low` the lower ones. To nearest, halves to even:
 * high + 1 where low > 0x8000, or where low = 0x8000 and high is odd; that is where (low | (high & 1)) > 0x8000. Five
 * instructions for 32 elements, as quick as VCVTNE2PS2BF16 and the permutation behind it, which make zeros of
 * subnormals, and bit for bit what tr_round_bf16 gives. */
#ifndef TR_CPU_LOOPS_PAIRS_H
#define TR_CPU_LOOPS_PAIRS_H

#include "kernels/cpu/loops/vec.h"

#ifdef __AVX512BW__
#include <immintrin.h>

enum { TR_PAIRS = 16 }; /* words of a vector */

typedef struct {
    __m512 first, second;
} tr_pairs;

/* Which words of `n` a vector that begins at word i takes. */
TR_INLINE __mmask16 tr_pairs_mask(size_t i, size_t n)
{
    return n - i >= TR_PAIRS ? (__mmask16)0xffff : (__mmask16)((1u << (n - i)) - 1);
}

TR_INLINE __m512i tr_pairs_words(const void *p, size_t i, __mmask16 k)
{
    return _mm512_maskz_loadu_epi32(k, (const char *)p + 4 * i);
}

TR_INLINE tr_pairs tr_pairs_apart(__m512i words)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    return (tr_pairs){_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                      _mm512_castsi512_ps(_mm512_and_si512(words, upper))};
}

TR_INLINE void tr_pairs_put_words(void *p, size_t i, __mmask16 k, __m512i words)
{
    _mm512_mask_storeu_epi32((char *)p + 4 * i, k, words);
}

TR_INLINE tr_pairs tr_pairs_load(const void *p, size_t i, __mmask16 k)
{
    return tr_pairs_apart(tr_pairs_words(p, i, k));
}

/* Coefficients or sums of word i on; those of second elements begin `second` on. */
TR_INLINE tr_pairs tr_pairs_floats(const float *p, size_t i, size_t second, __mmask16 k)
{
    return (tr_pairs){_mm512_maskz_loadu_ps(k, p + i), _mm512_maskz_loadu_ps(k, p + second + i)};
}

TR_INLINE void tr_pairs_put(float *p, size_t i, size_t second, __mmask16 k, tr_pairs v)
{
    _mm512_mask_storeu_ps(p + i, k, v.first);
    _mm512_mask_storeu_ps(p + second + i, k, v.second);
}

TR_INLINE tr_pairs tr_pairs_add(tr_pairs a, tr_pairs b)
{
    return (tr_pairs){_mm512_add_ps(a.first, b.first), _mm512_add_ps(a.second, b.second)};
}

TR_INLINE tr_pairs tr_pairs_sub(tr_pairs a, tr_pairs b)
{
    return (tr_pairs){_mm512_sub_ps(a.first, b.first), _mm512_sub_ps(a.second, b.second)};
}

/* a * b + c, in one rounding */
TR_INLINE tr_pairs tr_pairs_fma(tr_pairs a, tr_pairs b, tr_pairs c)
{
    return (tr_pairs){_mm512_fmadd_ps(a.first, b.first, c.first),
                      _mm512_fmadd_ps(a.second, b.second, c.second)};
}

/* 0 where below, NaN stays: the second operand is what comes of that */
TR_INLINE tr_pairs tr_pairs_relu(tr_pairs v)
{
    const __m512 zero = _mm512_setzero_ps();
    return (tr_pairs){_mm512_max_ps(zero, v.first), _mm512_max_ps(zero, v.second)};
}

/* d where `of` is above 0, else 0. */
TR_INLINE tr_pairs tr_pairs_where_above(tr_pairs of, tr_pairs d)
{
    const __m512 zero = _mm512_setzero_ps();
    return (tr_pairs){
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(of.first, zero, _CMP_GT_OQ), d.first),
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(of.second, zero, _CMP_GT_OQ), d.second)};
}

/* The same of elements as they lie in memory: above 0 are 1 to 0x7f80, infinity. */
TR_INLINE __m512i tr_pairs_words_above(__m512i of, __m512i d)
{
    const __m512i one = _mm512_set1_epi16(1), infinity = _mm512_set1_epi16(0x7f80);
    return _mm512_maskz_mov_epi16(_mm512_cmplt_epu16_mask(_mm512_sub_epi16(of, one), infinity), d);
}

/* Of a NaN whose upper half is all ones it would make a zero. None comes of arithmetic on bfloat16 and on coefficients that
 * are no such NaN, because a NaN takes its bits from an operand. */
TR_INLINE void tr_pairs_store(void *p, size_t i, __mmask16 k, tr_pairs v)
{
    const __m512i a = _mm512_castps_si512(v.first), b = _mm512_castps_si512(v.second);
    const __mmask64 lower_halves = 0x3333333333333333u; /* bytes */
    const __m512i high = _mm512_mask_alignr_epi8(b, lower_halves, a, a, 2);
    const __m512i low = _mm512_mask_alignr_epi8(a, ~lower_halves, b, b, 14);
    const __m512i odd = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(1), 0xf8);
    const __mmask32 up = _mm512_cmpgt_epu16_mask(odd, _mm512_set1_epi16((short)0x8000));
    tr_pairs_put_words(p, i, k, _mm512_mask_add_epi16(high, up, high, _mm512_set1_epi16(1)));
}
#endif

#endif
