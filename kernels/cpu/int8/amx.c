/* Products on AMX tiles. Tiles 0 to 3 hold sums of a block of positions and 16 outputs each: up to
 * four blocks with one tile of weights, two with two. 4 and 6 hold a chunk of positions and of
 * weights; 5 and 7 the last, shorter chunk. */
#include "kernels/cpu/int8/store512.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool tr_int8_amx_allowed(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void begin(const tr_int8_plan *p)
{
    struct {
        uint8_t palette, start;
        uint8_t reserved[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int t = 0; t < 4; t++) c.rows[t] = (uint8_t)p->block, c.colsb[t] = 64;
    const int tail = p->tail ? (int)p->tail : 64;
    c.rows[4] = c.rows[5] = (uint8_t)p->block;
    c.colsb[4] = 64;
    c.colsb[5] = (uint16_t)tail;
    c.rows[6] = 16;
    c.rows[7] = (uint8_t)(tail / 4);
    c.colsb[6] = c.colsb[7] = 64;
    /* gcc 11 and 12 take the instruction for one that reads 8 bytes, and drop what fills the
     * others */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

static void end(void)
{
    _tile_release();
}

/* sums(c) += x(a) * weights(b), x signed or not */
#define DOT(is_signed, c, a, b)                                                                    \
    do {                                                                                           \
        if (is_signed)                                                                             \
            _tile_dpbssd(c, a, b);                                                                 \
        else                                                                                       \
            _tile_dpbusd(c, a, b);                                                                 \
    } while (0)
#define BLOCK(i, c, a, b)                                                                          \
    do {                                                                                           \
        _tile_loadd(a, at[i] + from, step);                                                        \
        DOT(is_signed, c, a, b);                                                                   \
    } while (0)

/* One chunk: a, b name the tiles to load. */
#define CHUNK(a, b)                                                                                \
    do {                                                                                           \
        _tile_loadd(b, v, 64);                                                                     \
        BLOCK(0, 0, a, b);                                                                         \
        if (two) {                                                                                 \
            if (nblocks > 1) BLOCK(1, 1, a, b);                                                    \
            _tile_loadd(b, v + other, 64);                                                         \
            BLOCK(0, 2, a, b);                                                                     \
            if (nblocks > 1) BLOCK(1, 3, a, b);                                                    \
        } else {                                                                                   \
            if (nblocks > 1) BLOCK(1, 1, a, b);                                                    \
            if (nblocks > 2) BLOCK(2, 2, a, b);                                                    \
            if (nblocks > 3) BLOCK(3, 3, a, b);                                                    \
        }                                                                                          \
        v += TR_INT8_TILE;                                                                         \
    } while (0)

static inline __attribute__((always_inline)) void multiply(const tr_int8_work *w, bool is_signed,
                                                           bool two)
{
    const tr_int8_plan *p = w->p;
    const tr_int8_shape *s = &p->s;
    const bool together = s->dilation[1] == 1;
    const int nblocks = w->nblocks;
    const uint8_t *const *at = w->at;
    const long step = p->step;
    const int64_t row = p->padded_w * s->C;
    const int64_t other = p->segments * (p->full + (p->tail > 0)) * TR_INT8_TILE;
    const int8_t *v = w->r->w.weights + w->tile * other;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t g = 0; g < p->segments; g++) {
        const int64_t ky = together ? g : g / s->kernel[1], kx = together ? 0 : g % s->kernel[1];
        int64_t from = ky * s->dilation[0] * row + kx * s->dilation[1] * s->C;
        for (int64_t k = 0; k < p->full; k++, from += TR_INT8_CHUNK) CHUNK(4, 6);
        if (p->tail) CHUNK(5, 7);
    }
}

static inline __attribute__((always_inline)) void write_blocks(const tr_int8_work *w,
                                                               const int32_t sums[4][256],
                                                               int tiles, tr_dtype type,
                                                               bool residual)
{
    const size_t O = (size_t)(w->p->s.groups * w->p->s.O);
    tr_int8_store s[TR_INT8_TILES];
    for (int t = 0; t < tiles; t++) s[t] = tr_int8_store_of(w->r, w->tile + t, w->left - t * 16);
    for (int b = 0; b < w->nblocks; b++)
        for (int k = 0; k < w->nspans[b]; k++) {
            const tr_int8_span *n = &w->spans[b][k];
            /* of the second tile: two blocks on */
            tr_int8_store_rows(s, tiles, (const __m512i *)sums[b] + n->from, 1, 2 * 16, n->n, type,
                               residual, O, (size_t)n->to * O + (size_t)w->out);
        }
}

static void blocks(const tr_int8_work *w)
{
    _Alignas(64) int32_t sums[4][256];
    const bool is_signed = w->p->x_signed, two = w->ntiles == 2;
    if (is_signed && two)
        multiply(w, true, true);
    else if (is_signed)
        multiply(w, true, false);
    else if (two)
        multiply(w, false, true);
    else
        multiply(w, false, false);
    _tile_stored(0, sums[0], 64);
    if (w->nblocks > 1) _tile_stored(1, sums[1], 64);
    if (two || w->nblocks > 2) _tile_stored(2, sums[2], 64);
    if (two ? w->nblocks > 1 : w->nblocks > 3) _tile_stored(3, sums[3], 64);
    if (two)
        TR_INT8_BY_STORE(w->r, write_blocks(w, sums, 2, TYPE, RESIDUAL));
    else
        TR_INT8_BY_STORE(w->r, write_blocks(w, sums, 1, TYPE, RESIDUAL));
}

const tr_int8_code tr_int8_amx = {.begin = begin,
                                  .blocks = blocks,
                                  .end = end,
                                  .blocks_of_one = 4,
                                  .blocks_of_two = 2,
                                  .depthwise = tr_int8_depthwise_vnni};
