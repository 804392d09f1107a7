/* An activation goes into the op before it, where that can apply it and nothing else reads what is
 * in between. In training that is good only for activations whose gradient needs no more than their
 * output (tr_op_def.acts_train). */
#include "runtime/graph/passes/passes.h"

static bool takes(const tr_graph *g, const tr_op *op, tr_act act)
{
    if (!op->def || op->act != TR_ACT_NONE || op->phase != TR_PHASE_FORWARD) return false;
    return (g->mode == TR_MODE_TRAIN ? op->def->acts_train : op->def->acts_infer) & TR_ACT_IS(act);
}

tr_status tr_graph_pass_activation(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    tr_uses u;
    tr_status st = TR_OK;
    TR_TRY(tr_uses_open(g, &u));
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *op = &g->ops[i];
        tr_act act = tr_op_activation(op);
        if (act == TR_ACT_NONE || op->phase != TR_PHASE_FORWARD || u.readers[op->in[0]] != 1)
            continue;
        int p = u.producer[op->in[0]];
        if (p < 0 || !takes(g, &g->ops[p], act)) continue;
        g->ops[p].act = act;
        g->ops[p].out[0] = op->out[0];
        u.producer[op->out[0]] = p;
        op->def = NULL;
        ++*found;
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}
