/* Depthwise convolutions with AVX-512 VNNI: the bytes of four places of 64 channels are
 * interleaved, so that one instruction adds up four places of 16 channels. Signed x is moved up by
 * 128, as in vnni.c. */
#include "kernels/cpu/int8/store512.h"

typedef struct {
    const int8_t *weights;
    int64_t fours; /* of places, the last ones with weights of 0 */
    int64_t from[TR_INT8_PLACES + 3];
    __mmask64 lanes;
    __m512i flip, moved[4]; /* 128 times the weights' sums, in the channels' order */
    tr_int8_store s[4];
} block;

static inline __attribute__((always_inline)) __m512i load(const block *b, const uint8_t *x)
{
    return _mm512_xor_si512(_mm512_maskz_loadu_epi8(b->lanes, x), b->flip);
}

/* acc[j]: for each 16 channels four of them, from the 4 j-th on. */
static inline __attribute__((always_inline)) void sums(const block *b, const uint8_t *x,
                                                       __m512i acc[4])
{
    const int8_t *w = b->weights;
    for (int j = 0; j < 4; j++) acc[j] = _mm512_setzero_si512();
    for (int64_t i = 0; i < b->fours; i++, w += 4 * TR_INT8_WIDE) {
        const int64_t *from = b->from + 4 * i;
        const __m512i k0 = load(b, x + from[0]), k1 = load(b, x + from[1]),
                      k2 = load(b, x + from[2]), k3 = load(b, x + from[3]);
        const __m512i low = _mm512_unpacklo_epi8(k0, k1), high = _mm512_unpackhi_epi8(k0, k1),
                      low2 = _mm512_unpacklo_epi8(k2, k3), high2 = _mm512_unpackhi_epi8(k2, k3);
        const __m512i q[4] = {_mm512_unpacklo_epi16(low, low2), _mm512_unpackhi_epi16(low, low2),
                              _mm512_unpacklo_epi16(high, high2),
                              _mm512_unpackhi_epi16(high, high2)};
        for (int j = 0; j < 4; j++)
            acc[j] = _mm512_dpbusd_epi32(acc[j], q[j], _mm512_loadu_si512(w + j * TR_INT8_WIDE));
    }
}

/* 16 channels in each, in their order: quarters of all four, transposed. */
static inline __attribute__((always_inline)) void in_order(__m512i a[4])
{
    const __m512i t0 = _mm512_shuffle_i32x4(a[0], a[1], 0x44),
                  t1 = _mm512_shuffle_i32x4(a[2], a[3], 0x44),
                  t2 = _mm512_shuffle_i32x4(a[0], a[1], 0xee),
                  t3 = _mm512_shuffle_i32x4(a[2], a[3], 0xee);
    a[0] = _mm512_shuffle_i32x4(t0, t1, 0x88);
    a[1] = _mm512_shuffle_i32x4(t0, t1, 0xdd);
    a[2] = _mm512_shuffle_i32x4(t2, t3, 0x88);
    a[3] = _mm512_shuffle_i32x4(t2, t3, 0xdd);
}

static inline __attribute__((always_inline)) void position(const block *b, const uint8_t *x,
                                                           tr_dtype type, bool residual, size_t at)
{
    __m512i acc[4];
    sums(b, x, acc);
    in_order(acc);
    for (int j = 0; j < 4; j++) acc[j] = _mm512_sub_epi32(acc[j], b->moved[j]);
    if (tr_int8_small(type) && b->s[3].lanes == TR_INT8_ALL_LANES) {
        for (int j = 0; j < 4; j++)
            acc[j] = tr_int8_steps(&b->s[j], acc[j], residual, true, at + (size_t)j * 16);
        _mm512_storeu_si512(b->s[0].y + at, tr_int8_bytes(type, acc[0], acc[1], acc[2], acc[3]));
        return;
    }
    for (int j = 0; j < 4; j++)
        if (b->s[j].lanes) tr_int8_store512(&b->s[j], acc[j], type, residual, at + (size_t)j * 16);
}

static inline __attribute__((always_inline)) void image_of(const tr_int8_plan *p, const block *b,
                                                           const uint8_t *x, tr_dtype type,
                                                           bool residual, size_t at)
{
    const tr_int8_shape *s = &p->s;
    const int64_t C = s->groups;
    for (int64_t h = 0; h < s->OH; h++) {
        const uint8_t *row = x + h * s->stride[0] * p->padded_w * C;
        for (int64_t w = 0; w < s->OW; w++, row += s->stride[1] * C, at += (size_t)C)
            position(b, row, type, residual, at);
    }
}

void tr_int8_depthwise_vnni(const tr_int8_plan *p, const tr_int8_run *r, const uint8_t *x,
                            int64_t image, int64_t begin, int64_t end)
{
    const int64_t C = p->s.groups, places = p->s.kernel[0] * p->s.kernel[1];
    block b = {.fours = (places + 3) / 4};
    b.flip = _mm512_set1_epi8(p->x_signed ? (char)0x80 : 0);
    tr_int8_places(p, b.from); /* beyond the last: anywhere in the window */
    for (int64_t k = begin; k < end; k++) {
        const int64_t left = C - k * TR_INT8_WIDE;
        b.weights = r->w.weights + k * b.fours * 4 * TR_INT8_WIDE;
        b.lanes = left >= TR_INT8_WIDE ? ~(__mmask64)0 : ((__mmask64)1 << left) - 1;
        for (int64_t j = 0; j < 4; j++) {
            const int64_t tile = k * 4 + j;
            b.s[j] = tr_int8_store_of(r, tile, left - j * 16);
            b.moved[j] = p->x_signed
                             ? _mm512_slli_epi32(_mm512_loadu_si512(r->w.sums + tile * 16), 7)
                             : _mm512_setzero_si512();
        }
        TR_INT8_BY_STORE(r, image_of(p, &b, x + k * TR_INT8_WIDE, TYPE, RESIDUAL,
                                     (size_t)(image * p->s.OH * p->s.OW * C + k * TR_INT8_WIDE)));
    }
}
