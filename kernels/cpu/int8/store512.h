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

/* How sums become values of y: a copy, as bytes that are written could be a struct's. */
typedef struct {
    __m512 factor, shift, residual_scale, least, most;
    const char *residual;
    char *y;
    bool residual_signed, relu;
    __mmask16 lanes;
} tr_int8_store;

/* Of a tile of outputs. */
static inline tr_int8_store tr_int8_store_of(const tr_int8_plan *p, const tr_int8_run *r,
                                             int64_t tile)
{
    const int64_t left = p->s.O - tile * 16;
    return (tr_int8_store){.factor = _mm512_loadu_ps(r->w.factor + tile * 16),
                           .shift = _mm512_loadu_ps(r->w.shift + tile * 16),
                           .residual_scale = _mm512_set1_ps(r->residual_scale),
                           .least = _mm512_set1_ps(r->least),
                           .most = _mm512_set1_ps(r->most),
                           .residual = r->residual,
                           .residual_signed = r->residual_signed,
                           .relu = r->relu,
                           .y = r->y,
                           .lanes = left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1)};
}

/* 16 outputs from element `at` of y on. type, residual: constants where it is called. */
static inline __attribute__((always_inline)) void
tr_int8_store512(const tr_int8_store *s, __m512i acc, tr_dtype type, bool residual, size_t at)
{
    __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc), s->factor, s->shift);
    if (residual) {
        const __m128i q = _mm_maskz_loadu_epi8(s->lanes, s->residual + at);
        const __m512i wide = s->residual_signed ? _mm512_cvtepi8_epi32(q) : _mm512_cvtepu8_epi32(q);
        v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), s->residual_scale, v);
    }
    if (s->relu) v = _mm512_max_ps(v, _mm512_setzero_ps());
    if (type == TR_F32) {
        _mm512_mask_storeu_ps((float *)s->y + at, s->lanes, v);
    } else if (type == TR_BF16) {
        _mm256_mask_storeu_epi16((tr_bf16 *)s->y + at, s->lanes, tr_int8_bf16(v));
    } else {
        v = _mm512_min_ps(_mm512_max_ps(v, s->least), s->most);
        _mm_mask_storeu_epi8(s->y + at, s->lanes, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
    }
}

/* Runs `call` with the constants TYPE (any of 8 bits as TR_U8) and RESIDUAL of the run `r`. */
#define TR_INT8_BY_STORE(r, call)                                                                  \
    do {                                                                                           \
        if ((r)->type == TR_F32)                                                                   \
            TR_INT8_BY_RESIDUAL(r, TR_F32, call);                                                  \
        else if ((r)->type == TR_BF16)                                                             \
            TR_INT8_BY_RESIDUAL(r, TR_BF16, call);                                                 \
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
