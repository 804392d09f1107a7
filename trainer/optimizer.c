/* The optimizer over the ranges that this rank owns: cuts them into segments that are updated
 * alike, over which the backend sweeps. */
#include "trainer/optimizer.h"

struct tr_optimizer {
    const tr_backend *backend;
    void *updater;
    tr_segment segments[];
};

int tr_optimizer_slots(const tr_config *c, const char *names[TR_PARAM_SLOTS])
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

static tr_update_kind update_kind(const tr_config *c)
{
    switch ((tr_optimizer_kind)c->train.optimizer.kind.which) {
    case TR_OPT_SGD:
        break;
    case TR_OPT_ADAMW:
        return TR_UPDATE_ADAMW;
    case TR_OPT_LION:
        return TR_UPDATE_LION;
    }
    return TR_UPDATE_SGD;
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

/* Ascending, neighbours that are updated alike in one. Counts only where `out` is NULL. */
static size_t cut(const tr_params *p, const tr_optimizer_config *c, tr_segment *out)
{
    size_t n = 0;
    for (size_t r = 0; r < p->nowned; r++) {
        const tr_range own = p->owned[r];
        tr_segment last = {.range = {0, 0}}; /* an empty one */
        for (size_t at = own.begin, end; at < own.end; at = end) {
            const tr_param *a = param_at(p->o.model, at);
            end = a->offset + tr_align_up(a->count, 16);
            if (end > own.end) end = own.end;
            tr_segment s = {.range = {at, end},
                            .slot = p->slot_at[r] + (at - own.begin),
                            .decay =
                                a->decay || c->decay_all ? c->weight_decay * a->decay_factor : 0,
                            .lr_factor = a->lr_factor,
                            .masked = a->masked};
            if (last.range.end == at && tr_range_count(last.range) > 0 && last.decay == s.decay &&
                last.lr_factor == s.lr_factor && last.masked == s.masked) {
                s.range.begin = last.range.begin;
                s.slot = last.slot;
            } else
                n++;
            if (out) out[n - 1] = s;
            last = s;
        }
    }
    return n;
}

static float *slot_of(const tr_params *p, int slot)
{
    return slot >= 0 && slot < p->o.nslots ? p->slots[slot] : NULL;
}

tr_status tr_optimizer_open(const tr_config *c, const tr_params *p, void *training,
                            tr_optimizer **out)
{
    const tr_optimizer_config *oc = &c->train.optimizer.o;
    const char *names[TR_PARAM_SLOTS];
    const int nslots = tr_optimizer_slots(c, names), nmoments = nslots - (c->train.ema > 0);
    const size_t n = cut(p, oc, NULL);
    tr_optimizer *o = tr_alloc(TR_MEM_OTHER, sizeof *o + n * sizeof(tr_segment), 1);
    if (!o) return tr_last_status();
    o->backend = p->o.backend;
    cut(p, oc, o->segments);
    const tr_update u = {
        .kind = update_kind(c),
        .beta1 = oc->beta1,
        .beta2 = oc->beta2,
        .eps = oc->eps,
        .momentum = oc->momentum,
        .nesterov = oc->nesterov,
        .ema_decay = c->train.ema,
        .w = p->weights,
        .g = p->grads,
        .m = nmoments > 0 ? slot_of(p, 0) : NULL,
        .v = nmoments > 1 ? slot_of(p, 1) : NULL,
        .ema = slot_of(p, tr_params_slot(p, "ema")),
        .segments = o->segments,
        .nsegments = n,
    };
    const tr_status st = p->o.backend->training->updater_open(training, &u, &o->updater);
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
