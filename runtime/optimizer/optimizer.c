/* The optimizer over the ranges that this rank owns: cuts them into segments that are updated
 * alike, over which the backend sweeps. */
#include "runtime/optimizer/optimizer.h"

#include "runtime/optimizer/groups.h"

struct tr_optimizer {
    const tr_backend *backend;
    void *backend_ctx, *updater;
    double *norms; /* in the backend's memory, of updates with norms; else NULL */
    size_t nnorms;
    tr_segment segments[];
};

int tr_optimizer_slots(const tr_config *c, const char *names[TR_PARAM_SLOTS])
{
    int n = 0;
    switch ((tr_optimizer_kind)c->train.optimizer.kind.which) {
    case TR_OPT_SGD:
    case TR_OPT_LARS:
        if (c->train.optimizer.o.momentum > 0) names[n++] = "momentum_buffer";
        break;
    case TR_OPT_ADAMW:
    case TR_OPT_ADAM:
    case TR_OPT_LAMB:
        names[n++] = "exp_avg";
        names[n++] = "exp_avg_sq";
        break;
    case TR_OPT_LION:
        names[n++] = "exp_avg";
        break;
    case TR_OPT_RMSPROP:
        names[n++] = "square_avg";
        if (c->train.optimizer.o.momentum > 0) names[n++] = "momentum_buffer";
        if (c->train.optimizer.o.centered) names[n++] = "grad_avg";
        break;
    }
    if (c->train.ema > 0) names[n++] = "ema";
    return n;
}

static tr_update_kind update_kind(const tr_config *c)
{
    static const tr_update_kind kinds[] = {
        [TR_OPT_SGD] = TR_UPDATE_SGD,         [TR_OPT_ADAMW] = TR_UPDATE_ADAMW,
        [TR_OPT_LION] = TR_UPDATE_LION,       [TR_OPT_ADAM] = TR_UPDATE_ADAM,
        [TR_OPT_RMSPROP] = TR_UPDATE_RMSPROP, [TR_OPT_LARS] = TR_UPDATE_LARS,
        [TR_OPT_LAMB] = TR_UPDATE_LAMB};
    return kinds[c->train.optimizer.kind.which];
}

bool tr_optimizer_corrects(const tr_config *c)
{
    const tr_update_kind kind = update_kind(c);
    return kind == TR_UPDATE_ADAMW || kind == TR_UPDATE_ADAM || kind == TR_UPDATE_LAMB;
}

size_t tr_optimizer_norms(const tr_config *c, const tr_model *m)
{
    return tr_update_has_norms(update_kind(c)) ? m->nparams * TR_NORM_CELLS : 0;
}

/* The gradient is read; weights and what is kept of each are read and written. Norms are of what
 * was read before: weights and gradient, or weights, gradient and moments, which move on. */
double tr_optimizer_traffic(const tr_config *c)
{
    const char *names[TR_PARAM_SLOTS];
    const tr_update_kind kind = update_kind(c);
    return 3 + 2 * tr_optimizer_slots(c, names) +
           (kind == TR_UPDATE_LARS   ? 2
            : kind == TR_UPDATE_LAMB ? 3
                                     : 0);
}

/* The row at a place of the flat space; each takes the padding behind it. */
static size_t row_at(const tr_model *m, size_t at)
{
    size_t p = 0;
    while (at < m->params[p].offset ||
           at >= m->params[p].offset + tr_align_up(m->params[p].count, 16))
        p++;
    return p;
}

static bool same_rates(const tr_segment *a, const tr_segment *b)
{
    return a->own == b->own && a->rates.beta1 == b->rates.beta1 &&
           a->rates.beta2 == b->rates.beta2 && a->rates.eps == b->rates.eps &&
           a->rates.momentum == b->rates.momentum;
}

/* Ascending, neighbours that are updated alike in one. Counts only where `out` is NULL. */
static size_t cut(const tr_config *c, const tr_params *p, const tr_row_rule *rules, tr_segment *out)
{
    const bool norms = tr_update_has_norms(update_kind(c));
    size_t n = 0;
    for (size_t r = 0; r < p->nowned; r++) {
        const tr_range own = p->owned[r];
        tr_segment last = {.range = {0, 0}}; /* an empty one */
        for (size_t at = own.begin, end; at < own.end; at = end) {
            const size_t row = row_at(p->o.model, at);
            const tr_param *a = &p->o.model->params[row];
            end = a->offset + tr_align_up(a->count, 16);
            if (end > own.end) end = own.end;
            tr_segment s = {.range = {at, end},
                            .slot = p->slot_at[r] + (at - own.begin),
                            .decay = rules[row].decay,
                            .lr_factor = rules[row].lr_factor,
                            .masked = a->masked,
                            .own = rules[row].own,
                            .rates = rules[row].rates,
                            .adapt = norms && (a->decay || c->train.optimizer.o.adapt_all),
                            .row = norms ? row : 0};
            if (last.range.end == at && tr_range_count(last.range) > 0 && last.decay == s.decay &&
                last.lr_factor == s.lr_factor && last.masked == s.masked && last.row == s.row &&
                same_rates(&last, &s)) {
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

static float *slot_of(const tr_params *p, const char *name)
{
    const int slot = tr_params_slot(p, name);
    return slot < 0 ? NULL : p->slots[slot];
}

/* PyTorch's names of what is the running gradient, or its running square. */
static float *first_of(const tr_params *p, const char *a, const char *b)
{
    float *slot = slot_of(p, a);
    return slot ? slot : slot_of(p, b);
}

static tr_update update_of(const tr_config *c, const tr_params *p, const tr_optimizer *o, size_t n)
{
    const tr_optimizer_config *oc = &c->train.optimizer.o;
    return (tr_update){
        .kind = update_kind(c),
        .beta1 = oc->beta1,
        .beta2 = oc->beta2,
        .eps = oc->eps,
        .momentum = oc->momentum,
        .trust_coefficient = oc->trust_coefficient,
        .nesterov = oc->nesterov,
        .ema_decay = c->train.ema,
        .w = p->weights,
        .g = p->grads,
        .m = first_of(p, "exp_avg", "momentum_buffer"),
        .v = first_of(p, "exp_avg_sq", "square_avg"),
        .a = slot_of(p, "grad_avg"),
        .ema = slot_of(p, "ema"),
        .offload = p->o.offload,
        .norms = o->norms,
        .nrows = o->nnorms / TR_NORM_CELLS,
        .segments = o->segments,
        .nsegments = n,
    };
}

tr_status tr_optimizer_open(const tr_config *c, const tr_params *p, void *training,
                            tr_optimizer **out)
{
    tr_row_rule *rules = NULL;
    tr_optimizer *o = NULL;
    tr_status st;
    TR_TRY(tr_groups_rules(c, p->o.model, &rules));
    const size_t n = cut(c, p, rules, NULL);
    TR_HAVE(o = tr_alloc(TR_MEM_OTHER, sizeof *o + n * sizeof(tr_segment), 1));
    cut(c, p, rules, o->segments);
    o->backend = p->o.backend;
    o->backend_ctx = p->o.backend_ctx;
    o->nnorms = tr_optimizer_norms(c, p->o.model);
    if (o->nnorms)
        TR_HAVE(o->norms = o->backend->memory->alloc(o->backend_ctx, TR_MEM_OTHER,
                                                     o->nnorms * sizeof *o->norms));
    const tr_update u = update_of(c, p, o, n);
    TR_TRY(o->backend->training->updater_open(training, &u, &o->updater));
    *out = o;
    o = NULL;
out:
    tr_free(rules);
    tr_optimizer_close(o);
    return st;
}

void tr_optimizer_close(tr_optimizer *o)
{
    if (!o) return;
    if (o->updater) o->backend->training->updater_close(o->updater);
    if (o->norms) o->backend->memory->free(o->backend_ctx, o->norms);
    tr_free(o);
}

tr_status tr_optimizer_step(tr_optimizer *o, tr_control *c, tr_optimizer_sum sum, void *ctx)
{
    const tr_status st = o->backend->training->updater_decide(o->updater, c);
    return st == TR_OK ? tr_optimizer_update(o, c, sum, ctx) : st;
}

tr_status tr_optimizer_update(tr_optimizer *o, tr_control *c, tr_optimizer_sum sum, void *ctx)
{
    const tr_device_training *t = o->backend->training;
    tr_status st;
    if (o->norms) {
        TR_TRY(t->updater_measure(o->updater, c));
        if (sum) TR_TRY(sum(ctx, o->norms, o->nnorms));
    }
    TR_TRY(t->updater_run(o->updater, c));
out:
    return st;
}

tr_status tr_optimizer_swap_ema(tr_optimizer *o)
{
    return o->backend->training->updater_swap_ema(o->updater);
}
