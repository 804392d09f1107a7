/* Common subexpressions: of equal ops on the same tensors, those of tied weights for example, one
 * is computed. In graphs without a backward pass, whose ops have no other effect than their
 * outputs. Candidates are found by their first operand: O(ops * readers of it). */
#include "runtime/graph/passes/passes.h"

/* The op stands for its layer alone, or for a part of it as the other for the same part. */
static bool equal(const tr_graph *g, const tr_op *a, const tr_op *b)
{
    if (a->def != b->def || a->nin != b->nin || a->nout != b->nout) return false;
    for (int k = 0; k < a->nin; k++)
        if (a->in[k] != b->in[k]) return false;
    const tr_layer *of = g->model->layers;
    return a->layer_index == b->layer_index ||
           tr_layer_equal(&of[a->layer_index], &of[b->layer_index]);
}

static bool is_output(const tr_graph *g, const tr_op *op)
{
    for (int k = 0; k < op->nout; k++) {
        if (op->out[k] >= 0 && op->out[k] == g->logits) return true;
        for (size_t o = 0; o < g->noutputs; o++)
            if (op->out[k] >= 0 && op->out[k] == g->outputs[o]) return true;
    }
    return false;
}

tr_status tr_graph_pass_common(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    tr_status st = TR_OK;
    int *as = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *as);     /* what stands for a tensor */
    int *last = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *last); /* op that reads it first, -1 */
    int *before = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *before); /* the one before that, -1 */
    TR_HAVE(as && last && before);
    for (size_t t = 0; t < g->ntensors; t++) {
        as[t] = (int)t;
        last[t] = -1;
    }
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nin; k++)
            if (op->in[k] >= 0) op->in[k] = as[op->in[k]];
        if (op->phase != TR_PHASE_FORWARD || op->in[0] < 0) continue;
        int same = last[op->in[0]];
        while (same >= 0 && !equal(g, &g->ops[same], op)) same = before[same];
        if (same < 0 || is_output(g, op)) {
            before[i] = last[op->in[0]];
            last[op->in[0]] = (int)i;
            continue;
        }
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0) as[op->out[k]] = g->ops[same].out[k];
        op->def = NULL;
        ++*found;
    }
    tr_ops_compact(g);
out:
    tr_free(as);
    tr_free(last);
    tr_free(before);
    return st;
}
