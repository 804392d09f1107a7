/* Relu with a slope below zero (Maas, Hannun and Ng 2013). The slope may have either sign, so the
 * gradient goes by the input. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_REAL("negative_slope", offsetof(tr_leaky_relu_attrs, negative_slope), "0.01", -1e6, 1e6,
            NULL, "factor below zero"),
    {0},
};

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_leaky_relu_grad, op, TR_IDS(tr_grad_of(b, op->out[0]), op->in[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

const tr_op_def tr_def_leaky_relu = {
    .name = "leaky_relu",
    .example = "leaky_relu: {negative_slope: 0.1}",
    .doc = "`x` where `x > 0`, else `negative_slope * x`.",
    .fields = fields,
    .attrs_size = sizeof(tr_leaky_relu_attrs),
    .min_in = 1,
    .max_in = 1,
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .operands = 1,
    .gradient = gradient,
    .flops = tr_flops_elements,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_EACH,
    .commutes = TR_COMMUTES_POSITIVE,
};

const tr_op_def tr_def_leaky_relu_grad = {
    .name = "leaky_relu.grad", .flops = tr_flops_elements, .share = TR_SHARE_FIRST};
