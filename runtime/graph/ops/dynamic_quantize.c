/* Rounded to 8 bits and back by the range of the data at hand, of each row for itself: what a value
 * becomes before a product with int8 weights whose input was not calibrated. The gradient passes
 * (straight-through; Bengio, Leonard and Courville 2013): no value is beyond its row's range. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_BOOL("signed", offsetof(tr_dynamic_attrs, is_signed), "true",
            "steps from -127 to 127 of the largest magnitude, else from 0 to 255 of the largest "
            "value, for what is never below 0"),
    {0},
};

static void gradient(tr_builder *b, const tr_op *op)
{
    if (tr_grad_wanted(b, op->in[0])) tr_grad_pass(b, op->in[0], tr_grad_of(b, op->out[0]));
}

const tr_op_def tr_def_dynamic_quantize = {
    .name = "dynamic_quantize",
    .doc = "`s * round(x / s)`, 8 bits, halves to even, with a scale `s` found from the data at "
           "hand: of each sample of images, else of each row along the last dimension. The "
           "gradient passes.",
    .fields = fields,
    .attrs_size = sizeof(tr_dynamic_attrs),
    .min_in = 1,
    .max_in = 1,
    .rows = TR_ROWS_APART,
    .operands = 1,
    .by_row = &tr_def_int8_dynamic,
    .rescale = &tr_def_int8_rescale,
    .gradient = gradient,
    .flops = tr_flops_elements,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_MIXED,
};
