/* Relu with a ceiling of 6 (Krizhevsky 2010; MobileNets). Where the gradient is zero the output
 * tells. */
#include "runtime/graph/ops/registry.h"

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_relu6_grad, op, TR_IDS(tr_grad_of(b, op->out[0]), op->out[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

const tr_op_def tr_def_relu6 = {
    .name = "relu6",
    .doc = "`min(max(x, 0), 6)`.",
    .min_in = 1,
    .max_in = 1,
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .operands = 1,
    .gradient = gradient,
    .flops = tr_flops_elements,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_EACH,
    .nonnegative = true,
    .ceiling = 6,
};

const tr_op_def tr_def_relu6_grad = {
    .name = "relu6.grad", .flops = tr_flops_elements, .share = TR_SHARE_FIRST};
