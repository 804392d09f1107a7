/* A layer for which there is a plainer type: an average over the whole image. */
#include "optimize/passes/rewrite.h"

static tr_status run(tr_rewrite *rw, size_t *count)
{
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        tr_edit *e = &rw->edits[i];
        if (!e->stays || !tr_layer_plain(&rw->m->layers[i])) continue;
        e->type = tr_layer_plain(&rw->m->layers[i]);
        ++*count;
    }
    return TR_OK;
}

const tr_pass tr_pass_pool = {
    .name = "pool",
    .doc = "avgpool2d over the whole image becomes global_avgpool, behind which flatten only is "
           "another view.",
    .run = run};
