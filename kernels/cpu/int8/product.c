/* A product cut into pieces for threads, and each into blocks of positions with tiles of outputs. */
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

/* The image with zeros around it. What is read behind it need not be anything. */
static const uint8_t *copy_image(const tr_int8_plan *p, const uint8_t *x, char *to)
{
    const tr_int8_shape *s = &p->s;
    const size_t row = (size_t)(s->W * s->C), padded = (size_t)(p->padded_w * s->C);
    const size_t side = (size_t)(s->padding[1] * s->C), above = (size_t)s->padding[0] * padded;
    char *at = to + above;
    memset(to, 0, above);
    for (int64_t h = 0; h < s->H; h++, at += padded, x += row) {
        memset(at, 0, side);
        memcpy(at + side, x, row);
        memset(at + side + row, 0, side);
    }
    memset(at, 0, above);
    return (const uint8_t *)to;
}

/* The number in an image's output of position `at` of a strip; -1: none. */
static int64_t position(const tr_int8_plan *p, int64_t strip, int64_t at)
{
    if (at >= p->length) return -1;
    if (!p->flat) return strip * p->s.OW + at;
    const int32_t row = (int32_t)at / (int32_t)p->padded_w,
                  col = (int32_t)at % (int32_t)p->padded_w;
    return col < p->s.OW ? row * p->s.OW + col : -1;
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
        for (int64_t i = 0; i < p->block; i++) {
            const int64_t at = position(p, strip, from + i);
            w->to[w->nblocks][i] = at < 0 ? -1 : first + at;
        }
        from += p->block;
        if (from >= p->length) from = 0, strip++;
    }
    code->blocks(w);
}

/* One image, tiles [begin, end) of the outputs. */
static void run_image(const tr_int8_code *code, const tr_int8_plan *p, const tr_int8_run *r,
                      int64_t image, int64_t begin, int64_t end)
{
    const tr_int8_shape *s = &p->s;
    const uint8_t *x = (const uint8_t *)r->x + image * s->H * s->W * s->C;
    const int64_t nblocks = p->strips * ((p->length + p->block - 1) / p->block);
    tr_int8_work w = {.p = p, .r = r};
    if (p->copied)
        x = copy_image(p, x, r->workspace + (size_t)omp_get_thread_num() * p->image_bytes);
    for (int64_t t = begin; t < end; t += w.ntiles) {
        w.tile = t;
        w.ntiles = end - t < TR_INT8_TILES ? (int)(end - t) : TR_INT8_TILES;
        const int64_t most = w.ntiles == 1 ? code->blocks_of_one : code->blocks_of_two;
        for (int64_t b = 0; b < nblocks; b += most)
            run_blocks(code, &w, x, image, b, b + most < nblocks ? b + most : nblocks);
    }
}

void tr_int8_product(tr_int8_level level, const tr_int8_plan *p, const tr_int8_run *r)
{
    const tr_int8_code *code = code_of(level);
    /* images first; where there are too few, tiles of outputs */
    const int64_t groups = (p->tiles + TR_INT8_TILES - 1) / TR_INT8_TILES;
    const int64_t cuts = p->s.images >= r->threads ? 1 : groups < r->threads ? groups : r->threads;
    const int64_t pieces = p->s.images * cuts;
#pragma omp parallel num_threads(r->threads) if (r->threads > 1 && pieces > 1)
    {
        if (code->begin) code->begin(p);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < pieces; i++) {
            const int64_t cut = i % cuts;
            const int64_t begin = groups * cut / cuts * TR_INT8_TILES,
                          end = groups * (cut + 1) / cuts * TR_INT8_TILES;
            run_image(code, p, r, i / cuts, begin, end < p->tiles ? end : p->tiles);
        }
        if (code->end) code->end();
    }
}

/* ---- The portable level ------------------------------------------------------------------------ */

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

static void store(const tr_int8_run *r, int32_t acc, int64_t o, size_t at)
{
    float v = fmaf((float)acc, r->w.factor[o], r->w.shift[o]);
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

static void base_blocks(const tr_int8_work *w)
{
    const tr_int8_plan *p = w->p;
    const int64_t tile_bytes = p->segments * (p->full + (p->tail > 0)) * TR_INT8_TILE;
    for (int b = 0; b < w->nblocks; b++)
        for (int64_t i = 0; i < p->block; i++) {
            if (w->to[b][i] < 0) continue;
            for (int64_t o = w->tile * 16; o < (w->tile + w->ntiles) * 16 && o < p->s.O; o++)
                store(w->r,
                      product(p, w->at[b] + i * p->step, w->r->w.weights + o / 16 * tile_bytes,
                              (int)(o % 16)),
                      o, (size_t)(w->to[b][i] * p->s.O + o));
        }
}

const tr_int8_code tr_int8_base = {
    .blocks = base_blocks, .blocks_of_one = TR_INT8_BLOCKS, .blocks_of_two = TR_INT8_BLOCKS};
