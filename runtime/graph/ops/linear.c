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

/* Two operations for each output and each weight of its row. */
static double flops_of(const tr_graph *g, int y, int weight)
{
    const tr_tensor *w = &g->tensors[weight];
    return 2.0 * (double)g->tensors[y].count * (double)w->dims[1];
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->out[0], op->in[1]);
}

static double flops_grad_input(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->in[0], op->in[1]);
}

static double flops_grad_weight(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->in[1], op->out[0]);
}

static void gradient(tr_builder *b, const tr_op *op)
{
    int dy = tr_grad_of(b, op->out[0]), x = op->in[0], weight = op->in[1];
    /* The weight's gradient first: its bucket can leave earlier, and x may die here. */
    if (tr_grad_learned(b, weight) || tr_grad_learned(b, op->in[2])) {
        int dweight = tr_grad_param(b, weight), dbias = tr_grad_param(b, op->in[2]);
        tr_build_backward(b, &tr_def_linear_grad_weight, op, TR_IDS(x, dy), TR_IDS(dweight, dbias));
    }
    if (tr_grad_wanted(b, x))
        tr_build_backward(b, &tr_def_linear_grad_input, op, TR_IDS(dy, weight),
                          TR_IDS(tr_grad_new(b, x)));
}

const tr_op_def tr_def_linear = {
    .name = "linear",
    .doc =
        "Fully connected: `y = x W^T + b` over the last dimension. Parameters: weight (out, in), "
        "bias (out).",
    .fields = fields,
    .attrs_size = sizeof(attrs),
    .learned = true,
    .tied = true,
    .rounds = 1u << 0, /* the weight */
    .min_in = 1,
    .max_in = 1,
    .finish = finish,
    .infer = infer,
    .operands = 3,
    .gradient = gradient,
    .acts_infer = TR_ACT_ANY,
    .acts_train = TR_ACT_IS(TR_ACT_RELU),
    .flops = flops};

const tr_op_def tr_def_linear_grad_input = {.name = "linear.grad_input", .flops = flops_grad_input};

const tr_op_def tr_def_linear_grad_weight = {.name = "linear.grad_weight",
                                             .flops = flops_grad_weight};
