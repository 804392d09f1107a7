/* Layer normalization over the last dimension (Ba, Kiros and Hinton 2016), of an image over its channels at each
 * place, which lie innermost. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_REAL("eps", offsetof(tr_layernorm_attrs, eps), "1e-5", 1e-12, 1, NULL,
            "added to the variance"),
    {0},
};

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    tr_status st = TR_OK;
    l->output = l->inputs[0];
    if (l->output.layout != TR_LAYOUT_CHANNELS_LAST)
        TR_TRY(tr_layer_rank(l, 1, 2, "(features), (rows, features) or an image"));
    const int64_t d = tr_shape_channels(&l->output);
    TR_TRY(tr_layer_param(
        mk, l, &(tr_param_decl){.name = "weight", .ndim = 1, .dims = {d}, .init = TR_INIT_ONES}));
    TR_TRY(tr_layer_param(
        mk, l, &(tr_param_decl){.name = "bias", .ndim = 1, .dims = {d}, .init = TR_INIT_ZEROS}));
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    int y = tr_build_output(b, l);
    const tr_tensor *t = tr_build_tensor(b, y);
    const int64_t dims[2] = {(int64_t)t->count / tr_shape_channels(&l->output), 2};
    int stats = tr_build_new(b, l->name, "stats", TR_F32, 2, dims);
    tr_build_forward(
        b, &tr_def_layernorm, l,
        TR_IDS(tr_build_input(b, l, 0), tr_build_param(b, l, 0), tr_build_param(b, l, 1)),
        TR_IDS(y, stats));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    int dy = tr_grad_of(b, op->out[0]), x = op->in[0], w = op->in[1];
    /* dx is computed with the rest even where nobody wants it: the kernel makes all in one sweep. */
    int dx = tr_grad_new(b, x);
    if (dx < 0) dx = tr_build_like(b, op->layer, "dx", tr_build_tensor(b, x)->dtype, x);
    int dweight = tr_grad_param(b, w), dbias = tr_grad_param(b, op->in[2]);
    tr_build_backward(b, &tr_def_layernorm_grad, op, TR_IDS(dy, x, w, op->out[1]),
                      TR_IDS(dx, dweight, dbias));
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return 8.0 * (double)g->tensors[op->in[0]].count;
}

const tr_op_def tr_def_layernorm = {
    .name = "layernorm",
    .doc =
        "Layer normalization over the last dimension, of an image over its channels at each place "
        "(torchvision's LayerNorm2d). Parameters: weight, bias (features, channels).",
    .fields = fields,
    .attrs_size = sizeof(tr_layernorm_attrs),
    .learned = true,
    .min_in = 1,
    .max_in = 1,
    .infer = infer,
    .forward = forward,
    .gradient = gradient,
    .flops = flops};

const tr_op_def tr_def_layernorm_grad = {.name = "layernorm.grad", .flops = flops};
