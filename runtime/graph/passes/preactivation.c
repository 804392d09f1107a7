/* In training, an activation whose gradient needs its operand goes into the product that makes that, which then writes
 * both; and the gradient goes into the product that makes the gradient it starts from:
 *
 *     z = linear(x); y = gelu(z); ...; dy = linear.grad_input(dn, w); dz = gelu.grad(dy, z)
 *     y, z = linear+gelu(x);      ...; dz = linear.grad_input+gelu(dn, w, z)
 *
 * where nobody else reads dy. Behind recomputation, which so goes by layers as they were: what is made again is such a
 * pair of its own. z stays a result where nobody reads it later but is made again: the same product makes the same bits.
 * O(operands). */
#include "runtime/graph/passes/passes.h"

/* The op that makes `id`, where nothing was fused into it. */
static tr_op *maker_of(tr_graph *g, const tr_uses *u, int id)
{
    tr_op *op = u->producer[id] < 0 ? NULL : &g->ops[u->producer[id]];
    return op && op->def && op->act == TR_ACT_NONE ? op : NULL;
}

/* Whether the activation, op i, goes into the op that makes its operand. */
static bool fold_forward(tr_graph *g, const tr_uses *u, size_t i, bool again)
{
    tr_op *op = &g->ops[i];
    const int z = op->in[0];
    tr_op *maker = maker_of(g, u, z);
    if (!maker || !(maker->def->acts_kept & TR_ACT_IS(tr_op_activation(op))) ||
        maker->recomputed != op->recomputed || u->first[z] != (int)i)
        return false;
    maker->act = tr_op_activation(op);
    maker->out[0] = op->out[0];
    maker->out[1] = again || u->readers[z] > 1 ? z : -1;
    maker->nout = 2;
    op->def = NULL;
    return true;
}

/* The same of an activation's gradient, in whose place the product then stands: what was to be made again for it is there. */
static bool fold_gradient(tr_graph *g, const tr_uses *u, size_t i)
{
    tr_op *op = &g->ops[i];
    const int dy = op->in[0], z = op->in[1];
    tr_op *maker = maker_of(g, u, dy);
    if (!maker || !(maker->def->acts_gradient & TR_ACT_IS(tr_op_activation(op))) ||
        u->readers[dy] != 1)
        return false;
    maker->act = tr_op_activation(op);
    maker->in[2] = z;
    maker->nin = 3;
    maker->out[0] = op->out[0];
    *op = *maker;
    maker->def = NULL;
    return true;
}

tr_status tr_graph_pass_preactivation(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    tr_uses u;
    tr_status st = TR_OK;
    if (!b->o->preactivation) return TR_OK;
    TR_TRY(tr_uses_open(g, &u));
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        if (tr_op_activation(op) == TR_ACT_NONE) continue;
        *found += op->def->gradient ? fold_forward(g, &u, i, g->found[TR_PASS_RECOMPUTE] > 0)
                                    : fold_gradient(g, &u, i);
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}
