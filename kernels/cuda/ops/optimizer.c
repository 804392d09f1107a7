/* The optimizer over a rank's segments, the decision before it, and the gradient's sum of squares:
 * set-up of the tables that the kernels of loops/optimizer*.cu work from. */
#include "kernels/cuda/loops/optimizer.h"

#include "runtime/config/config.h"

#include <limits.h>

typedef struct {
    tr_cuda *cuda;
    tr_update_plan plan;
    tr_update_chunk *chunks; /* on the device */
} updater;

/* ---- Sum of squares -------------------------------------------------------------------------- */

tr_status tr_cuda_sums_open(tr_cuda *cuda)
{
    cuda->sums = tr_cuda_alloc(cuda, TR_MEM_OTHER, TR_SQUARES_PARTS * sizeof *cuda->sums);
    return cuda->sums ? TR_OK : tr_last_error()->status;
}

void tr_cuda_sums_close(tr_cuda *cuda)
{
    tr_cuda_free(cuda, cuda->sums);
    cuda->sums = NULL;
}

tr_status tr_cuda_sum_squares(void *ctx, const float *g, size_t count, double *out)
{
    const tr_cuda *cuda = ctx;
    return tr_sum_squares_launch(cuda->stream, g, count, cuda->sums, out);
}

/* ---- The updater ----------------------------------------------------------------------------- */

static size_t chunks_of(const tr_segment *s)
{
    return (s->end - s->begin + TR_UPDATE_CHUNK - 1) / TR_UPDATE_CHUNK;
}

static tr_status check(const tr_update *u)
{
    if (u->kind != TR_OPT_SGD && (!u->m || (u->kind == TR_OPT_ADAMW && !u->v)))
        return TR_FAIL(TR_INTERNAL, "an optimizer lacks its moments");
    for (size_t i = 0; i < u->nsegments; i++) {
        const tr_segment *s = &u->segments[i];
        if (s->begin > s->end || s->begin % 16 || s->end % 16)
            return TR_FAIL(TR_INTERNAL, "segment [%zu, %zu) is not made of 16 elements", s->begin,
                           s->end);
    }
    return TR_OK;
}

/* The table of chunks, in ascending order, in host memory to be freed. */
static tr_status cut(const tr_update *u, tr_update_chunk **out, size_t *count)
{
    size_t n = 0;
    for (size_t i = 0; i < u->nsegments; i++) n += chunks_of(&u->segments[i]);
    if (n > INT_MAX) return TR_FAIL(TR_UNSUPPORTED, "an optimizer over %zu parts", n);
    tr_update_chunk *chunks = tr_alloc(TR_MEM_OTHER, n, sizeof *chunks);
    if (!chunks) return TR_MEMORY;
    *out = chunks;
    *count = n;
    for (size_t i = 0; i < u->nsegments; i++) {
        const tr_segment *s = &u->segments[i];
        for (size_t at = s->begin; at < s->end; at += TR_UPDATE_CHUNK) {
            const size_t left = s->end - at;
            *chunks++ = (tr_update_chunk){
                at, left < TR_UPDATE_CHUNK ? (unsigned)left : TR_UPDATE_CHUNK, s->decay,
                s->lr_factor};
        }
    }
    return TR_OK;
}

tr_status tr_cuda_updater_open(void *training, const tr_update *u, void **out)
{
    tr_status st = TR_OK;
    tr_cuda *ctx = tr_cuda_training_context(training);
    tr_update_chunk *chunks = NULL;
    updater *x = TR_NEW(TR_MEM_OTHER, updater);
    if (!x) return TR_MEMORY;
    x->cuda = ctx;
    x->plan.u = *u;
    TR_TRY(check(u));
    TR_TRY(cut(u, &chunks, &x->plan.nchunks));
    if (x->plan.nchunks > 0) {
        const size_t nbytes = x->plan.nchunks * sizeof *chunks;
        x->chunks = tr_cuda_alloc(ctx, TR_MEM_OTHER, nbytes);
        if (!x->chunks) st = tr_last_error()->status;
        TR_TRY(st);
        x->plan.chunks = x->chunks;
        TR_TRY(tr_cuda_upload(ctx, x->chunks, chunks, nbytes));
    }
out:
    tr_free(chunks);
    if (st != TR_OK) {
        tr_cuda_updater_close(x);
        return st;
    }
    *out = x;
    return TR_OK;
}

void tr_cuda_updater_close(void *opened)
{
    updater *x = opened;
    if (!x) return;
    tr_cuda_free(x->cuda, x->chunks);
    tr_free(x);
}

tr_status tr_cuda_updater_decide(void *opened, tr_control *c)
{
    const updater *x = opened;
    return tr_decide_launch(x->cuda->stream, &x->plan, c);
}

tr_status tr_cuda_updater_run(void *opened, const tr_control *c)
{
    const updater *x = opened;
    return x->plan.nchunks > 0 ? tr_update_launch(x->cuda->stream, &x->plan, c) : TR_OK;
}

tr_status tr_cuda_updater_swap_ema(void *opened)
{
    const updater *x = opened;
    if (!x->plan.u.ema) return TR_FAIL(TR_INTERNAL, "there is no average to swap");
    return x->plan.nchunks > 0 ? tr_swap_launch(x->cuda->stream, &x->plan) : TR_OK;
}
