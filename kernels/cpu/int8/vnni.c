/* Products with AVX-512 VNNI: four bytes of a position against four of 16 outputs at once. The
 * instruction takes x as unsigned, so signed x is moved up by 128, and 128 times the weights' sum
 * is taken away again. Eight positions with one or two tiles of outputs keep to the registers. */
#include "kernels/cpu/int8/store512.h"

#include <string.h>

enum { ROWS = 8 };

static inline __attribute__((always_inline)) void multiply(const tr_int8_work *w, const uint8_t *x,
                                                           int rows, int tiles,
                                                           __m512i acc[ROWS][TR_INT8_TILES])
{
    const tr_int8_plan *p = w->p;
    const tr_int8_shape *s = &p->s;
    const bool together = s->dilation[1] == 1;
    const int64_t row = p->padded_w * s->C, chunks = p->full + (p->tail > 0);
    const int64_t other = p->segments * chunks * TR_INT8_TILE;
    const int8_t *v = w->r->w.weights + w->tile * other;
    const int32_t flip = p->x_signed ? (int32_t)0x80808080 : 0;
    for (int i = 0; i < rows; i++)
        for (int t = 0; t < tiles; t++) acc[i][t] = _mm512_setzero_si512();
    for (int64_t g = 0; g < p->segments; g++) {
        const int64_t ky = together ? g : g / s->kernel[1], kx = together ? 0 : g % s->kernel[1];
        const uint8_t *at = x + ky * s->dilation[0] * row + kx * s->dilation[1] * s->C;
        const int64_t words = p->full * 16 + p->tail / 4;
        for (int64_t k = 0; k < words; k++) {
            __m512i b[TR_INT8_TILES];
            for (int t = 0; t < tiles; t++) b[t] = _mm512_loadu_si512(v + t * other + k * 64);
            for (int i = 0; i < rows; i++) {
                int32_t word;
                memcpy(&word, at + i * p->step + k * 4, sizeof word);
                const __m512i a = _mm512_set1_epi32(word ^ flip);
                for (int t = 0; t < tiles; t++) acc[i][t] = _mm512_dpbusd_epi32(acc[i][t], a, b[t]);
            }
        }
        v += chunks * TR_INT8_TILE;
    }
}

static inline __attribute__((always_inline)) void write_rows(const tr_int8_work *w, int b,
                                                             int64_t first, int rows, int t,
                                                             __m512i acc[ROWS][TR_INT8_TILES],
                                                             tr_dtype type, bool residual)
{
    const tr_int8_plan *p = w->p;
    const int64_t tile = w->tile + t, O = p->s.O, *to = w->to[b] + first;
    const tr_int8_store s = tr_int8_store_of(p, w->r, tile);
    const __m512i sums = _mm512_loadu_si512(w->r->w.sums + tile * 16),
                  moved = p->x_signed ? _mm512_slli_epi32(sums, 7) : _mm512_setzero_si512();
    for (int i = 0; i < rows; i++)
        if (to[i] >= 0)
            tr_int8_store512(&s, _mm512_sub_epi32(acc[i][t], moved), type, residual,
                             (size_t)(to[i] * O + tile * 16));
}

static inline __attribute__((always_inline)) void some(const tr_int8_work *w, int b, int64_t first,
                                                       int rows, int tiles)
{
    __m512i acc[ROWS][TR_INT8_TILES];
    multiply(w, w->at[b] + first * w->p->step, rows, tiles, acc);
    for (int t = 0; t < tiles; t++)
        TR_INT8_BY_STORE(w->r, write_rows(w, b, first, rows, t, acc, TYPE, RESIDUAL));
}

static void blocks(const tr_int8_work *w)
{
    for (int b = 0; b < w->nblocks; b++) {
        int64_t i = 0;
        for (; i + ROWS <= w->p->block; i += ROWS)
            w->ntiles == 2 ? some(w, b, i, ROWS, 2) : some(w, b, i, ROWS, 1);
        for (; i < w->p->block; i++) w->ntiles == 2 ? some(w, b, i, 1, 2) : some(w, b, i, 1, 1);
    }
}

const tr_int8_code tr_int8_vnni = {
    .blocks = blocks, .blocks_of_one = TR_INT8_BLOCKS, .blocks_of_two = TR_INT8_BLOCKS};
