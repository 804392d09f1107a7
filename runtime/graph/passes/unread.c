/* Ops whose result nobody reads are left out, as are those that only these read: layers behind the
 * outputs that an infer graph is asked for. What is held from run to run is read by the next one.
 * Backwards through the list, once. */
#include "runtime/graph/passes/passes.h"

tr_status tr_graph_pass_unread(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    bool *read = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *read);
    if (!read) return tr_last_status();
    for (size_t k = 0; k < g->noutputs; k++) read[g->outputs[k]] = true;
    for (size_t i = g->nops; i-- > 0;) {
        tr_op *op = &g->ops[i];
        bool wanted = false;
        for (int k = 0; k < op->nin; k++)
            wanted |= op->in[k] >= 0 && g->tensors[op->in[k]].role == TR_ROLE_HELD;
        for (int k = 0; k < op->nout; k++) wanted |= op->out[k] >= 0 && read[op->out[k]];
        if (!wanted) op->def = NULL;
        *found += !wanted;
        for (int k = 0; wanted && k < op->nin; k++)
            if (op->in[k] >= 0) read[op->in[k]] = true;
    }
    tr_ops_compact(g);
    tr_free(read);
    return TR_OK;
}
