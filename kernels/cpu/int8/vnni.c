/* Products with AVX-512 VNNI: four bytes of a position against four of 16 outputs at once. The
 * instruction takes x as unsigned, so signed x is moved up by 128, and 128 times the weights' sum
 * is taken away again. Eight positions with one or two tiles of outputs keep to the registers. */
#include "kernels/cpu/int8/store512.h"

#include <string.h>

enum { ROWS = 8, FEW = 4 };

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

static inline __attribute__((always_inline)) void some(const tr_int8_work *w, int b, int64_t from,
                                                       int64_t to, int rows, int tiles)
{
    const tr_int8_plan *p = w->p;
    __m512i acc[ROWS][TR_INT8_TILES];
    tr_int8_store s[TR_INT8_TILES];
    multiply(w, w->at[b] + from * p->step, rows, tiles, acc);
    for (int t = 0; t < tiles; t++) {
        s[t] = tr_int8_store_of(w->r, w->tile + t, w->left - t * 16);
        const __m512i sums = _mm512_loadu_si512(w->r->w.sums + (w->tile + t) * 16),
                      moved = p->x_signed ? _mm512_slli_epi32(sums, 7) : _mm512_setzero_si512();
        for (int i = 0; i < rows; i++) acc[i][t] = _mm512_sub_epi32(acc[i][t], moved);
    }
    const size_t O = (size_t)(p->s.groups * p->s.O), at = (size_t)to * O + (size_t)w->out;
    TR_INT8_BY_STORE(
        w->r, tr_int8_store_rows(s, tiles, acc[0], TR_INT8_TILES, 1, rows, TYPE, RESIDUAL, O, at));
}

static inline __attribute__((always_inline)) void span(const tr_int8_work *w, int b,
                                                       const tr_int8_span *n, int tiles)
{
    int64_t i = 0;
    for (; i + ROWS <= n->n; i += ROWS) some(w, b, n->from + i, n->to + i, ROWS, tiles);
    for (; i + FEW <= n->n; i += FEW) some(w, b, n->from + i, n->to + i, FEW, tiles);
    for (; i < n->n; i++) some(w, b, n->from + i, n->to + i, 1, tiles);
}

static void blocks(const tr_int8_work *w)
{
    for (int b = 0; b < w->nblocks; b++)
        for (int k = 0; k < w->nspans[b]; k++)
            w->ntiles == 2 ? span(w, b, &w->spans[b][k], 2) : span(w, b, &w->spans[b][k], 1);
}

const tr_int8_code tr_int8_vnni = {.blocks = blocks,
                                   .blocks_of_one = TR_INT8_BLOCKS,
                                   .blocks_of_two = TR_INT8_BLOCKS,
                                   .depthwise = tr_int8_depthwise_vnni};
