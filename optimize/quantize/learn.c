/* Scales that are learned (LSQ): from a network of 8 bits to one that trains its scales, and back
 * to one whose scales are what they have become. */
#include "optimize/quantize/quantize.h"

#include <math.h>
#include <string.h>

#include "runtime/graph/facts.h"
#include "runtime/graph/ops.h"

static const tr_fake_quantize_attrs *rounder(const tr_layer *l)
{
    return strcmp(tr_op_def_name(l->def), tr_layer_rounder()) == 0 ? l->attrs : NULL;
}

/* The layer's own weight, where it is trained and stored as int8. */
static const tr_param *own_int8(const tr_model *m, const tr_layer *l)
{
    for (int i = 0; i < l->nparams; i++) {
        const tr_param *p = &m->params[l->params[i]];
        if (p->stored == TR_I8 && !p->frozen && strcmp(p->layer, l->name) == 0) return p;
    }
    return NULL;
}

typedef struct {
    const tr_network *n;
    size_t count;
} changing;

static tr_status learn(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    static const char *const option[] = {"learn_scale=true"};
    changing *k = ctx;
    const tr_layer_changes changes = {.options = option, .noptions = 1};
    if (!rounder(l) && !own_int8(k->n->model, l)) return TR_OK;
    k->count++;
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

tr_status tr_quantize_learn(const tr_network *n, size_t *count, tr_network **out)
{
    changing k = {.n = n};
    tr_network *made = NULL;
    tr_status st = tr_network_edit(n, learn, &k, &made);
    if (st != TR_OK) return st;
    TR_NEED(k.count > 0, TR_CONFIG,
            "no weight is int8 and no layer rounds values: scales are learned behind quantize");
    for (size_t i = 0; i < made->model->nlayers; i++) {
        const tr_param *p = own_int8(made->model, &made->model->layers[i]);
        if (!p) continue; /* a rounder's first value is its option */
        const tr_param *scale = &made->model->params[p->learned_scale];
        memcpy(made->params + scale->offset, n->states + n->model->states[p->scale].offset,
               scale->count * sizeof(float));
    }
    *count = k.count;
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    return st;
}

static tr_status settle(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const tr_network *n = ((changing *)ctx)->n;
    const tr_fake_quantize_attrs *a = rounder(l);
    const tr_param *p = own_int8(n->model, l);
    char scale[40];
    const char *const options[] = {"learn_scale=false", scale};
    if (!(a && a->learn_scale) && !(p && p->learned_scale >= 0)) return TR_OK;
    if (a)
        snprintf(scale, sizeof scale, "scale=%.9g",
                 (double)tr_learned_scale(*tr_network_param(n, l->name, TR_SCALE_ROW)));
    const tr_layer_changes changes = {.options = options, .noptions = a ? 2 : 1};
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

tr_status tr_quantize_settle(const tr_network *n, tr_network **out)
{
    changing k = {.n = n};
    return tr_network_edit(n, settle, &k, out);
}
