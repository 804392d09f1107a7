/* Layers that do nothing in evaluation: dropout, a flatten of what is flat, pooling over one place,
 * a batchnorm that changes nothing, a relu of what is not negative. */
#include "optimize/passes/rewrite.h"

/* It is not negative wherever it comes from, seen through layers that only choose and average. */
static bool nonnegative(const tr_rewrite *rw, int value, int depth)
{
    const tr_layer *l = tr_rewrite_maker(rw, value);
    if (!l || depth > 16) return false;
    if (tr_layer_nonnegative(l)) return true;
    if (!tr_layer_sums(l) && tr_layer_commutes(l) == 0) return false;
    for (int k = 0; k < tr_rewrite_edit(rw, l)->nin; k++)
        if (!nonnegative(rw, tr_rewrite_input(rw, l, k), depth + 1)) return false;
    /* only a factor below 0 could make it so: an average and a choice have none */
    return tr_layer_sums(l) || tr_layer_commutes(l) & TR_COMMUTES_SHIFT ||
           tr_layer_commutes(l) & TR_COMMUTES_SCALE;
}

static tr_status nothing(tr_rewrite *rw, const tr_layer *l, bool *is)
{
    tr_status st = TR_OK;
    tr_affine a;
    *is = tr_layer_same(l) ||
          (tr_layer_rectifies(l) && nonnegative(rw, tr_rewrite_input(rw, l, 0), 0));
    if (*is || !tr_layer_is_affine(l)) return TR_OK;
    TR_TRY(tr_affine_of(rw, l, &a));
    *is = true;
    for (int64_t c = 0; c < a.count; c++) *is = *is && a.scale[c] == 1 && a.shift[c] == 0;
out:
    tr_affine_close(&a);
    return st;
}

static tr_status run(tr_rewrite *rw, size_t *count)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        const tr_layer *l = &rw->m->layers[i];
        bool is = false;
        if (rw->edits[i].stays) TR_TRY(nothing(rw, l, &is));
        const int value = is ? tr_rewrite_input(rw, l, 0) : -1;
        /* the model's output is a layer's */
        if (!is ||
            (tr_rewrite_output(rw, l) == tr_rewrite_last(rw) && !tr_rewrite_maker(rw, value)))
            continue;
        tr_rewrite_replace(rw, l, value);
        ++*count;
    }
out:
    return st;
}

const tr_pass tr_pass_identity = {
    .name = "identity",
    .doc = "Layers that do nothing in evaluation are removed: dropout, flatten of what is flat, "
           "a pad of nothing, pooling over one place, a batchnorm that changes nothing, a relu of "
           "what cannot be negative.",
    .run = run};
