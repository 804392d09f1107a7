/* Tells apart what lives only from op to op and what is kept from the forward pass for the backward
 * pass, so that a memory report can. */
#include "runtime/graph/builder.h"

tr_status tr_pass_roles(tr_builder *b)
{
    tr_graph *g = b->g;
    bool *forward = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(*forward));
    if (!forward) return tr_last_status();
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nout && op->phase == TR_PHASE_FORWARD; k++)
            if (op->out[k] >= 0) forward[op->out[k]] = true;
        for (int k = 0; k < op->nin && op->phase == TR_PHASE_BACKWARD; k++) {
            if (op->in[k] < 0 || !forward[op->in[k]]) continue;
            tr_tensor *root = &g->tensors[tr_root(g, op->in[k])];
            if (root->role == TR_ROLE_ROUNDED) continue;
            g->tensors[op->in[k]].role = TR_ROLE_SAVED;
            if (root->role == TR_ROLE_ACTIVATION) root->role = TR_ROLE_SAVED;
        }
    }
    tr_free(forward);
    return TR_OK;
}
