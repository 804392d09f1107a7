/* 32 elements at a time, at the level that has AVX-512: pairs of bfloat16 (vec.h) as 16 words of
 * two elements each, or two vectors of float32, the second behind the first. By instructions on
 * halves of words, which gcc makes of no plain loop, both elements of a word are rounded at once.
 *
 * `high` holds the upper halves of both, each where the result has it, `low` the lower ones. To
 * nearest, halves to even: high + 1 where low > 0x8000, or where low = 0x8000 and high is odd; that
 * is where (low | (high & 1)) > 0x8000. Five instructions for 32 elements, as quick as
 * VCVTNE2PS2BF16 and the permutation behind it, which make zeros of subnormals, and bit for bit
 * what tr_round_bf16 gives. */
#ifndef TR_CPU_LOOPS_PAIRS_H
#define TR_CPU_LOOPS_PAIRS_H

#include "kernels/cpu/loops/vec.h"

#ifdef __AVX512BW__
#include <immintrin.h>

enum { TR_PAIRS = 32 }; /* elements at a time */

typedef struct {
    __m512 first, second;
} tr_pairs;

/* Which of a vector's elements are there. */
typedef struct {
    __mmask16 first, second;
} tr_pairs_mask;

static const tr_pairs_mask tr_pairs_all = {0xffff, 0xffff};

/* The lower n of 16, or all. */
TR_INLINE __mmask16 tr_pairs_lower(size_t n)
{
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* Of the n elements that are left, which go in pairs where they are bfloat16. */
TR_INLINE tr_pairs_mask tr_pairs_left(tr_dtype t, size_t n)
{
    if (t == TR_BF16) return (tr_pairs_mask){tr_pairs_lower(n / 2), tr_pairs_lower(n / 2)};
    return (tr_pairs_mask){tr_pairs_lower(n), tr_pairs_lower(n > 16 ? n - 16 : 0)};
}

/* Elements of a row of n that vectors do: all, but a last one of bfloat16 that has no partner. */
TR_INLINE size_t tr_pairs_done(tr_dtype t, size_t n)
{
    return t == TR_BF16 ? n / 2 * 2 : n;
}

/* Runs `call` for each vector of a row of n elements, with `e`, its first one, and `k`, its
 * mask. */
#define TR_EACH_PAIRS(t, n, call)                                                                  \
    do {                                                                                           \
        size_t e = 0;                                                                              \
        for (; e + TR_PAIRS <= (n); e += TR_PAIRS) {                                               \
            const tr_pairs_mask k = tr_pairs_all;                                                  \
            call;                                                                                  \
        }                                                                                          \
        if (e < (n)) {                                                                             \
            const tr_pairs_mask k = tr_pairs_left(t, (n)-e);                                       \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

TR_INLINE __m512i tr_pairs_words(const void *p, size_t e, tr_pairs_mask k)
{
    return _mm512_maskz_loadu_epi32(k.first, (const char *)p + 2 * e);
}

TR_INLINE tr_pairs tr_pairs_apart(__m512i words)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    return (tr_pairs){_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                      _mm512_castsi512_ps(_mm512_and_si512(words, upper))};
}

TR_INLINE void tr_pairs_put_words(void *p, size_t e, tr_pairs_mask k, __m512i words)
{
    _mm512_mask_storeu_epi32((char *)p + 2 * e, k.first, words);
}

TR_INLINE tr_pairs tr_pairs_load(tr_dtype t, const void *p, size_t e, tr_pairs_mask k)
{
    if (t == TR_BF16) return tr_pairs_apart(tr_pairs_words(p, e, k));
    return (tr_pairs){_mm512_maskz_loadu_ps(k.first, (const float *)p + e),
                      _mm512_maskz_loadu_ps(k.second, (const float *)p + e + 16)};
}

/* Where the coefficients or sums of element e on are, and those of the second elements. */
TR_INLINE size_t tr_pairs_at(tr_dtype t, size_t e)
{
    return t == TR_BF16 ? e / 2 : e;
}

TR_INLINE size_t tr_pairs_at_second(tr_dtype t, size_t e, size_t second)
{
    return t == TR_BF16 ? second + e / 2 : e + 16;
}

TR_INLINE tr_pairs tr_pairs_floats(tr_dtype t, const float *p, size_t e, size_t second,
                                   tr_pairs_mask k)
{
    return (tr_pairs){_mm512_maskz_loadu_ps(k.first, p + tr_pairs_at(t, e)),
                      _mm512_maskz_loadu_ps(k.second, p + tr_pairs_at_second(t, e, second))};
}

TR_INLINE void tr_pairs_put(tr_dtype t, float *p, size_t e, size_t second, tr_pairs_mask k,
                            tr_pairs v)
{
    _mm512_mask_storeu_ps(p + tr_pairs_at(t, e), k.first, v.first);
    _mm512_mask_storeu_ps(p + tr_pairs_at_second(t, e, second), k.second, v.second);
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

/* Of a NaN whose upper half is all ones it would make a zero, in bfloat16. None comes of arithmetic
 * on bfloat16 and on coefficients that are no such NaN, because a NaN takes its bits from an
 * operand. */
TR_INLINE void tr_pairs_store(tr_dtype t, void *p, size_t e, tr_pairs_mask k, tr_pairs v)
{
    if (t != TR_BF16) {
        tr_pairs_put(t, p, e, 0, k, v);
        return;
    }
    const __m512i a = _mm512_castps_si512(v.first), b = _mm512_castps_si512(v.second);
    const __mmask64 lower_halves = 0x3333333333333333u; /* bytes */
    const __m512i high = _mm512_mask_alignr_epi8(b, lower_halves, a, a, 2);
    const __m512i low = _mm512_mask_alignr_epi8(a, ~lower_halves, b, b, 14);
    const __m512i odd = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(1), 0xf8);
    const __mmask32 up = _mm512_cmpgt_epu16_mask(odd, _mm512_set1_epi16((short)0x8000));
    tr_pairs_put_words(p, e, k, _mm512_mask_add_epi16(high, up, high, _mm512_set1_epi16(1)));
}
#endif

#endif
