/* The optimizer over the ranges that this rank owns: cuts them into segments that are updated
 * alike, over which the backend sweeps. */
#include "trainer/optimizer.h"

struct tr_optimizer {
    const tr_backend *backend;
    void *updater;
    tr_segment segments[];
};

int tr_optimizer_slots(const tr_config *c, const char *names[4])
{
    int n = 0;
    switch ((tr_optimizer_kind)c->train.optimizer.kind.which) {
    case TR_OPT_SGD:
        if (c->train.optimizer.o.momentum > 0) names[n++] = "momentum_buffer";
        break;
    case TR_OPT_ADAMW:
        names[n++] = "exp_avg";
        names[n++] = "exp_avg_sq";
        break;
    case TR_OPT_LION:
        names[n++] = "exp_avg";
        break;
    }
    if (c->train.ema > 0) names[n++] = "ema";
    return n;
}

/* The parameter at a place of the flat space; each takes the padding behind it. */
static const tr_param *param_at(const tr_model *m, size_t at)
{
    for (size_t p = 0; p < m->nparams; p++) {
        const tr_param *a = &m->params[p];
        if (at >= a->offset && at < a->offset + tr_align_up(a->count, 16)) return a;
    }
    return NULL;
}

/* Ascending, neighbours that are updated alike in one, frozen ones in none. Counts only where `out` is
 * NULL. */
static size_t cut(const tr_model *m, const tr_range *owned, size_t nowned,
                  const tr_optimizer_config *c, tr_segment *out)
{
    size_t n = 0;
    for (size_t r = 0; r < nowned; r++) {
        tr_segment last = {0}; /* an empty one */
        for (size_t at = owned[r].begin, end; at < owned[r].end; at = end) {
            const tr_param *a = param_at(m, at);
            end = a->offset + tr_align_up(a->count, 16);
            if (end > owned[r].end) end = owned[r].end;
            if (a->frozen) continue;
            tr_segment s = {at, end, a->decay || c->decay_all ? c->weight_decay * a->decay_factor : 0,
                            a->lr_factor};
            if (last.end == at && last.begin < last.end && last.decay == s.decay &&
                last.lr_factor == s.lr_factor)
                s.begin = last.begin;
            else
                n++;
            if (out) out[n - 1] = s;
            last = s;
        }
    }
    return n;
}

tr_status tr_optimizer_open(const tr_config *c, const tr_model *m, tr_reducer *r,
                            const tr_backend *backend, void *training, tr_optimizer **out)
{
    const tr_optimizer_config *oc = &c->train.optimizer.o;
    const char *names[4];
    const int nslots = tr_optimizer_slots(c, names), nmoments = nslots - (c->train.ema > 0);
    size_t nowned;
    const tr_range *owned = tr_reducer_owned(r, &nowned);
    const size_t n = cut(m, owned, nowned, oc, NULL);
    tr_optimizer *o = tr_alloc(TR_MEM_OTHER, sizeof *o + n * sizeof(tr_segment), 1);
    if (!o) return TR_MEMORY;
    o->backend = backend;
    cut(m, owned, nowned, oc, o->segments);
    const tr_update u = {
        .kind = c->train.optimizer.kind.which,
        .beta1 = oc->beta1,
        .beta2 = oc->beta2,
        .eps = oc->eps,
        .momentum = oc->momentum,
        .nesterov = oc->nesterov,
        .ema_decay = c->train.ema,
        .w = tr_reducer_weights(r),
        .g = tr_reducer_grads(r),
        .m = nmoments > 0 ? tr_reducer_slot(r, 0) : NULL,
        .v = nmoments > 1 ? tr_reducer_slot(r, 1) : NULL,
        .ema = c->train.ema > 0 ? tr_reducer_slot(r, nslots - 1) : NULL,
        .segments = o->segments,
        .nsegments = n,
    };
    const tr_status st = backend->training->updater_open(training, &u, &o->updater);
    if (st != TR_OK) {
        tr_free(o);
        return st;
    }
    *out = o;
    return TR_OK;
}

void tr_optimizer_close(tr_optimizer *o)
{
    if (!o) return;
    o->backend->training->updater_close(o->updater);
    tr_free(o);
}

tr_status tr_optimizer_step(tr_optimizer *o, tr_control *c)
{
    const tr_status st = o->backend->training->updater_decide(o->updater, c);
    return st == TR_OK ? o->backend->training->updater_run(o->updater, c) : st;
}

tr_status tr_optimizer_swap_ema(tr_optimizer *o)
{
    return o->backend->training->updater_swap_ema(o->updater);
}
