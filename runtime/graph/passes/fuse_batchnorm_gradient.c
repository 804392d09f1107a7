/* batchnorm.grad_stats sweeps over the gradient anyway, so it takes on what comes right before: the
 * mask of a relu (operand y) and the sum of two gradients (operand dy2). The masked sum, dz, then
 * also serves whoever else read it: the other side of a residual.
 *
 *     s = add(a, b); du = relu.grad(s, y); dz = grad_stats(du, ...); ... du ...
 *     dz = grad_stats(a, ..., y, b); ... dz ...
 */
#include "runtime/graph/passes/passes.h"

enum { DY = 0, Y = 4, DY2 = 5 };

/* Every reader after `from` of `old`, and all that shares its bytes, turns to `id`. */
static void replace(tr_graph *g, size_t from, int old, int id)
{
    for (size_t i = from; i < g->nops; i++)
        for (int k = 0; k < g->ops[i].nin; k++)
            if (g->ops[i].in[k] == old) g->ops[i].in[k] = id;
    for (size_t t = 0; t < g->ntensors; t++)
        if (g->tensors[t].alias == old) g->tensors[t].alias = id;
    g->tensors[id].alias = -1;
}

static bool is_sum_of_two(const tr_op *op)
{
    return tr_op_is(op, "add") && op->phase == TR_PHASE_BACKWARD && op->nin == 2;
}

static tr_op *maker_of(tr_graph *g, const tr_uses *u, int tensor)
{
    return u->producer[tensor] < 0 ? NULL : &g->ops[u->producer[tensor]];
}

static void fold(tr_graph *g, const tr_uses *u, size_t at)
{
    tr_op *op = &g->ops[at];
    int dy = op->in[DY], dz = op->out[0];
    tr_op *maker = maker_of(g, u, dy);
    if (!maker || u->first[dy] != (int)at) return;
    if (tr_op_is(maker, "relu.grad")) {
        int src = maker->in[0];
        op->in[DY] = src;
        op->in[Y] = maker->in[1];
        maker->def = NULL;
        replace(g, at + 1, dy, dz);
        maker = maker_of(g, u, src);
        if (!maker || !is_sum_of_two(maker) || u->readers[src] != 1) return;
    } else if (is_sum_of_two(maker)) {
        replace(g, at + 1, dy, dz);
    } else {
        return;
    }
    op->in[DY] = maker->in[0];
    op->in[DY2] = maker->in[1];
    maker->def = NULL;
}

tr_status tr_pass_fuse_batchnorm_gradient(tr_graph *g)
{
    tr_uses u;
    tr_status st = TR_OK;
    TR_TRY(tr_uses_open(g, &u));
    for (size_t i = 0; i < g->nops; i++) {
        if (!tr_op_is(&g->ops[i], "batchnorm.grad_stats")) continue;
        fold(g, &u, i);
        /* Readers may have changed: a gradient passed on reads dz now. */
        tr_uses_close(&u);
        TR_TRY(tr_uses_open(g, &u));
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}
