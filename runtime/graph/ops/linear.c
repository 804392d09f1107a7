/* y = x W^T + b over the last dimension (PyTorch's Linear). */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_linear_attrs a;
    int init;
} attrs;

static const tr_field fields[] = {
    TR_INT("out", offsetof(attrs, a.out), NULL, 1, INT32_MAX, NULL, "output features"),
    TR_BOOL("bias", offsetof(attrs, a.bias), "true", "add a learned bias"),
    TR_INIT_FIELD(attrs),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    (void)l;
    attrs *a = at;
    a->init = (int)tr_layer_init(mk, a->init);
    return TR_OK;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const attrs *a = l->attrs;
    tr_status st = TR_OK;
    TR_TRY(tr_layer_rank(l, 1, 2, "(features) or (rows, features): put flatten before it"));
    l->output = l->inputs[0];
    int64_t in = l->inputs[0].dims[l->inputs[0].ndim - 1];
    l->output.dims[l->output.ndim - 1] = a->a.out;
    const tr_shape weight = {.ndim = 2, .dims = {a->a.out, in}};
    TR_TRY(tr_layer_weight_bias(mk, l, &weight, (tr_init_kind)a->init, a->a.bias));
out:
    return st;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    tr_grad_product(b, op, &tr_def_linear_grad_input, &tr_def_linear_grad_weight);
}

/* Not with a matrix of signs, whose copies are made otherwise. */
static unsigned apart(const tr_op *op, unsigned where)
{
    const tr_linear_attrs *a = op->attrs;
    return a && a->sketch.side != TR_SKETCH_NONE ? 0 : where;
}

static unsigned apart_forward(const tr_graph *g, const tr_op *op)
{
    (void)g;
    return op->act == TR_ACT_NONE ? apart(op, TR_APART_OUT) : 0;
}

static unsigned apart_grad_input(const tr_graph *g, const tr_op *op)
{
    (void)g;
    return apart(op, 1u << 0);
}

static unsigned apart_grad_weight(const tr_graph *g, const tr_op *op)
{
    (void)g;
    return apart(op, 1u << 1);
}

const tr_op_def tr_def_linear = {
    .name = "linear",
    .example = "linear: {out: 10}",
    .doc =
        "Fully connected: `y = x W^T + b` over the last dimension. Parameters: weight (out, in), "
        "bias (out).",
    .fields = fields,
    .attrs_size = sizeof(attrs),
    .learned = true,
    .tied = true,
    .rounds = 1u << 0, /* the weight */
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .min_in = 1,
    .max_in = 1,
    .finish = finish,
    .infer = infer,
    .operands = 3,
    .gradient = gradient,
    .acts_infer = TR_ACT_ANY,
    .acts_train = TR_ACT_IS(TR_ACT_RELU),
    .int8 = &tr_def_linear_int8,
    .sketched = &tr_def_sklinear,
    .apart = apart_forward,
    .channels = TR_CHANNELS_PRODUCT,
    .width = "out",
    .flops = tr_flops_product};

const tr_op_def tr_def_linear_grad_input = {.name = "linear.grad_input",
                                            .acts_gradient = TR_ACT_IS(TR_ACT_GELU_TANH),
                                            .apart = apart_grad_input,
                                            .flops = tr_flops_product_grad_input};

const tr_op_def tr_def_linear_grad_weight = {.name = "linear.grad_weight",
                                             .apart = apart_grad_weight,
                                             .flops = tr_flops_product_grad_weight};
