/* Which values of a network are not finite: what they make of data is not the data's fault. */
#include "optimize/quantize/internal.h"

#include <math.h>

tr_status tr_weight_finite(const char *layer, const float *w, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(w[i]))
            return TR_FAIL(TR_FILE,
                           "layer \"%s\": weight %zu is not finite, which 8 bits cannot hold: "
                           "train it again",
                           layer, i);
    return TR_OK;
}

tr_status tr_weights_finite(const tr_network *n, const bool *chosen)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < n->model->nlayers && st == TR_OK; i++) {
        const tr_layer *l = &n->model->layers[i];
        const tr_param *p = chosen[i] ? tr_own_weight(n->model, l) : NULL;
        if (p) st = tr_weight_finite(l->name, n->params + p->offset, p->count);
    }
    return st;
}

static tr_status check(const char *layer, const char *name, const float *v, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(v[i]))
            return TR_FAIL(TR_FILE, "layer \"%s\": %s %zu is not finite: train it again", layer,
                           name, i);
    return TR_OK;
}

tr_status tr_network_finite(const tr_network *n)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    for (size_t i = 0; i < m->nparams && st == TR_OK; i++)
        st = check(m->params[i].layer, m->params[i].name, n->params + m->params[i].offset,
                   m->params[i].count);
    for (size_t i = 0; i < m->nstates && st == TR_OK; i++)
        st = check(m->states[i].layer, m->states[i].name, n->states + m->states[i].offset,
                   m->states[i].count);
    return st;
}
