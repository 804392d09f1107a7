/* The optimizer over a rank's segments, shared out over the threads in chunks. */
#include "kernels/cpu/ops/loop_kernel.h"
#include "runtime/device/host.h"

#include <math.h>

typedef struct {
    tr_host_training base;
    const tr_cpu_loops *loops;
} training;

typedef struct {
    const training *t;
    tr_update u;
} updater;

tr_status tr_cpu_training_open(void *ctx, int threads, void **out)
{
    training *t = TR_NEW(TR_MEM_OTHER, training);
    if (!t) return tr_last_status();
    t->base.threads = threads > 0 ? threads : 1;
    t->loops = ((const tr_cpu *)ctx)->loops;
    *out = t;
    return TR_OK;
}

void tr_cpu_training_close(void *opened)
{
    tr_free(opened);
}

tr_status tr_cpu_updater_open(void *opened, const tr_update *u, void **out)
{
    updater *x = TR_NEW(TR_MEM_OTHER, updater);
    if (!x) return tr_last_status();
    x->t = opened;
    x->u = *u;
    *out = x;
    return TR_OK;
}

void tr_cpu_updater_close(void *opened)
{
    tr_free(opened);
}

static float *at(float *p, size_t i)
{
    return p ? p + i : NULL;
}

tr_status tr_cpu_updater_run(void *opened, const tr_control *c)
{
    const updater *x = opened;
    const tr_update *u = &x->u;
    tr_sweep s = {.kind = u->kind,
                  .beta1 = u->beta1,
                  .beta2 = u->beta2,
                  .eps = u->eps,
                  .momentum = u->momentum,
                  .nesterov = u->nesterov,
                  .ema_decay = u->ema_decay,
                  .grad_scale = c->grad_scale,
                  .correct1 = c->correct1,
                  .correct2 = c->correct2};
    for (size_t i = 0; c->apply && i < u->nsegments; i++) {
        const tr_segment *g = &u->segments[i];
        s.decay = g->decay;
        s.masked = g->masked;
        s.lr = c->in.lr * g->lr_factor;
        s.w = u->w + g->range.begin;
        s.g = u->g + g->range.begin;
        s.m = at(u->m, g->slot);
        s.v = at(u->v, g->slot);
        s.ema = at(u->ema, g->slot);
        s.count = tr_range_count(g->range);
        TR_PARALLEL(x->t->base.threads, tr_chunks(s.count, TR_CHUNK))
        for (size_t k = 0; k < tr_chunks(s.count, TR_CHUNK); k++)
            x->t->loops->update(&s, k * TR_CHUNK,
                                k * TR_CHUNK + tr_chunk_size(s.count, TR_CHUNK, k));
    }
    return TR_OK;
}

static uint64_t first_nonfinite(const tr_update *u)
{
    for (size_t i = 0; i < u->nsegments; i++)
        for (size_t e = u->segments[i].range.begin; e < u->segments[i].range.end; e++)
            if (!isfinite(u->g[e])) return e;
    return UINT64_MAX;
}

tr_status tr_cpu_updater_decide(void *opened, tr_control *c)
{
    const updater *x = opened;
    const bool good = isfinite(c->sum_squares) && isfinite(c->sums[TR_TALLY_LOSS]);
    c->first_nonfinite = good ? UINT64_MAX : first_nonfinite(&x->u);
    tr_control_decide(c);
    return TR_OK;
}

tr_status tr_cpu_updater_swap_ema(void *opened)
{
    const tr_update *u = &((const updater *)opened)->u;
    for (size_t i = 0; i < u->nsegments; i++) {
        float *w = u->w + u->segments[i].range.begin, *ema = u->ema + u->segments[i].slot;
        for (size_t e = 0; e < tr_range_count(u->segments[i].range); e++) {
            const float kept = w[e];
            w[e] = ema[e];
            ema[e] = kept;
        }
    }
    return TR_OK;
}
