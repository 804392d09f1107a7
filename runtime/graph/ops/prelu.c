/* Relu whose slope below zero is learned (He, Zhang, Ren and Sun 2015), as torch.nn.PReLU. It is
 * not decayed: a decayed slope would become a relu's. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_BOOL("per_channel", offsetof(tr_prelu_attrs, per_channel), "false",
            "a weight for each channel of an image, or each feature (PyTorch's num_parameters), "
            "not one for all"),
    TR_REAL("init", offsetof(tr_prelu_attrs, init), "0.25", -1e6, 1e6, NULL, "initial value"),
    {0},
};

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const tr_prelu_attrs *a = l->attrs;
    l->output = l->inputs[0];
    return tr_layer_param(
        mk, l,
        &(tr_param_decl){.name = "weight",
                         .ndim = 1,
                         .dims = {a->per_channel ? tr_shape_channels(&l->output) : 1},
                         .init = TR_INIT_CONSTANT,
                         .std = a->init});
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int x = op->in[0], w = op->in[1];
    if (!tr_grad_wanted(b, x) && !tr_grad_learned(b, w)) return;
    tr_build_backward(b, &tr_def_prelu_grad, op, TR_IDS(tr_grad_of(b, op->out[0]), x, w),
                      TR_IDS(tr_grad_new(b, x), tr_grad_param(b, w)));
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return (double)g->tensors[op->in[0]].count;
}

const tr_op_def tr_def_prelu = {
    .name = "prelu",
    .example = "prelu: {per_channel: true}",
    .doc = "`x` where `x > 0`, else `weight * x`. Parameter: weight (1 or channels), without "
           "weight decay.",
    .fields = fields,
    .attrs_size = sizeof(tr_prelu_attrs),
    .learned = true,
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_EITHER,
    .rows = TR_ROWS_APART,
    .infer = infer,
    .operands = 2,
    .gradient = gradient,
    .flops = flops,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_EACH,
    .commutes = TR_COMMUTES_POSITIVE,
};

const tr_op_def tr_def_prelu_grad = {.name = "prelu.grad", .flops = flops, .share = TR_SHARE_FIRST};
