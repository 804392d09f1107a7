/* What became of each layer. */
#include "optimize/prune/prune.h"

#include <string.h>

#include "runtime/graph/facts.h"

/* A tied weight counts with the layer that it is named after. */
static void count(const tr_network *n, const tr_layer *l, int which, tr_prune_row *row)
{
    for (int k = 0; k < l->nparams; k++) {
        const tr_param *p = &n->model->params[l->params[k]];
        if (strcmp(p->layer, l->name) != 0) continue;
        row->parameters[which] += p->count;
        for (size_t i = 0; i < p->count; i++) row->zeros[which] += n->params[p->offset + i] == 0;
    }
    row->multiply_adds[which] = tr_layer_multiply_adds(n->model, l);
}

tr_status tr_prune_report(const tr_network *before, const tr_network *after, tr_prune_row **rows,
                          size_t *nrows)
{
    const tr_model *m = before->model;
    tr_prune_row *out = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *out);
    if (!out) return tr_last_status();
    *nrows = 0;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i], *now = tr_model_layer(after->model, l->name);
        if (l->nparams == 0) continue;
        tr_prune_row *row = &out[(*nrows)++];
        snprintf(row->layer, sizeof row->layer, "%s", l->name);
        count(before, l, 0, row);
        if (now) count(after, now, 1, row);
    }
    *rows = out;
    return TR_OK;
}
