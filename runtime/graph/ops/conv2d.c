/* 2-D convolution (cross-correlation, as PyTorch's Conv2d) with stride, padding, dilation, groups;
 * and the 1-D one, which is the same of an image of height 1 with a weight of three dimensions. */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_conv2d_attrs a;
    tr_ints kernel, stride, padding, dilation; /* as written: one int or [h, w] */
    int init;
} attrs;

static const tr_field fields_1d[] = {
    TR_INT("out", offsetof(attrs, a.out), NULL, 1, INT32_MAX, NULL, "output channels"),
    TR_INTS("kernel", offsetof(attrs, kernel), NULL, 1, INT16_MAX, NULL, "places"),
    TR_INTS("stride", offsetof(attrs, stride), "1", 1, INT16_MAX, NULL, "places of a step"),
    TR_PADDING_LINE_FIELD(offsetof(attrs, padding), "zeros added on both sides"),
    TR_INTS("dilation", offsetof(attrs, dilation), "1", 1, INT16_MAX, NULL,
            "distance of the kernel's points; 1 = dense"),
    TR_INT("groups", offsetof(attrs, a.groups), "1", 1, INT32_MAX, NULL,
           "groups of channels that are convolved apart"),
    TR_BOOL("bias", offsetof(attrs, a.bias), "true", "add a learned bias"),
    TR_INIT_FIELD(attrs),
    {0},
};

static const tr_field fields[] = {
    TR_INT("out", offsetof(attrs, a.out), NULL, 1, INT32_MAX, NULL, "output channels"),
    TR_INTS("kernel", offsetof(attrs, kernel), NULL, 1, INT16_MAX, "pixels",
            "one size, or [height, width]"),
    TR_INTS("stride", offsetof(attrs, stride), "1", 1, INT16_MAX, "pixels",
            "one step, or [height, width]"),
    TR_PADDING_FIELD(offsetof(attrs, padding), "zeros added on both sides"),
    TR_INTS("dilation", offsetof(attrs, dilation), "1", 1, INT16_MAX, "pixels",
            "distance of the kernel's points; 1 = dense"),
    TR_INT("groups", offsetof(attrs, a.groups), "1", 1, INT32_MAX, NULL,
           "groups of channels that are convolved apart"),
    TR_BOOL("bias", offsetof(attrs, a.bias), "true", "add a learned bias"),
    TR_INIT_FIELD(attrs),
    {0},
};

enum { RESIDUAL = 3 }; /* operand place (ops.h) */

static tr_window window_of(tr_conv2d_attrs *a)
{
    return (tr_window){.kernel = a->kernel,
                       .stride = a->stride,
                       .dilation = a->dilation,
                       .padding = a->padding,
                       .extra = a->extra};
}

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    attrs *a = at;
    const tr_window w = window_of(&a->a);
    tr_status st = TR_OK;
    a->init = (int)tr_layer_init(mk, a->init);
    TR_TRY(tr_layer_pair(l, "kernel", &a->kernel, a->a.kernel));
    TR_TRY(tr_layer_pair(l, "stride", &a->stride, a->a.stride));
    TR_TRY(tr_layer_pair(l, "dilation", &a->dilation, a->a.dilation));
    TR_TRY(tr_layer_padding(l, &a->padding, &w));
    if (a->a.out % a->a.groups != 0)
        st = tr_layer_fail(l, TR_SHAPE, "out %lld is not a multiple of groups %lld",
                           (long long)a->a.out, (long long)a->a.groups);
out:
    return st;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    attrs *a = l->attrs;
    const tr_window w = window_of(&a->a);
    tr_status st = TR_OK;
    const bool line = l->def->line;
    TR_TRY(line ? tr_layer_sequence(l) : tr_layer_image(l));
    int64_t in = l->inputs[0].dims[0];
    if (in % a->a.groups != 0) {
        char t[TR_SHAPE_TEXT];
        st = tr_layer_fail(l, TR_SHAPE,
                           "%lld channels of its input %s are not a multiple of groups %lld",
                           (long long)in, tr_shape_text(&l->inputs[0], t), (long long)a->a.groups);
        goto out;
    }
    l->output =
        (tr_shape){.ndim = line ? 2 : 3, .dims = {a->a.out}, .layout = TR_LAYOUT_CHANNELS_LAST};
    for (int axis = 0; axis < 2; axis++) TR_TRY(tr_layer_window(l, axis, &w));
    tr_shape weight = {.ndim = 4,
                       .dims = {a->a.out, in / a->a.groups, a->a.kernel[0], a->a.kernel[1]}};
    if (line) weight.ndim = 3, weight.dims[2] = a->a.kernel[1];
    TR_TRY(tr_layer_weight_bias(mk, l, &weight, (tr_init_kind)a->init, a->a.bias));
out:
    return st;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    tr_grad_product(b, op, &tr_def_conv2d_grad_input, &tr_def_conv2d_grad_weight);
}

static void product(const tr_layer *l, tr_product *out)
{
    const tr_conv2d_attrs *a = l->attrs;
    out->groups = a->groups;
    for (int i = 0; i < 2; i++) {
        out->stride[i] = a->stride[i];
        out->padding[i] = a->padding[i];
        out->extra[i] = a->extra[i];
        out->dilation[i] = a->dilation[i];
    }
}

/* Zeros around its input are padding of its own, where both ends get equally many. */
static bool merged(const tr_layer *first, const tr_layer *second, tr_merged *out)
{
    const tr_conv2d_attrs *a = second->attrs;
    int64_t around[4], padding[2];
    if (second->def->line || !tr_layer_zeros_around(first, around)) return false;
    for (int i = 0; i < 2; i++) {
        padding[i] = a->padding[i] + around[2 * i];
        if (a->padding[i] + a->extra[i] + around[2 * i + 1] != padding[i] || padding[i] > INT16_MAX)
            return false;
    }
    out->noptions = 1;
    snprintf(out->options[0], sizeof out->options[0], "padding=[%lld, %lld]", (long long)padding[0],
             (long long)padding[1]);
    return true;
}

#define CONVOLUTION(...)                                                                           \
    {                                                                                              \
        .attrs_size = sizeof(attrs), .learned = true, .tied = true,                                \
        .rounds = 1u << 0, /* the weight */                                                        \
            .min_in = 1, .max_in = 1, .finish = finish, .infer = infer, .operands = 4,             \
        .gradient = gradient, .acts_infer = TR_ACT_ANY, .acts_train = TR_ACT_IS(TR_ACT_RELU),      \
        .residual = RESIDUAL, .int8 = &tr_def_conv2d_int8,                                         \
        .int8_groups = &tr_def_conv2d_int8_groups, .residual_infer = true,                         \
        .channels = TR_CHANNELS_PRODUCT, .width = "out", .product = product, .merged = merged,     \
        .flops = tr_flops_product, __VA_ARGS__                                                     \
    }

const tr_op_def tr_def_conv1d =
    CONVOLUTION(.name = "conv1d", .example = "conv1d: {out: 64, kernel: 5, padding: same}",
                .doc = "1-D convolution of a sequence (channels, length). Parameters: weight (out, "
                       "in / groups, kernel), "
                       "bias (out).",
                .fields = fields_1d, .sequence = TR_SEQUENCE_CHANNELS, .line = true);

const tr_op_def tr_def_conv2d = CONVOLUTION(
        .name = "conv2d",
        .example = "conv2d: {out: 64, kernel: 3, stride: 2, padding: 1, bias: false}",
        .doc = "2-D convolution. Parameters: weight (out, in / groups, height, width), bias (out).",
        .sketched = &tr_def_skconv2d, .fields = fields);

const tr_op_def tr_def_conv2d_grad_input = {.name = "conv2d.grad_input",
                                            .flops = tr_flops_product_grad_input};

const tr_op_def tr_def_conv2d_grad_weight = {.name = "conv2d.grad_weight",
                                             .flops = tr_flops_product_grad_weight};
