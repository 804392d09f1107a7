/* An activation goes into the op before it, if nothing else reads what is in between. In training
 * only relu does: its gradient needs no more than its output. */
#include "runtime/graph/passes/passes.h"

static bool takes(const tr_graph *g, const tr_op *op, tr_act act)
{
    if (op->act != TR_ACT_NONE || op->phase != TR_PHASE_FORWARD) return false;
    if (tr_op_is(op, "linear") || tr_op_is(op, "conv2d")) return !g->train || act == TR_ACT_RELU;
    return act == TR_ACT_RELU &&
           (tr_op_is(op, "batchnorm") || tr_op_is(op, "batchnorm.infer") || tr_op_is(op, "add"));
}

tr_status tr_pass_fuse_activation(tr_graph *g)
{
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
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}
