/* Two layers that only move elements or put some around them become one: paddings, permutations,
 * shapes; a padding of zeros goes into the convolution behind it. */
#include "optimize/passes/rewrite.h"

static tr_status run(tr_rewrite *rw, size_t *count)
{
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        const tr_layer *second = &rw->m->layers[i];
        tr_edit *e = &rw->edits[i];
        const tr_layer *first =
            e->stays && e->nin == 1 ? tr_rewrite_maker(rw, tr_rewrite_input(rw, second, 0)) : NULL;
        tr_merged merged;
        /* what else reads the first one needs it anyway; one that was changed here is for the next
         * round */
        if (!first || tr_rewrite_edit(rw, first)->uses > 1 ||
            tr_rewrite_edit(rw, first)->in[0] != first->in[0] ||
            !tr_layer_merged(first, second, &merged))
            continue;
        e->in[0] = tr_rewrite_input(rw, first, 0);
        e->merged = merged;
        tr_rewrite_look(rw);
        ++*count;
    }
    return TR_OK;
}

const tr_pass tr_pass_merge = {
    .name = "merge",
    .doc =
        "Of two pads, permutes, reshapes or flattens, one after the other, one is left; a pad of "
        "zeros goes into the padding of the conv2d behind it.",
    .run = run};
