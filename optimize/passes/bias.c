/* Parameters that do nothing: a bias of zeros. */
#include "optimize/passes/rewrite.h"

static tr_status run(tr_rewrite *rw, size_t *count)
{
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        const tr_layer *l = &rw->m->layers[i];
        if (!rw->edits[i].stays || !tr_layer_product(l, NULL) || !tr_product_biased(rw->m, l))
            continue;
        const tr_param *p = &rw->m->params[l->params[1]];
        bool zero = p->uses == 1;
        for (size_t k = 0; k < p->count; k++) zero = zero && rw->n->params[p->offset + k] == 0;
        if (!zero) continue;
        rw->edits[i].bias = -1;
        ++*count;
    }
    return TR_OK;
}

const tr_pass tr_pass_bias = {
    .name = "bias", .doc = "A bias of zeros is removed from conv2d and linear.", .run = run};
