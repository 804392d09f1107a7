/* The gradient of an activation goes into the product that makes the gradient it starts from, where
 * nobody else reads dy:
 *
 *     dy = linear.grad_input(dn, w); dz = gelu.grad(dy, z)    dz = linear.grad_input+gelu(dn, w, z)
 *
 * Behind recomputation, which so goes by layers as they were: the product stands where the
 * activation's gradient stood, and what was to be made again for that is there. O(operands). */
#include "runtime/graph/passes/passes.h"

static bool fold(tr_graph *g, const tr_uses *u, tr_op *op)
{
    const int dy = op->in[0], z = op->in[1];
    tr_op *maker = u->producer[dy] < 0 ? NULL : &g->ops[u->producer[dy]];
    if (!maker || maker->act != TR_ACT_NONE || u->readers[dy] != 1 ||
        !(maker->def->acts_gradient & TR_ACT_IS(tr_op_activation(op))))
        return false;
    maker->act = tr_op_activation(op);
    maker->in[2] = z;
    maker->nin = 3;
    maker->out[0] = op->out[0];
    *op = *maker;
    maker->def = NULL;
    return true;
}

tr_status tr_graph_pass_activation_gradient(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    tr_uses u;
    tr_status st = TR_OK;
    if (!b->o->activation_gradient) return TR_OK;
    TR_TRY(tr_uses_open(g, &u));
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *op = &g->ops[i];
        if (!op->def->gradient && tr_op_activation(op) != TR_ACT_NONE) *found += fold(g, &u, op);
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}
