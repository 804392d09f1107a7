/* The optimizer over the ranges that this rank owns: a list of segments with one decay each. */
#include "trainer/optimizer.h"

#include <math.h>

typedef struct {
    size_t begin, end;
    bool decay;
} segment;

struct tr_optimizer {
    const tr_config *config;
    const tr_backend *backend;
    void *ctx;
    float *w, *g, *m, *v, *ema;
    size_t count;
    segment segments[];
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

/* Ascending, neighbours that decay alike in one. Counts only where `out` is NULL. */
static size_t cut(const tr_model *m, const tr_range *owned, size_t nowned, bool decay_all,
                  segment *out)
{
    size_t n = 0;
    for (size_t r = 0; r < nowned; r++) {
        bool before = false; /* the segment that ends here decays */
        for (size_t at = owned[r].begin, end; at < owned[r].end; at = end) {
            const tr_param *a = param_at(m, at);
            bool decay = a->decay || decay_all;
            end = a->offset + tr_align_up(a->count, 16);
            if (end > owned[r].end) end = owned[r].end;
            if (at == owned[r].begin || decay != before) {
                if (out) out[n] = (segment){at, end, decay};
                n++;
            } else if (out)
                out[n - 1].end = end;
            before = decay;
        }
    }
    return n;
}

tr_status tr_optimizer_open(const tr_config *c, const tr_model *m, tr_reducer *r,
                            const tr_backend *backend, void *backend_ctx, tr_optimizer **out)
{
    size_t nowned;
    const tr_range *owned = tr_reducer_owned(r, &nowned);
    bool decay_all = c->train.optimizer.o.decay_all;
    size_t most = cut(m, owned, nowned, decay_all, NULL);
    tr_optimizer *o = tr_alloc(TR_MEM_OTHER, sizeof *o + most * sizeof(segment), 1);
    if (!o) return TR_MEMORY;
    o->config = c;
    o->backend = backend;
    o->ctx = backend_ctx;
    o->w = tr_reducer_weights(r);
    o->g = tr_reducer_grads(r);
    const char *names[4];
    int nslots = tr_optimizer_slots(c, names);
    int nmoments = nslots - (c->train.ema > 0);
    if (nmoments > 0) o->m = tr_reducer_slot(r, 0);
    if (nmoments > 1) o->v = tr_reducer_slot(r, 1);
    if (c->train.ema > 0) o->ema = tr_reducer_slot(r, nslots - 1);
    o->count = cut(m, owned, nowned, decay_all, o->segments);
    *out = o;
    return TR_OK;
}

void tr_optimizer_close(tr_optimizer *o)
{
    tr_free(o);
}

void tr_optimizer_step(tr_optimizer *o, double lr, double grad_scale, uint64_t t)
{
    const tr_optimizer_config *c = &o->config->train.optimizer.o;
    tr_update u = {
        .kind = o->config->train.optimizer.kind.which,
        .lr = lr,
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .momentum = c->momentum,
        .nesterov = c->nesterov,
        .grad_scale = grad_scale,
        .t = (int64_t)t,
        .ema_decay = o->config->train.ema,
    };
    for (size_t i = 0; i < o->count; i++) {
        const segment *s = &o->segments[i];
        u.decay = s->decay ? c->weight_decay : 0;
        u.w = o->w + s->begin;
        u.g = o->g + s->begin;
        u.m = o->m ? o->m + s->begin : NULL;
        u.v = o->v ? o->v + s->begin : NULL;
        u.ema = o->ema ? o->ema + s->begin : NULL;
        u.count = s->end - s->begin;
        o->backend->update(o->ctx, &u);
    }
}

void tr_optimizer_swap_ema(tr_optimizer *o)
{
    for (size_t i = 0; i < o->count; i++) {
        for (size_t e = o->segments[i].begin; e < o->segments[i].end; e++) {
            float w = o->w[e];
            o->w[e] = o->ema[e];
            o->ema[e] = w;
        }
    }
}

size_t tr_optimizer_first_nonfinite(const tr_optimizer *o)
{
    for (size_t i = 0; i < o->count; i++)
        for (size_t e = o->segments[i].begin; e < o->segments[i].end; e++)
            if (!isfinite(o->g[e])) return e;
    return SIZE_MAX;
}
