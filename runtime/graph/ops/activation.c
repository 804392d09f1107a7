/* Elementwise activations. The gradient of relu, sigmoid and tanh needs their output, that of gelu
 * and silu their input. */
#include "runtime/graph/ops/registry.h"

static const char *const approximations[] = {"none", "tanh", NULL};

typedef struct {
    tr_gelu_attrs a;
    int approximate;
} gelu_attrs;

static const tr_field gelu_fields[] = {
    TR_CHOICE("approximate", offsetof(gelu_attrs, approximate), approximations, "none",
              "exact (by erf), or the tanh approximation"),
    {0},
};

static tr_status finish_gelu(const tr_maker *mk, const tr_layer *l, void *at)
{
    (void)mk, (void)l;
    gelu_attrs *a = at;
    a->a.tanh = a->approximate == 1;
    return TR_OK;
}

static void gradient_by_output(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0]), op->out[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

static void gradient_by_input(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0]), op->in[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

#define ACTIVATION(op, op_act, op_masks, text, ...)                                                \
    const tr_op_def tr_def_##op = {.name = #op,                                                    \
                                   .doc = text,                                                    \
                                   .min_in = 1,                                                    \
                                   .max_in = 1,                                                    \
                                   .rows = TR_ROWS_APART,                                          \
                                   .anywhere = true,                                               \
                                   .operands = 1,                                                  \
                                   .flops = tr_flops_elements,                                     \
                                   .act = op_act,                                                  \
                                   .backward = &tr_def_##op##_grad,                                \
                                   .share = TR_SHARE_FIRST,                                        \
                                   .channels = TR_CHANNELS_EACH,                                   \
                                   __VA_ARGS__};                                                   \
    const tr_op_def tr_def_##op##_grad = {.name = #op ".grad",                                     \
                                          .flops = tr_flops_elements,                              \
                                          .act = op_act,                                           \
                                          .masks = op_masks,                                       \
                                          .share = TR_SHARE_FIRST}

ACTIVATION(relu, TR_ACT_RELU, true, "`max(x, 0)`.", .gradient = gradient_by_output,
           .nonnegative = true, .commutes = TR_COMMUTES_POSITIVE);
ACTIVATION(gelu, TR_ACT_GELU, false, "`x * Phi(x)` with the normal distribution's Phi.",
           .gradient = gradient_by_input, .example = "gelu: {approximate: tanh}",
           .fields = gelu_fields, .attrs_size = sizeof(gelu_attrs), .finish = finish_gelu);
ACTIVATION(silu, TR_ACT_SILU, false, "`x * sigmoid(x)`.", .gradient = gradient_by_input);
ACTIVATION(sigmoid, TR_ACT_SIGMOID, false, "`1 / (1 + exp(-x))`.", .gradient = gradient_by_output,
           .nonnegative = true);
ACTIVATION(tanh, TR_ACT_TANH, false, "Hyperbolic tangent.", .gradient = gradient_by_output);

tr_act tr_op_activation(const tr_op *op)
{
    const tr_gelu_attrs *gelu = op->attrs;
    if (op->def->act != TR_ACT_GELU || !gelu) return op->def->act;
    return gelu->tanh ? TR_ACT_GELU_TANH : TR_ACT_GELU;
}
