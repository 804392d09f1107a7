/* Which values of a network are not finite: what they make of data is not the data's fault. */
#include "optimize/quantize/internal.h"

#include <math.h>

tr_status tr_values_finite(const char *layer, const char *name, const float *v, size_t count)
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
    for (size_t i = 0; i < m->nparams && st == TR_OK; i++) {
        const tr_param *p = &m->params[i];
        st = tr_values_finite(p->layer, p->name, n->params + p->offset, p->count);
    }
    for (size_t i = 0; i < m->nstates && st == TR_OK; i++) {
        const tr_state *s = &m->states[i];
        st = tr_values_finite(s->layer, s->name, n->states + s->offset, s->count);
    }
    return st;
}
