/* Elementwise product of two inputs, the second of the first's shape or one factor a channel
 * (squeeze-and-excite; Hu, Shen and Sun 2018). The first one's gradient is the same op on the
 * output's. */
#include "runtime/graph/ops/registry.h"

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    const tr_shape *a = &l->inputs[0], *b = &l->inputs[1];
    if (a->ndim == 2 && !tr_shape_equal(a, b))
        l->inputs[0].layout = l->inputs[1].layout = TR_LAYOUT_CHANNELS_LAST;
    tr_shape factors = *a;
    for (int i = 1; i < a->ndim; i++) factors.dims[i] = 1;
    l->output = *a;
    if (tr_shape_equal(a, b) ||
        (a->layout == TR_LAYOUT_CHANNELS_LAST && tr_shape_equal(&factors, b)))
        return TR_OK;
    char ta[TR_SHAPE_TEXT], tb[TR_SHAPE_TEXT];
    return tr_layer_fail(
        l, TR_SHAPE,
        "cannot multiply %s by %s: equal shapes or (channels, 1, 1), (channels, 1) are possible",
        tr_shape_text(a, ta), tr_shape_text(b, tb));
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]), x = op->in[0], factor = op->in[1];
    const bool equal = tr_build_tensor(b, x)->count == tr_build_tensor(b, factor)->count;
    if (tr_grad_wanted(b, factor))
        tr_build_backward(b, equal ? &tr_def_mul : &tr_def_mul_grad_scale, op, TR_IDS(dy, x),
                          TR_IDS(tr_grad_new(b, factor)));
    if (tr_grad_wanted(b, x))
        tr_build_backward(b, &tr_def_mul, op, TR_IDS(dy, factor), TR_IDS(tr_grad_new(b, x)));
}

const tr_op_def tr_def_mul = {
    .name = "mul",
    .example = "mul: {from: [left, right]}",
    .doc = "Product of the two layers named in `from`, element by element. The second may also be "
           "(channels, 1, 1): a factor for each channel of an image, (channels, 1) of a sequence.",
    .min_in = 2,
    .max_in = 2,
    .sequence = TR_SEQUENCE_EITHER,
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .infer = infer,
    .operands = 2,
    .gradient = gradient,
    .flops = tr_flops_elements,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_EACH,
};

const tr_op_def tr_def_mul_grad_scale = {.name = "mul.grad_scale", .flops = tr_flops_elements};
