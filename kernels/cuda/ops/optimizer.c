/* The optimizer over a rank's segments, the decision before it, and the gradient's sum of squares:
 * set-up of the tables that the kernels of loops/optimizer*.cu work from. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/optimizer.h"
#include "kernels/cuda/offload.h"

#include <limits.h>

typedef struct {
    tr_cuda *cuda;
    tr_update_plan plan;
    tr_update_chunk *chunks;  /* on the device */
    tr_cuda_offload *offload; /* NULL: the slots are on the device */
} updater;

/* ---- Sum of squares -------------------------------------------------------------------------- */

tr_status tr_cuda_sums_open(tr_cuda *cuda)
{
    cuda->sums = tr_cuda_alloc(cuda, TR_MEM_OTHER, TR_SQUARES_PARTS * sizeof *cuda->sums);
    return cuda->sums ? TR_OK : tr_last_status();
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

/* ---- Chunks --------------------------------------------------------------------------------- */

static size_t chunks_of(tr_range r)
{
    return (tr_range_count(r) + TR_UPDATE_CHUNK - 1) / TR_UPDATE_CHUNK;
}

/* The chunks of segments, in ascending order; *out is NULL where there are none. */
static tr_status list_chunks(const tr_segment *segments, size_t nsegments, tr_update_chunk **out,
                             size_t *count)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < nsegments; i++) n += chunks_of(segments[i].range);
    *count = n;
    if (n == 0) return TR_OK;
    if (n > INT_MAX) return TR_FAIL(TR_UNSUPPORTED, "an optimizer over %zu parts", n);
    tr_update_chunk *chunks = tr_alloc(TR_MEM_OTHER, n, sizeof *chunks);
    if (!chunks) return tr_last_status();
    for (size_t i = 0; i < nsegments; i++) {
        const tr_segment *s = &segments[i];
        for (size_t begin = s->range.begin; begin < s->range.end; begin += TR_UPDATE_CHUNK) {
            const size_t left = s->range.end - begin;
            chunks[at++] = (tr_update_chunk){.begin = begin,
                                             .slot = s->slot + (begin - s->range.begin),
                                             .count = left < TR_UPDATE_CHUNK ? (unsigned)left
                                                                             : TR_UPDATE_CHUNK,
                                             .decay = s->decay,
                                             .lr_factor = s->lr_factor,
                                             .masked = s->masked,
                                             .adapt = s->adapt,
                                             .row = s->row,
                                             .own = s->own,
                                             .rates = s->rates};
        }
    }
    *out = chunks;
    return TR_OK;
}

/* On the device; NULL where there are none. */
static tr_status upload_chunks(tr_cuda *cuda, const tr_update_chunk *chunks, size_t n,
                               tr_update_chunk **out)
{
    if (n == 0) return TR_OK;
    *out = tr_cuda_alloc(cuda, TR_MEM_OTHER, n * sizeof *chunks);
    return *out ? tr_cuda_upload(cuda, *out, chunks, n * sizeof *chunks) : tr_last_status();
}

/* ---- The updater ----------------------------------------------------------------------------- */

static tr_status check(const tr_update *u)
{
    const bool means = u->kind == TR_UPDATE_ADAMW || u->kind == TR_UPDATE_ADAM ||
                       u->kind == TR_UPDATE_LAMB || u->kind == TR_UPDATE_LION;
    const bool squares = (means && u->kind != TR_UPDATE_LION) || u->kind == TR_UPDATE_RMSPROP;
    if ((means && !u->m) || (squares && !u->v) || (tr_update_has_norms(u->kind) && !u->norms))
        return TR_FAIL(TR_INTERNAL, "an optimizer lacks its moments");
    for (size_t i = 0; i < u->nsegments; i++) {
        const tr_range s = u->segments[i].range;
        if (s.begin > s.end || s.begin % 16 || s.end % 16 || u->segments[i].slot % 16)
            return TR_FAIL(TR_INTERNAL, "segment [%zu, %zu) is not made of 16 elements", s.begin,
                           s.end);
    }
    return TR_OK;
}

tr_status tr_cuda_updater_open(void *training, const tr_update *u, void **out)
{
    tr_status st = TR_OK;
    tr_cuda *ctx = tr_cuda_training_context(training);
    updater *x = TR_NEW(TR_MEM_OTHER, updater);
    if (!x) return tr_last_status();
    x->cuda = ctx;
    x->plan.u = *u;
    tr_update_chunk *chunks = NULL;
    TR_TRY(check(u));
    TR_TRY(list_chunks(u->segments, u->nsegments, &chunks, &x->plan.nchunks));
    if (u->offload && (u->m || u->v || u->a || u->ema))
        TR_TRY(tr_cuda_offload_open(ctx, u, chunks, x->plan.nchunks, &x->offload));
    TR_TRY(upload_chunks(ctx, chunks, x->plan.nchunks, &x->chunks));
    x->plan.chunks = x->chunks;
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
    tr_cuda_offload_close(x->offload);
    tr_cuda_free(x->cuda, x->chunks);
    tr_free(x);
}

tr_status tr_cuda_updater_decide(void *opened, tr_control *c)
{
    const updater *x = opened;
    return tr_decide_launch(x->cuda->stream, &x->plan, c);
}

/* Norms: those of LAMB move the moments on, LARS's are of weights and gradients alone. */
tr_status tr_cuda_updater_measure(void *opened, const tr_control *c)
{
    const updater *x = opened;
    const bool moves = x->plan.u.kind == TR_UPDATE_LAMB;
    const unsigned moments = TR_SLOT_M | TR_SLOT_V;
    tr_status st;
    TR_TRY(tr_measure_begin(x->cuda->stream, &x->plan));
    st = x->offload && moves
             ? tr_cuda_offload_run(x->offload, &x->plan, c, moments, moments, tr_measure_launch)
             : tr_measure_launch(x->cuda->stream, &x->plan, c);
    if (st == TR_OK) st = tr_measure_end(x->cuda->stream, &x->plan);
out:
    return st;
}

tr_status tr_cuda_updater_run(void *opened, const tr_control *c)
{
    const updater *x = opened;
    const unsigned all = TR_SLOT_M | TR_SLOT_V | TR_SLOT_A | TR_SLOT_EMA;
    if (x->plan.nchunks == 0) return TR_OK;
    if (!x->offload) return tr_update_launch(x->cuda->stream, &x->plan, c);
    const bool moved = x->plan.u.kind == TR_UPDATE_LAMB; /* when its norms were measured */
    return tr_cuda_offload_run(x->offload, &x->plan, c, all, moved ? TR_SLOT_EMA : all,
                               tr_update_launch);
}

tr_status tr_cuda_updater_swap_ema(void *opened)
{
    const updater *x = opened;
    if (!x->plan.u.ema) return TR_FAIL(TR_INTERNAL, "there is no average to swap");
    if (x->plan.nchunks == 0) return TR_OK;
    return x->offload ? tr_cuda_offload_run(x->offload, &x->plan, NULL, TR_SLOT_EMA, TR_SLOT_EMA,
                                            tr_swap_launch)
                      : tr_swap_launch(x->cuda->stream, &x->plan, NULL);
}

/* ---- Squares of ranges ----------------------------------------------------------------------- */

typedef struct {
    tr_cuda *cuda;
    const float *g;
    tr_update_chunk *chunks; /* on the device */
    size_t nchunks;
} squares;

void tr_cuda_squares_close(void *opened)
{
    squares *x = opened;
    if (!x) return;
    tr_cuda_free(x->cuda, x->chunks);
    tr_free(x);
}

tr_status tr_cuda_squares_open(void *ctx, const float *g, const tr_range *ranges, size_t nranges,
                               void **out)
{
    tr_status st = TR_OK;
    tr_segment *segments = tr_alloc(TR_MEM_OTHER, nranges, sizeof *segments);
    squares *x = TR_NEW(TR_MEM_OTHER, squares);
    tr_update_chunk *chunks = NULL;
    TR_HAVE(segments && x);
    x->cuda = ctx;
    x->g = g;
    for (size_t i = 0; i < nranges; i++) segments[i].range = ranges[i];
    TR_TRY(list_chunks(segments, nranges, &chunks, &x->nchunks));
    TR_TRY(upload_chunks(ctx, chunks, x->nchunks, &x->chunks));
out:
    tr_free(chunks);
    tr_free(segments);
    if (st != TR_OK) {
        tr_cuda_squares_close(x);
        return st;
    }
    *out = x;
    return TR_OK;
}

tr_status tr_cuda_squares_run(void *opened, double *out)
{
    const squares *x = opened;
    return tr_chunk_squares_launch(x->cuda->stream, x->g, x->chunks, x->nchunks, x->cuda->sums,
                                   out);
}
