/* Softmax over the innermost stored dimension: channels of an image, else the last. */
#include "runtime/graph/ops/registry.h"

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_softmax_grad, op, TR_IDS(tr_grad_of(b, op->out[0]), op->out[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return 4.0 * (double)g->tensors[op->in[0]].count;
}

const tr_op_def tr_def_softmax = {
    .name = "softmax",
    .doc = "Softmax over the channels of an image, else over the last dimension. The loss "
           "cross_entropy takes logits: no softmax before it.",
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_ROWS,
    .rows = TR_ROWS_APART,
    .operands = 1,
    .gradient = gradient,
    .nonnegative = true,
    .flops = flops};

const tr_op_def tr_def_softmax_grad = {.name = "softmax.grad", .flops = flops};
