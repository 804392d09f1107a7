/* Transposed 2-D convolution (PyTorch's ConvTranspose2d): the input gradient of a convolution as a
 * layer. So there is no kernel of its own: forward it is conv2d.grad_input, its input's gradient is
 * conv2d, its weight's is conv2d.grad_weight with the two operands in each other's place. A bias is
 * an op behind it. */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_conv2d_attrs a; /* of the convolution whose gradient it is: a.out is our input's channels */
    int64_t out;
    tr_ints kernel, stride, padding, output_padding, dilation; /* as written: one int or [h, w] */
    int init;
} attrs;

static const tr_field fields[] = {
    TR_INT("out", offsetof(attrs, out), NULL, 1, INT32_MAX, NULL, "output channels"),
    TR_INTS("kernel", offsetof(attrs, kernel), NULL, 1, INT16_MAX, "pixels",
            "one size, or [height, width]"),
    TR_INTS("stride", offsetof(attrs, stride), "1", 1, INT16_MAX, "pixels",
            "results from one pixel to the next, or [height, width]"),
    TR_INTS("padding", offsetof(attrs, padding), "0", 0, INT16_MAX, "pixels",
            "cut off from the result on both sides, or [height, width]"),
    TR_INTS("output_padding", offsetof(attrs, output_padding), "0", 0, INT16_MAX, "pixels",
            "more results at the end, less than the stride, or [height, width]"),
    TR_INTS("dilation", offsetof(attrs, dilation), "1", 1, INT16_MAX, "pixels",
            "distance of the kernel's points; 1 = dense"),
    TR_INT("groups", offsetof(attrs, a.groups), "1", 1, INT32_MAX, NULL,
           "groups of channels that are convolved apart"),
    TR_BOOL("bias", offsetof(attrs, a.bias), "true", "add a learned bias"),
    TR_INIT_FIELD(attrs),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    attrs *a = at;
    int64_t more[2];
    tr_status st = TR_OK;
    a->init = (int)tr_layer_init(mk, a->init);
    TR_TRY(tr_layer_pair(l, "kernel", &a->kernel, a->a.kernel));
    TR_TRY(tr_layer_pair(l, "stride", &a->stride, a->a.stride));
    TR_TRY(tr_layer_pair(l, "padding", &a->padding, a->a.padding));
    TR_TRY(tr_layer_pair(l, "output_padding", &a->output_padding, more));
    TR_TRY(tr_layer_pair(l, "dilation", &a->dilation, a->a.dilation));
    for (int i = 0; i < 2; i++)
        if (more[i] >= a->a.stride[i]) {
            st = tr_layer_fail(l, TR_SHAPE, "output_padding %lld is not less than the stride %lld",
                               (long long)more[i], (long long)a->a.stride[i]);
            goto out;
        }
    if (a->out % a->a.groups != 0)
        st = tr_layer_fail(l, TR_SHAPE, "out %lld is not a multiple of groups %lld",
                           (long long)a->out, (long long)a->a.groups);
out:
    return st;
}

static tr_status declare(tr_maker *mk, tr_layer *l)
{
    const attrs *a = l->attrs;
    const tr_init_kind init = (tr_init_kind)a->init;
    const double window = (double)(a->a.kernel[0] * a->a.kernel[1]);
    tr_param_decl weight = {
        .name = "weight",
        .ndim = 4,
        .dims = {a->a.out, a->out / a->a.groups, a->a.kernel[0], a->a.kernel[1]},
        .init = init,
        .decay = true};
    /* as PyTorch counts them, though a result has in / groups summands a place */
    weight.fan_in = (double)weight.dims[1] * window;
    weight.fan_out = (double)weight.dims[0] * window;
    const tr_param_decl bias = {.name = "bias",
                                .ndim = 1,
                                .dims = {a->out},
                                .init = init == TR_INIT_KAIMING ? TR_INIT_KAIMING : TR_INIT_ZEROS,
                                .fan_in = weight.fan_in,
                                .fan_out = weight.fan_out};
    tr_status st = tr_layer_param(mk, l, &weight);
    if (st == TR_OK && a->a.bias) st = tr_layer_param(mk, l, &bias);
    return st;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    attrs *a = l->attrs;
    tr_status st = TR_OK;
    TR_TRY(tr_layer_image(l));
    a->a.out = l->inputs[0].dims[0];
    if (a->a.out % a->a.groups != 0) {
        char t[TR_SHAPE_TEXT];
        st = tr_layer_fail(
            l, TR_SHAPE, "%lld channels of its input %s are not a multiple of groups %lld",
            (long long)a->a.out, tr_shape_text(&l->inputs[0], t), (long long)a->a.groups);
        goto out;
    }
    l->output = (tr_shape){.ndim = 3, .dims = {a->out}, .layout = TR_LAYOUT_CHANNELS_LAST};
    for (int i = 0; i < 2; i++) {
        const int64_t more = a->output_padding.v[a->output_padding.count > 1 ? i : 0];
        const int64_t size = (l->inputs[0].dims[1 + i] - 1) * a->a.stride[i] +
                             a->a.dilation[i] * (a->a.kernel[i] - 1) + 1 + more -
                             2 * a->a.padding[i];
        l->output.dims[1 + i] = size;
        if (size >= 1) continue;
        st = tr_layer_fail(l, TR_SHAPE, "padding %lld leaves nothing of its output",
                           (long long)a->a.padding[i]);
        goto out;
    }
    TR_TRY(declare(mk, l));
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const int y = tr_build_output(b, l), x = tr_build_input(b, l, 0), w = tr_build_param(b, l, 0);
    int sums = y;
    if (l->nparams > 1) sums = tr_build_like(b, l->name, "sums", tr_build_tensor(b, y)->dtype, y);
    tr_build_forward(b, &tr_def_conv_transpose2d, l, TR_IDS(x, w), TR_IDS(sums));
    if (l->nparams > 1)
        tr_build_forward(b, &tr_def_channel_bias, l, TR_IDS(sums, tr_build_param(b, l, 1)),
                         TR_IDS(y));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]), x = op->in[0], weight = op->in[1];
    if (tr_grad_learned(b, weight))
        tr_build_backward(b, &tr_def_conv_transpose2d_grad_weight, op, TR_IDS(dy, x),
                          TR_IDS(tr_grad_param(b, weight)));
    if (tr_grad_wanted(b, x))
        tr_build_backward(b, &tr_def_conv_transpose2d_grad_input, op, TR_IDS(dy, weight),
                          TR_IDS(tr_grad_new(b, x)));
}

static const char *width(const tr_layer *l)
{
    return ((const attrs *)l->attrs)->a.groups == 1 ? "out" : NULL;
}

const tr_op_def tr_def_conv_transpose2d = {
    .name = "conv_transpose2d",
    .example = "conv_transpose2d: {out: 32, kernel: 2, stride: 2}",
    .doc = "Transposed 2-D convolution, as PyTorch's ConvTranspose2d: a result of (size - 1) * "
           "stride - 2 * "
           "padding + dilation * (kernel - 1) + output_padding + 1. Parameters: weight (in, out / "
           "groups, height, width), bias (out).",
    .fields = fields,
    .attrs_size = sizeof(attrs),
    .learned = true,
    .rounds = 1u << 0, /* the weight */
    .min_in = 1,
    .max_in = 1,
    .finish = finish,
    .infer = infer,
    .forward = forward,
    .gradient = gradient,
    .width_of = width,
    .flops = tr_flops_product_grad_input};

const tr_op_def tr_def_conv_transpose2d_grad_input = {.name = "conv_transpose2d.grad_input",
                                                      .flops = tr_flops_product};

const tr_op_def tr_def_conv_transpose2d_grad_weight = {.name = "conv_transpose2d.grad_weight",
                                                       .flops = tr_flops_product_grad_weight};

/* ---- A bias for each channel ----------------------------------------------------------------- */

static void gradient_bias(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]);
    if (tr_grad_learned(b, op->in[1]))
        tr_build_backward(b, &tr_def_channel_bias_grad, op, TR_IDS(dy),
                          TR_IDS(tr_grad_param(b, op->in[1])));
    tr_grad_pass(b, op->in[0], dy);
}

const tr_op_def tr_def_channel_bias = {.name = "channel_bias",
                                       .gradient = gradient_bias,
                                       .flops = tr_flops_elements,
                                       .share = TR_SHARE_FIRST,
                                       .acts_infer = TR_ACT_ANY,
                                       .acts_train = TR_ACT_IS(TR_ACT_RELU)};

const tr_op_def tr_def_channel_bias_grad = {.name = "channel_bias.grad",
                                            .flops = tr_flops_elements};
