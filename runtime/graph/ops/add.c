/* Sum of equal shapes. Its gradient is no op: every input's is the output's. Backward passes use
 * the same op to sum the gradients of several consumers. */
#include "runtime/graph/ops/registry.h"

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    l->output = l->inputs[0];
    for (int i = 1; i < l->nin; i++)
        if (!tr_shape_equal(&l->inputs[i], &l->output)) {
            char a[TR_SHAPE_TEXT], b[TR_SHAPE_TEXT];
            return tr_layer_fail(l, TR_SHAPE, "cannot add %s and %s", tr_shape_text(&l->output, a),
                                 tr_shape_text(&l->inputs[i], b));
        }
    return TR_OK;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    int dy = tr_grad_of(b, op->out[0]);
    for (int i = 0; i < op->nin; i++) tr_grad_pass(b, op->in[i], dy);
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return (double)(op->nin - 1) * (double)g->tensors[op->out[0]].count;
}

const tr_op_def tr_def_add = {
    .name = "add",
    .example = "add: {from: [left, right]}",
    .doc = "Sum of the layers named in `from`, which must have equal shapes.",
    .min_in = 2,
    .max_in = TR_MAX_IN,
    .sequence = TR_SEQUENCE_EITHER,
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .infer = infer,
    .gradient = gradient,
    .flops = flops,
    .share = TR_SHARE_ANY,
    .sums = true,
    .channels = TR_CHANNELS_EACH,
    .acts_infer = TR_ACT_IS(TR_ACT_RELU),
    .acts_train = TR_ACT_IS(TR_ACT_RELU)};
