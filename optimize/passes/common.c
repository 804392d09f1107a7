/* Common subexpressions: of equal layers with equal values that read the same, one is computed. */
#include "optimize/passes/rewrite.h"

#include <string.h>

static bool same_inputs(const tr_rewrite *rw, const tr_layer *a, const tr_layer *b)
{
    const int n = rw->edits[a->index].nin;
    if (n != rw->edits[b->index].nin) return false;
    for (int k = 0; k < n; k++)
        if (tr_rewrite_input(rw, a, k) != tr_rewrite_input(rw, b, k)) return false;
    return true;
}

static bool same_values(const tr_rewrite *rw, const tr_layer *a, const tr_layer *b)
{
    const tr_model *m = rw->m;
    if (a->nparams != b->nparams || a->nstates != b->nstates) return false;
    for (int k = 0; k < a->nparams; k++) {
        const tr_param *p = &m->params[a->params[k]], *q = &m->params[b->params[k]];
        if (p != q &&
            (p->count != q->count || memcmp(rw->n->params + p->offset, rw->n->params + q->offset,
                                            p->count * sizeof(float)) != 0))
            return false;
    }
    for (int k = 0; k < a->nstates; k++) {
        const tr_state *p = &m->states[a->first_state + k], *q = &m->states[b->first_state + k];
        if (p->count != q->count || memcmp(rw->n->states + p->offset, rw->n->states + q->offset,
                                           p->count * sizeof(float)) != 0)
            return false;
    }
    return true;
}

static tr_status run(tr_rewrite *rw, size_t *count)
{
    const tr_model *m = rw->m;
    for (size_t i = 1; i < m->nlayers; i++)
        for (size_t k = 0; k < i; k++) {
            const tr_layer *a = &m->layers[k], *b = &m->layers[i];
            if (!rw->edits[i].stays || !rw->edits[k].stays || !same_inputs(rw, a, b) ||
                !same_values(rw, a, b) || !tr_layer_equal(a, b))
                continue;
            tr_rewrite_replace(rw, b, tr_rewrite_output(rw, a));
            ++*count;
            break;
        }
    return TR_OK;
}

const tr_pass tr_pass_common = {
    .name = "common",
    .doc = "Of equal layers with equal weights that read the same, one is computed.",
    .run = run};
