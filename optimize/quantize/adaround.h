/* What the files of AdaRound share. Private to them. */
#ifndef TR_QUANTIZE_ADAROUND_H
#define TR_QUANTIZE_ADAROUND_H

#include "kernels/cpu/cpu.h"
#include "optimize/quantize/internal.h"

/* ---- moments.c ------------------------------------------------------------------------------- */

/* What an output's window reads: of an image (channels, height, width) with its layout, or a
 * row. */
typedef struct {
    const tr_evaluator *e;
    const tr_layer *l;
    tr_product product;
    int64_t kernel[2];
    size_t K; /* values of the window, which is of its group's channels */
    /* So many of them that follow each other are looked at together: all, up to TR_ADAROUND_WINDOW,
     * or fewer where there are very many. */
    size_t block;
} tr_reading;
tr_reading tr_reading_of(const tr_evaluator *e, const tr_network *n, const tr_layer *l);
/* Of a group. */
static inline size_t tr_reading_blocks(const tr_reading *v)
{
    return (v->K + v->block - 1) / v->block;
}
/* Values of block k. */
static inline size_t tr_reading_values(const tr_reading *v, size_t k)
{
    return v->K - k * v->block < v->block ? v->K - k * v->block : v->block;
}
/* From one row of H to the next, and of what is multiplied with it. */
static inline size_t tr_reading_pitch(size_t K)
{
    return tr_align_up(K, TR_CPU_COLUMNS);
}
/* Floats from one block's H to the next. */
static inline size_t tr_reading_apart(const tr_reading *v)
{
    return v->block * tr_reading_pitch(v->block);
}
/* *Collective.* *H, of tr_alloc: of each block of each group, in this order, [values * pitch]; of
 * what layer `steps` of `both` makes of the first samples of data.train. The same bits on any
 * number of ranks and threads. */
tr_status tr_reading_moments(tr_evaluator *e, const tr_network *both, const tr_config *config,
                             uint64_t samples, tr_reading *v, const char *steps, float **H);

/* ---- rounding.c ------------------------------------------------------------------------------ */

/* A layer's outputs that this rank rounds: first, first + stride, ... */
typedef struct {
    size_t K, outputs, first, stride;
    size_t row;         /* from one output's K weights to the next */
    const float *H;     /* [K * pitch] */
    const float *w;     /* [outputs * row], as they were */
    const float *scale; /* [outputs] */
    float *rounded;     /* [outputs * row]: to nearest; becomes what is better */
    int threads;
    bool (*stop)(void *ctx); /* as in tr_int8_options; asked by the calling thread */
    void *stop_ctx;
} tr_rounding;
/* *Local.* The same bits however outputs are dealt to ranks and threads. TR_STOPPED: with values
 * undefined. */
tr_status tr_round_outputs(const tr_rounding *r);

#endif
