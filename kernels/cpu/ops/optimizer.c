/* The optimizer over a rank's segments, shared out over the threads in chunks. */
#include "kernels/cpu/ops/loop_kernel.h"
#include "runtime/device/host.h"

#include <math.h>
#include <string.h>

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

static tr_sweep sweep_of(const tr_update *u, const tr_segment *g, const tr_control *c)
{
    const tr_rates r = tr_update_rates(u, g->own, &g->rates);
    return (tr_sweep){
        .kind = u->kind,
        .beta1 = r.beta1,
        .beta2 = r.beta2,
        .eps = r.eps,
        .momentum = r.momentum,
        .nesterov = u->nesterov,
        .ema_decay = u->ema_decay,
        .grad_scale = c->grad_scale,
        .correct1 = tr_update_correct(u, g->own, r.beta1, c->correct1, c->updates),
        .correct2 = tr_update_correct(u, g->own, r.beta2, c->correct2, c->updates),
        .decay = g->decay,
        .trust = g->adapt ? tr_update_trust(u, u->norms + g->row * TR_NORM_CELLS, g->decay) : 1,
        .masked = g->masked,
        .lr = c->in.lr * g->lr_factor,
        .w = u->w + g->range.begin,
        .g = u->g + g->range.begin,
        .m = at(u->m, g->slot),
        .v = at(u->v, g->slot),
        .a = at(u->a, g->slot),
        .ema = at(u->ema, g->slot),
        .count = tr_range_count(g->range),
    };
}

/* Integers: the order does not matter. */
static void add_exactly(uint64_t *cells, const double *values, size_t count)
{
    uint64_t own[TR_EXACT_DIGITS] = {0}, digits[3];
    int place;
    for (size_t i = 0; i < count; i++)
        if (tr_exact_cut(values[i], &place, digits))
            for (int d = 0; d < 3; d++) own[place + d] += digits[d];
    for (int d = 0; d < TR_EXACT_DIGITS; d++)
        if (own[d]) __atomic_fetch_add(&cells[d], own[d], __ATOMIC_RELAXED);
}

/* One part of a segment. */
static void measure(const tr_cpu_loops *loops, const tr_sweep *s, size_t begin, size_t end,
                    uint64_t *cells)
{
    enum { BLOCKS = 512 };
    double sums[TR_NORMS][BLOCKS];
    for (size_t at = begin, n; at < end; at += n) {
        n = end - at < 16 * BLOCKS ? end - at : 16 * BLOCKS;
        loops->update_norms(s, at, at + n, sums[TR_NORM_WEIGHT], sums[TR_NORM_STEP]);
        for (int k = 0; k < TR_NORMS; k++)
            add_exactly(cells + k * TR_EXACT_DIGITS, sums[k], n / 16);
    }
}

tr_status tr_cpu_updater_measure(void *opened, const tr_control *c)
{
    const updater *x = opened;
    const tr_update *u = &x->u;
    uint64_t *cells = (uint64_t *)(void *)u->norms; /* until they are settled */
    memset(cells, 0, u->nrows * TR_NORM_CELLS * sizeof *cells);
    for (size_t i = 0; c->apply && i < u->nsegments; i++) {
        tr_segment plain = u->segments[i];
        plain.adapt = false;
        const tr_sweep s = sweep_of(u, &plain, c);
        TR_PARALLEL(x->t->base.threads, tr_chunks(s.count, TR_CHUNK))
        for (size_t k = 0; k < tr_chunks(s.count, TR_CHUNK); k++)
            measure(x->t->loops, &s, k * TR_CHUNK,
                    k * TR_CHUNK + tr_chunk_size(s.count, TR_CHUNK, k),
                    cells + plain.row * TR_NORM_CELLS);
    }
    for (size_t i = 0; i < u->nrows * TR_NORMS; i++) tr_exact_settle(cells + i * TR_EXACT_DIGITS);
    return TR_OK;
}

tr_status tr_cpu_updater_run(void *opened, const tr_control *c)
{
    const updater *x = opened;
    const tr_update *u = &x->u;
    for (size_t i = 0; c->apply && i < u->nsegments; i++) {
        const tr_sweep s = sweep_of(u, &u->segments[i], c);
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
