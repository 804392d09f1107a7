/* Exponential linear units (Clevert, Unterthiner and Hochreiter 2016), softplus (Dugas et al.
 * 2001), and sigmoid and silu in three straight pieces (Howard et al. 2019, MobileNetV3). All
 * gradients go by the input, as PyTorch's: a rounded output may have lost what they are made of. */
#include "runtime/graph/ops/registry.h"

static const tr_field elu_fields[] = {
    TR_REAL("alpha", offsetof(tr_elu_attrs, alpha), "1.0", -1e6, 1e6, NULL,
            "its limit far below zero is minus this"),
    {0},
};

static const tr_field softplus_fields[] = {
    TR_REAL("beta", offsetof(tr_softplus_attrs, beta), "1.0", 1e-6, 1e6, NULL,
            "how sharply it bends"),
    TR_REAL("threshold", offsetof(tr_softplus_attrs, threshold), "20.0", 0, 1e6, NULL,
            "where `beta * x` is above it, the value is `x`"),
    {0},
};

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0]), op->in[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

#define ELEMENTWISE(op, text, ...)                                                                 \
    const tr_op_def tr_def_##op = {.name = #op,                                                    \
                                   .doc = text,                                                    \
                                   .min_in = 1,                                                    \
                                   .max_in = 1,                                                    \
                                   .rows = TR_ROWS_APART,                                          \
                                   .anywhere = true,                                               \
                                   .operands = 1,                                                  \
                                   .gradient = gradient,                                           \
                                   .flops = tr_flops_elements,                                     \
                                   .backward = &tr_def_##op##_grad,                                \
                                   .share = TR_SHARE_FIRST,                                        \
                                   .channels = TR_CHANNELS_EACH,                                   \
                                   __VA_ARGS__};                                                   \
    const tr_op_def tr_def_##op##_grad = {                                                         \
        .name = #op ".grad", .flops = tr_flops_elements, .share = TR_SHARE_FIRST}

ELEMENTWISE(elu, "`x` where `x > 0`, else `alpha * (exp(x) - 1)`.", .example = "elu: {alpha: 0.5}",
            .fields = elu_fields, .attrs_size = sizeof(tr_elu_attrs));
ELEMENTWISE(hardswish, "`x * relu6(x + 3) / 6`.", .attrs_size = 0);
ELEMENTWISE(hardsigmoid, "`relu6(x + 3) / 6`.", .nonnegative = true);
ELEMENTWISE(softplus, "`log(1 + exp(beta * x)) / beta`.", .fields = softplus_fields,
            .attrs_size = sizeof(tr_softplus_attrs), .nonnegative = true);
