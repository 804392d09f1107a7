/* Sums of 16 outputs at one position to y, with AVX-512: the operations that int8.h states. */
#ifndef TR_CPU_INT8_STORE512_H
#define TR_CPU_INT8_STORE512_H

#include "kernels/cpu/int8/int8.h"

#include <immintrin.h>

static inline __m256i tr_int8_bf16(__m512 v)
{
    /* to the nearest, halves even; there is no NaN here */
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

static inline bool tr_int8_small(tr_dtype type)
{
    return type == TR_U8 || type == TR_I8;
}

/* How sums become values of y: a copy, as bytes that are written could be a struct's. */
typedef struct {
    __m512 factor, shift, residual_scale, least, most; /* least: 0 with relu */
    const char *residual;
    char *y;
    bool residual_signed, relu;
    __mmask16 lanes;
} tr_int8_store;

enum { TR_INT8_ALL_LANES = 0xffff };

/* Of a tile of outputs, of which `left` are left. */
static inline tr_int8_store tr_int8_store_of(const tr_int8_run *r, int64_t tile, int64_t left)
{
    return (tr_int8_store){.factor = _mm512_loadu_ps(r->w.factor + tile * 16),
                           .shift = _mm512_loadu_ps(r->w.shift + tile * 16),
                           .residual_scale = _mm512_set1_ps(r->residual_scale),
                           .least = _mm512_set1_ps(r->relu && r->least < 0 ? 0 : r->least),
                           .most = _mm512_set1_ps(r->most),
                           .residual = r->residual,
                           .residual_signed = r->residual_signed,
                           .relu = r->relu,
                           .y = r->y,
                           .lanes = left >= 16 ? (__mmask16)TR_INT8_ALL_LANES
                                               : (__mmask16)((1u << (left > 0 ? left : 0)) - 1)};
}

/* Before relu. whole: all lanes count. */
static inline __attribute__((always_inline)) __m512
tr_int8_values(const tr_int8_store *s, __m512i acc, bool residual, bool whole, size_t at)
{
    const __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc), s->factor, s->shift);
    if (!residual) return v;
    const __m128i q = whole ? _mm_loadu_si128((const __m128i *)(s->residual + at))
                            : _mm_maskz_loadu_epi8(s->lanes, s->residual + at);
    const __m512i wide = s->residual_signed ? _mm512_cvtepi8_epi32(q) : _mm512_cvtepu8_epi32(q);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), s->residual_scale, v);
}

static inline __attribute__((always_inline)) __m512i
tr_int8_steps(const tr_int8_store *s, __m512i acc, bool residual, bool whole, size_t at)
{
    const __m512 v = _mm512_max_ps(tr_int8_values(s, acc, residual, whole, at), s->least);
    return _mm512_cvtps_epi32(_mm512_min_ps(v, s->most));
}

/* 16 outputs from element `at` of y on. type, residual: constants where it is called. */
static inline __attribute__((always_inline)) void
tr_int8_store512(const tr_int8_store *s, __m512i acc, tr_dtype type, bool residual, size_t at)
{
    if (tr_int8_small(type)) {
        const __m512i q = tr_int8_steps(s, acc, residual, false, at);
        _mm_mask_storeu_epi8(s->y + at, s->lanes, _mm512_cvtepi32_epi8(q));
        return;
    }
    __m512 v = tr_int8_values(s, acc, residual, false, at);
    if (s->relu) v = _mm512_max_ps(v, _mm512_setzero_ps());
    if (type == TR_F32)
        _mm512_mask_storeu_ps((float *)s->y + at, s->lanes, v);
    else
        _mm256_mask_storeu_epi16((tr_bf16 *)s->y + at, s->lanes, tr_int8_bf16(v));
}

/* 64 bytes of steps that fit them: a's 16, b's, c's, d's. Each pair of packs leaves the four
 * quarters of their operands side by side. */
static inline __attribute__((always_inline)) __m512i tr_int8_bytes(tr_dtype type, __m512i a,
                                                                   __m512i b, __m512i c, __m512i d)
{
    const __m512i ab = _mm512_packs_epi32(a, b), cd = _mm512_packs_epi32(c, d);
    const __m512i all = type == TR_U8 ? _mm512_packus_epi16(ab, cd) : _mm512_packs_epi16(ab, cd);
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), all);
}

/* `n` positions that lie together in y, the first one's first output at element `at`: sums
 * acc[i * next + t * other] of position i and tile t. s: [tiles], of tiles side by side. */
static inline __attribute__((always_inline)) void
tr_int8_store_rows(const tr_int8_store *s, int tiles, const __m512i *acc, int64_t next,
                   int64_t other, int64_t n, tr_dtype type, bool residual, size_t O, size_t at)
{
    int64_t i = 0;
#define STEPS(row, t)                                                                              \
    tr_int8_steps(&s[t], acc[(i + (row)) * next + (t)*other], residual, true,                      \
                  at + (size_t)(row)*O + (t)*16)
    if (tr_int8_small(type) && s[tiles - 1].lanes == TR_INT8_ALL_LANES) {
        char *y = s->y;
        for (; tiles == 2 && i + 2 <= n; i += 2, at += 2 * O) {
            const __m512i q =
                tr_int8_bytes(type, STEPS(0, 0), STEPS(0, 1), STEPS(1, 0), STEPS(1, 1));
            _mm256_storeu_si256((__m256i *)(y + at), _mm512_castsi512_si256(q));
            _mm256_storeu_si256((__m256i *)(y + at + O), _mm512_extracti64x4_epi64(q, 1));
        }
        for (; tiles == 1 && i + 4 <= n; i += 4, at += 4 * O) {
            const __m512i q =
                tr_int8_bytes(type, STEPS(0, 0), STEPS(1, 0), STEPS(2, 0), STEPS(3, 0));
            if (O == 16) {
                _mm512_storeu_si512(y + at, q);
                continue;
            }
            _mm_storeu_si128((__m128i *)(y + at), _mm512_castsi512_si128(q));
            _mm_storeu_si128((__m128i *)(y + at + O), _mm512_extracti32x4_epi32(q, 1));
            _mm_storeu_si128((__m128i *)(y + at + 2 * O), _mm512_extracti32x4_epi32(q, 2));
            _mm_storeu_si128((__m128i *)(y + at + 3 * O), _mm512_extracti32x4_epi32(q, 3));
        }
    }
#undef STEPS
    for (; i < n; i++, at += O)
        for (int t = 0; t < tiles; t++)
            tr_int8_store512(&s[t], acc[i * next + t * other], type, residual, at + (size_t)t * 16);
}

/* Runs `call` with the constants TYPE and RESIDUAL of the run `r`. */
#define TR_INT8_BY_STORE(r, call)                                                                  \
    do {                                                                                           \
        if ((r)->type == TR_F32)                                                                   \
            TR_INT8_BY_RESIDUAL(r, TR_F32, call);                                                  \
        else if ((r)->type == TR_BF16)                                                             \
            TR_INT8_BY_RESIDUAL(r, TR_BF16, call);                                                 \
        else if ((r)->type == TR_I8)                                                               \
            TR_INT8_BY_RESIDUAL(r, TR_I8, call);                                                   \
        else                                                                                       \
            TR_INT8_BY_RESIDUAL(r, TR_U8, call);                                                   \
    } while (0)
#define TR_INT8_BY_RESIDUAL(r, type, call)                                                         \
    do {                                                                                           \
        const tr_dtype TYPE = type;                                                                \
        if ((r)->residual) {                                                                       \
            const bool RESIDUAL = true;                                                            \
            call;                                                                                  \
        } else {                                                                                   \
            const bool RESIDUAL = false;                                                           \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

#endif
