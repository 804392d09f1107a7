/* A product cut into pieces for threads, and each into blocks of positions with tiles of
 * outputs. */
#include "kernels/cpu/int8/int8.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static const tr_int8_code *code_of(tr_int8_level level)
{
#if TR_INT8_LEVELS > 1
    if (level == TR_INT8_AMX) return &tr_int8_amx;
    if (level == TR_INT8_VNNI) return &tr_int8_vnni;
#endif
    (void)level;
    return &tr_int8_base;
}

/* C bytes of each of `count` pixels that lie `pitch` apart; flip: 0, or 0x80 where signed bytes are
 * moved up by 128. */
static void copy_pixels(char *to, const uint8_t *x, size_t C, size_t pitch, size_t count,
                        uint8_t flip)
{
    const uint64_t flips = 0x0101010101010101u * flip;
    if (C == pitch) C *= count, count = 1;
    for (size_t i = 0; i < count; i++, to += C, x += pitch) {
        size_t k = 0;
        for (; flip && k + 8 <= C;
             k += 8) { /* what compilers leave byte by byte is a sixth of ResNet's first layer */
            uint64_t word;
            memcpy(&word, x + k, 8);
            word ^= flips;
            memcpy(to + k, &word, 8);
        }
        if (!flip) memcpy(to, x, C), k = C;
        for (; k < C; k++) to[k] = (char)(x[k] ^ flip);
    }
}

/* The image, `C` of its channels, with zeros around it. What is read behind it need not be
 * anything. */
static const uint8_t *copy_image(const tr_int8_plan *p, const uint8_t *x, int64_t C, uint8_t flip,
                                 char *to)
{
    const tr_int8_shape *s = &p->s;
    const size_t pitch = (size_t)(s->groups * s->C);
    const size_t row = (size_t)(s->W * C), padded = (size_t)(p->padded_w * C);
    const size_t side = (size_t)(s->padding[1] * C), above = (size_t)s->padding[0] * padded;
    char *at = to + above;
    memset(to, flip, above);
    for (int64_t h = 0; h < s->H; h++, at += padded, x += (size_t)s->W * pitch) {
        memset(at, flip, side);
        copy_pixels(at + side, x, (size_t)C, pitch, (size_t)s->W, flip);
        memset(at + side + row, flip, side);
    }
    memset(at, flip, above);
    return (const uint8_t *)to;
}

static const uint8_t *image_of(const tr_int8_plan *p, const tr_int8_run *r, int64_t image)
{
    return (const uint8_t *)r->x + image * p->s.H * p->s.W * p->s.groups * p->s.C;
}

/* The spans of the block at position `from` of a strip, of an image whose output begins at position
 * `first`. */
static int spans_of(const tr_int8_plan *p, int64_t first, int64_t strip, int64_t from,
                    tr_int8_span out[TR_INT8_SPANS])
{
    const int64_t left = p->length - from, n = left < p->block ? left : p->block;
    if (!p->flat) {
        out[0] = (tr_int8_span){.n = (int32_t)n, .to = first + strip * p->s.OW + from};
        return 1;
    }
    const int32_t width = (int32_t)p->padded_w, valid = (int32_t)p->s.OW;
    int32_t row = (int32_t)from / width, col = (int32_t)from % width, i = 0;
    int count = 0;
    while (i < n) {
        const int32_t end = i + valid - col < (int32_t)n ? i + valid - col : (int32_t)n;
        if (end > i)
            out[count++] = (tr_int8_span){.from = i, .n = end - i, .to = first + row * valid + col};
        i += width - col;
        row++;
        col = 0;
    }
    return count;
}

/* Blocks [begin, end) of an image's, with tiles [tile, tile + ntiles). */
static void run_blocks(const tr_int8_code *code, tr_int8_work *w, const uint8_t *x, int64_t image,
                       int64_t begin, int64_t end)
{
    const tr_int8_plan *p = w->p;
    const int64_t each = (p->length + p->block - 1) / p->block, first = image * p->s.OH * p->s.OW;
    w->nblocks = 0;
    int64_t strip = begin / each, from = begin % each * p->block;
    for (int64_t b = begin; b < end; b++, w->nblocks++) {
        w->at[w->nblocks] = x + strip * p->strip_bytes + from * p->step;
        w->nspans[w->nblocks] = spans_of(p, first, strip, from, w->spans[w->nblocks]);
        from += p->block;
        if (from >= p->length) from = 0, strip++;
    }
    code->blocks(w);
}

static char *workspace(const tr_int8_plan *p, const tr_int8_run *r)
{
    return r->workspace + (size_t)omp_get_thread_num() * p->image_bytes;
}

/* Blocks [from, to) of one group of an image, tiles [tile, end) of its outputs: the first two of
 * them. */
static int run_tiles(const tr_int8_code *code, tr_int8_work *w, const uint8_t *x, int64_t image,
                     int64_t group, int64_t tile, int64_t end, int64_t from, int64_t to)
{
    const tr_int8_shape *s = &w->p->s;
    w->tile = group * w->p->tiles + tile;
    w->out = group * s->O + tile * 16;
    w->left = s->O - tile * 16;
    w->ntiles = end - tile < TR_INT8_TILES ? (int)(end - tile) : TR_INT8_TILES;
    const int64_t most = w->ntiles == 1 ? code->blocks_of_one : code->blocks_of_two;
    for (int64_t b = from; b < to; b += most)
        run_blocks(code, w, x, image, b, b + most < to ? b + most : to);
    return w->ntiles;
}

/* Weights of one group that stay in a first-level cache beside the image's rows. */
static bool stays_near(const tr_int8_plan *p)
{
    enum { NEAR = 24 << 10 };
    return p->segments * (p->full * 16 + p->tail / 4) * p->tiles <= NEAR / 64;
}

/* What one thread computes at a time: tiles [begin, end) of one group's outputs, at the blocks
 * [from, to) of an image. */
typedef struct {
    int64_t image, group, begin, end, from, to;
} piece;

static int64_t blocks_in(const tr_int8_plan *p)
{
    return p->strips * ((p->length + p->block - 1) / p->block);
}

/* Weights are read once a piece, unless they stay near: then so does the image, and outputs are
 * written whole. */
static void run_piece(const tr_int8_code *code, const tr_int8_plan *p, const tr_int8_run *r,
                      const piece *q)
{
    const tr_int8_shape *s = &p->s;
    const uint8_t *x = image_of(p, r, q->image) + q->group * s->C;
    tr_int8_work w = {.p = p, .r = r};
    if (p->copied)
        x = copy_image(p, x, s->C, code->moved && p->x_signed ? 0x80 : 0, workspace(p, r));
    const int64_t some = code->run && stays_near(p) ? code->blocks_of_two : q->to - q->from;
    for (int64_t b = q->from; b < q->to; b += some)
        for (int64_t t = q->begin; t < q->end;)
            t += run_tiles(code, &w, x, q->image, q->group, t, q->end, b,
                           b + some < q->to ? b + some : q->to);
}

/* How an image's group is cut for threads, where there are fewer of these: by pairs of tiles, which
 * each read the image; where there are too few, too, by positions, in whole TR_INT8_BLOCKS of
 * blocks. */
typedef struct {
    int64_t all, pairs, tiles, positions; /* of images and groups; of a group's tiles; cuts */
} cutting;

static cutting cut_for(const tr_int8_plan *p, int threads)
{
    cutting c = {.all = p->s.images * p->s.groups,
                 .pairs = (p->tiles + TR_INT8_TILES - 1) / TR_INT8_TILES,
                 .tiles = 1,
                 .positions = 1};
    if (c.all == 0 || c.all >= threads) return c;
    c.tiles = c.pairs < threads ? c.pairs : threads;
    const int64_t left = threads / (c.all * c.tiles), most = blocks_in(p) / TR_INT8_BLOCKS;
    if (left > 1 && most > 1) c.positions = left < most ? left : most;
    return c;
}

static piece piece_at(const tr_int8_plan *p, const cutting *c, int64_t i)
{
    const int64_t each = c->tiles * c->positions, of = i / each;
    const int64_t tile = i % each / c->positions, at = i % c->positions;
    const int64_t fours = (blocks_in(p) + TR_INT8_BLOCKS - 1) / TR_INT8_BLOCKS;
    piece q = {.image = of / p->s.groups,
               .group = of % p->s.groups,
               .begin = c->pairs * tile / c->tiles * TR_INT8_TILES,
               .end = c->pairs * (tile + 1) / c->tiles * TR_INT8_TILES,
               .from = fours * at / c->positions * TR_INT8_BLOCKS,
               .to = fours * (at + 1) / c->positions * TR_INT8_BLOCKS};
    if (q.end > p->tiles) q.end = p->tiles;
    if (q.to > blocks_in(p)) q.to = blocks_in(p);
    return q;
}

/* The plan by rows that are whole runs, where the code has such, which are of two tiles. */
static tr_int8_plan by_runs(const tr_int8_code *code, const tr_int8_plan *p)
{
    tr_int8_plan q = *p;
    if (code->run == 0 || p->tiles == 1 || p->s.OW % code->run != 0) return q;
    q.flat = false;
    q.strips = p->s.OH;
    q.length = p->s.OW;
    q.block = code->run;
    return q;
}

static void run_depthwise(const tr_int8_code *code, const tr_int8_plan *p, const tr_int8_run *r)
{
    const int64_t blocks = p->tiles * 16 / TR_INT8_WIDE;
    const int64_t cuts = p->s.images >= r->threads ? 1 : blocks < r->threads ? blocks : r->threads;
    const int64_t pieces = p->s.images * cuts;
#pragma omp parallel for schedule(static) num_threads(r->threads) if (r->threads > 1 && pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        const uint8_t *x = image_of(p, r, i / cuts);
        if (p->copied) x = copy_image(p, x, p->s.groups, 0, workspace(p, r));
        code->depthwise(p, r, x, i / cuts, blocks * (i % cuts) / cuts,
                        blocks * (i % cuts + 1) / cuts);
    }
}

void tr_int8_product(tr_int8_level level, const tr_int8_plan *as_planned, const tr_int8_run *r)
{
    const tr_int8_code *code = code_of(level);
    if (as_planned->depthwise) {
        run_depthwise(code, as_planned, r);
        return;
    }
    const tr_int8_plan by_run = by_runs(code, as_planned), *p = &by_run;
    const cutting c = cut_for(p, r->threads);
    const int64_t pieces = c.all * c.tiles * c.positions;
#pragma omp parallel num_threads(r->threads) if (r->threads > 1 && pieces > 1)
    {
        if (code->begin) code->begin(p);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < pieces; i++) {
            const piece q = piece_at(p, &c, i);
            run_piece(code, p, r, &q);
        }
        if (code->end) code->end();
    }
}

/* ---- The portable level ---------------------------------------------------------------------- */

static int32_t product(const tr_int8_plan *p, const uint8_t *x, const int8_t *w, int o)
{
    const tr_int8_shape *s = &p->s;
    const bool together = s->dilation[1] == 1;
    const int64_t row = p->padded_w * s->C, chunks = p->full + (p->tail > 0);
    int32_t sum = 0;
    for (int64_t g = 0; g < p->segments; g++) {
        const int64_t ky = together ? g : g / s->kernel[1], kx = together ? 0 : g % s->kernel[1];
        const uint8_t *at = x + ky * s->dilation[0] * row + kx * s->dilation[1] * s->C;
        const int8_t *v = w + g * chunks * TR_INT8_TILE + o * 4;
        for (int64_t b = 0; b < p->segment_bytes; b++) {
            const int8_t q =
                v[b / TR_INT8_CHUNK * TR_INT8_TILE + b % TR_INT8_CHUNK / 4 * 64 + b % 4];
            sum += (p->x_signed ? (int32_t)(int8_t)at[b] : (int32_t)at[b]) * q;
        }
    }
    return sum;
}

void tr_int8_store_one(const tr_int8_run *r, int32_t acc, int64_t slot, size_t at)
{
    float v = fmaf((float)acc, r->w.factor[slot], r->w.shift[slot]);
    if (r->residual) {
        const float add = r->residual_signed ? ((const int8_t *)r->residual)[at]
                                             : ((const uint8_t *)r->residual)[at];
        v = fmaf(add, r->residual_scale, v);
    }
    if (r->relu) v = v > 0 ? v : 0;
    if (r->type == TR_F32) {
        ((float *)r->y)[at] = v;
    } else if (r->type == TR_BF16) {
        ((tr_bf16 *)r->y)[at] = tr_f32_to_bf16(v);
    } else {
        v = v > r->least ? v : r->least;
        ((uint8_t *)r->y)[at] = (uint8_t)(int)rintf(v < r->most ? v : r->most);
    }
}

static void base_span(const tr_int8_work *w, int b, const tr_int8_span *n)
{
    const tr_int8_plan *p = w->p;
    const int64_t tile_bytes = p->segments * (p->full + (p->tail > 0)) * TR_INT8_TILE;
    const int64_t outputs = w->left < w->ntiles * 16 ? w->left : w->ntiles * 16;
    for (int64_t i = 0; i < n->n; i++)
        for (int64_t k = 0; k < outputs; k++) {
            const int64_t slot = w->tile * 16 + k;
            const int32_t sum = product(p, w->at[b] + (n->from + i) * p->step,
                                        w->r->w.weights + slot / 16 * tile_bytes, (int)(slot % 16));
            tr_int8_store_one(w->r, sum, slot,
                              (size_t)((n->to + i) * p->s.groups * p->s.O + w->out + k));
        }
}

static void base_blocks(const tr_int8_work *w)
{
    for (int b = 0; b < w->nblocks; b++)
        for (int k = 0; k < w->nspans[b]; k++) base_span(w, b, &w->spans[b][k]);
}

const tr_int8_code tr_int8_base = {.blocks = base_blocks,
                                   .blocks_of_one = TR_INT8_BLOCKS,
                                   .blocks_of_two = TR_INT8_BLOCKS,
                                   .depthwise = tr_int8_depthwise_base};
