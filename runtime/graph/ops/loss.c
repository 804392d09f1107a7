/* Losses: the last op of a forward pass; in training they write the gradient of the model's output
 * at once. Which one is config's model.loss; build.c appends it. */
#include "runtime/graph/ops/registry.h"

static double flops(const tr_graph *g, const tr_op *op)
{
    return 6.0 * (double)g->tensors[op->in[0]].count;
}

/* In the order of tr_loss_kind. */
const tr_op_def tr_ops_loss[] = {
    {.name = "cross_entropy", .flops = flops},
    {.name = "mse", .flops = flops},
    {.name = "bce", .flops = flops},
    {0},
};
