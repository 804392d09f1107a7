/* Pooling over windows (maximum, average) and over whole images, and the same of sequences, images
 * of height 1. */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_pool2d_attrs a;
    tr_ints kernel, stride, padding; /* as written */
} attrs;

#define WINDOW_FIELDS                                                                              \
    TR_INTS("kernel", offsetof(attrs, kernel), NULL, 1, INT16_MAX, "pixels",                       \
            "one size, or [height, width]"),                                                       \
        TR_INTS("stride", offsetof(attrs, stride), "", 1, INT16_MAX, "pixels",                     \
                "one step, or [height, width]; default: the kernel"),                              \
        TR_PADDING_FIELD(offsetof(attrs, padding),                                                 \
                         "added on both sides, at most half the kernel"),                          \
        TR_ENTRY("ceil_mode", BOOL, offsetof(attrs, a.ceil_mode), "false",                         \
                 "a last window that begins in the input or its padding counts, though it does "   \
                 "not end there",                                                                  \
                 .was = "ceil")

#define LINE_FIELDS                                                                                \
    TR_INTS("kernel", offsetof(attrs, kernel), NULL, 1, INT16_MAX, NULL, "places"),                \
        TR_INTS("stride", offsetof(attrs, stride), "", 1, INT16_MAX, NULL,                         \
                "places of a step; default: the kernel"),                                          \
        TR_PADDING_LINE_FIELD(offsetof(attrs, padding),                                            \
                              "added on both sides, at most half the kernel"),                     \
        TR_BOOL("ceil_mode", offsetof(attrs, a.ceil_mode), "false",                                \
                "a last window that begins in the input or its padding counts, though it does "    \
                "not end there")
#define COUNT_FIELD                                                                                \
    TR_BOOL("count_include_pad", offsetof(attrs, a.count_include_pad), "true",                     \
            "padding counts as zeros in the average")

static const tr_field max_fields_1d[] = {
    LINE_FIELDS,
    {0},
};
static const tr_field avg_fields_1d[] = {
    LINE_FIELDS,
    COUNT_FIELD,
    {0},
};
static const tr_field max_fields[] = {
    WINDOW_FIELDS,
    {0},
};
static const tr_field avg_fields[] = {
    WINDOW_FIELDS,
    COUNT_FIELD,
    {0},
};

static const int64_t dense[2] = {1, 1};

static tr_window window_of(tr_pool2d_attrs *a)
{
    return (tr_window){.kernel = a->kernel,
                       .stride = a->stride,
                       .dilation = dense,
                       .padding = a->padding,
                       .extra = a->extra};
}

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    (void)mk;
    attrs *a = at;
    const tr_window w = window_of(&a->a);
    tr_status st = TR_OK;
    TR_TRY(tr_layer_pair(l, "kernel", &a->kernel, a->a.kernel));
    if (a->stride.count == 0) a->stride = a->kernel;
    TR_TRY(tr_layer_pair(l, "stride", &a->stride, a->a.stride));
    TR_TRY(tr_layer_padding(l, &a->padding, &w));
    for (int i = 0; i < 2; i++)
        if (2 * a->a.padding[i] > a->a.kernel[i]) {
            st = tr_layer_fail(l, TR_SHAPE, "padding %lld is more than half the kernel %lld",
                               (long long)a->a.padding[i], (long long)a->a.kernel[i]);
            goto out;
        }
out:
    return st;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    attrs *a = l->attrs;
    const tr_window w = window_of(&a->a);
    tr_status st = TR_OK;
    TR_TRY(l->def->line ? tr_layer_sequence(l) : tr_layer_image(l));
    l->output = l->inputs[0];
    for (int axis = 0; axis < 2; axis++) {
        TR_TRY(tr_layer_window(l, axis, &w));
        if (!a->a.ceil_mode) continue;
        const int64_t size = tr_shape_size(&l->inputs[0], axis);
        const int64_t next = tr_shape_size(&l->output, axis);
        const int at = l->output.ndim - 2 + axis;
        const int64_t begin = next * a->a.stride[axis] - a->a.padding[axis];
        const int64_t room = size + 2 * a->a.padding[axis] + a->a.extra[axis] - a->a.kernel[axis];
        if (at > 0) l->output.dims[at] += room % a->a.stride[axis] != 0 && begin < size;
    }
out:
    return st;
}

static tr_status infer_global(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    tr_status st = TR_OK;
    if (l->inputs[0].ndim != 2) TR_TRY(tr_layer_image(l));
    l->output = (tr_shape){.ndim = l->inputs[0].ndim,
                           .dims = {l->inputs[0].dims[0], 1, 1},
                           .layout = l->inputs[0].layout};
out:
    return st;
}

/* A maximum over one window that is the whole image. */
static tr_status infer_global_max(tr_maker *mk, tr_layer *l)
{
    tr_pool2d_attrs *a = l->attrs;
    const tr_status st = infer_global(mk, l);
    for (int i = 0; i < 2 && st == TR_OK; i++) {
        a->kernel[i] = tr_shape_size(&l->inputs[0], i);
        a->stride[i] = 1;
    }
    return st;
}

static int forward_max(tr_builder *b, const tr_layer *l)
{
    const tr_pool2d_attrs *a = l->attrs;
    int y = tr_build_output(b, l), indices = -1;
    if (tr_build_train(b)) {
        tr_dtype type = a->kernel[0] * a->kernel[1] < 256 ? TR_U8 : TR_I32;
        indices = tr_build_like(b, l->name, "indices", type, y);
    }
    tr_build_forward(b, l->def, l, TR_IDS(tr_build_input(b, l, 0)), TR_IDS(y, indices));
    return y;
}

static void gradient_max(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_maxpool2d_grad, op, TR_IDS(tr_grad_of(b, op->out[0]), op->out[1]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0])),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

/* One operation for each point of each window; y is the smaller side in both directions. */
static double flops_window(const tr_graph *g, const tr_op *op)
{
    const tr_pool2d_attrs *a = op->attrs;
    int y = op->phase == TR_PHASE_FORWARD || op->recomputed ? op->out[0] : op->in[0];
    return (double)g->tensors[y].count * (double)a->kernel[0] * (double)a->kernel[1];
}

static double flops_global(const tr_graph *g, const tr_op *op)
{
    size_t in = g->tensors[op->in[0]].count, out = g->tensors[op->out[0]].count;
    return (double)(in > out ? in : out);
}

/* A window of one place. */
static bool same(const tr_layer *l)
{
    const tr_pool2d_attrs *a = l->attrs;
    bool one = true;
    for (int i = 0; i < 2; i++) one = one && a->kernel[i] == 1 && a->stride[i] == 1;
    return one;
}

static bool same_global(const tr_layer *l)
{
    return tr_shape_places(&l->inputs[0]) == 1;
}

static bool is_padded(const tr_pool2d_attrs *a)
{
    bool any = false;
    for (int i = 0; i < 2; i++) any = any || a->padding[i] > 0 || a->extra[i] > 0;
    return any;
}

/* Zeros that count in an average are not shifted with it. */
static unsigned commutes_average(const tr_layer *l)
{
    const tr_pool2d_attrs *a = l->attrs;
    const bool zeros = a->count_include_pad && is_padded(a);
    return zeros ? TR_COMMUTES_POSITIVE | TR_COMMUTES_SCALE : TR_COMMUTES_ALL;
}

/* One window that is the whole image. */
static const tr_op_def *plain_average(const tr_layer *l)
{
    const tr_pool2d_attrs *a = l->attrs;
    bool whole = !is_padded(a);
    for (int i = 0; i < 2; i++) whole = whole && a->kernel[i] == tr_shape_size(&l->inputs[0], i);
    return whole ? &tr_def_global_avgpool : NULL;
}

#define WINDOW(op_name, text, ...)                                                                 \
    {                                                                                              \
        .name = op_name, .doc = text, .attrs_size = sizeof(attrs), .min_in = 1, .max_in = 1,       \
        .finish = finish, .infer = infer, .operands = 1, .flops = flops_window,                    \
        .channels = TR_CHANNELS_EACH, .same = same, __VA_ARGS__                                    \
    }

const tr_op_def tr_def_maxpool1d = WINDOW(
    "maxpool1d", "Maximum of each window of a sequence (channels, length).",
    .example = "maxpool1d: {kernel: 2}", .fields = max_fields_1d, .sequence = TR_SEQUENCE_CHANNELS,
    .line = true, .forward = forward_max, .gradient = gradient_max, .moves = true,
    .commutes = TR_COMMUTES_POSITIVE | TR_COMMUTES_SHIFT);

const tr_op_def tr_def_avgpool1d = WINDOW(
    "avgpool1d", "Average of each window of a sequence (channels, length).",
    .example = "avgpool1d: {kernel: 2}", .fields = avg_fields_1d, .sequence = TR_SEQUENCE_CHANNELS,
    .line = true, .gradient = gradient, .backward = &tr_def_avgpool2d_grad,
    .commutes_of = commutes_average, .plain = plain_average, .steps = &tr_def_avgpool2d_int8);

const tr_op_def tr_def_maxpool2d =
    WINDOW("maxpool2d", "Maximum of each window.",
           .example = "maxpool2d: {kernel: 3, stride: 2, padding: 1}", .fields = max_fields,
           .forward = forward_max, .gradient = gradient_max, .moves = true,
           .commutes = TR_COMMUTES_POSITIVE | TR_COMMUTES_SHIFT);

const tr_op_def tr_def_maxpool2d_grad = {.name = "maxpool2d.grad", .flops = flops_window};

const tr_op_def tr_def_avgpool2d = WINDOW(
    "avgpool2d", "Average of each window.", .example = "avgpool2d: {kernel: 2}",
    .fields = avg_fields, .gradient = gradient, .backward = &tr_def_avgpool2d_grad,
    .commutes_of = commutes_average, .plain = plain_average, .steps = &tr_def_avgpool2d_int8);

const tr_op_def tr_def_avgpool2d_grad = {.name = "avgpool2d.grad", .flops = flops_window};

const tr_op_def tr_def_global_maxpool = {.name = "global_maxpool",
                                         .doc = "Maximum of each channel: (channels, height, "
                                                "width) to (channels, 1, 1), (channels, length) to "
                                                "(channels, 1).",
                                         .sequence = TR_SEQUENCE_CHANNELS,
                                         .attrs_size = sizeof(tr_pool2d_attrs),
                                         .min_in = 1,
                                         .max_in = 1,
                                         .infer = infer_global_max,
                                         .operands = 1,
                                         .forward = forward_max,
                                         .gradient = gradient_max,
                                         .moves = true,
                                         .channels = TR_CHANNELS_EACH,
                                         .commutes = TR_COMMUTES_POSITIVE | TR_COMMUTES_SHIFT,
                                         .same = same_global,
                                         .flops = flops_window};

const tr_op_def tr_def_global_avgpool = {.name = "global_avgpool",
                                         .doc = "Average of each channel: (channels, height, "
                                                "width) to (channels, 1, 1), (channels, length) to "
                                                "(channels, 1).",
                                         .sequence = TR_SEQUENCE_CHANNELS,
                                         .min_in = 1,
                                         .max_in = 1,
                                         .infer = infer_global,
                                         .operands = 1,
                                         .gradient = gradient,
                                         .backward = &tr_def_global_avgpool_grad,
                                         .steps = &tr_def_global_avgpool_int8,
                                         .channels = TR_CHANNELS_EACH,
                                         .commutes = TR_COMMUTES_ALL,
                                         .same = same_global,
                                         .flops = flops_global};

const tr_op_def tr_def_global_avgpool_grad = {.name = "global_avgpool.grad", .flops = flops_global};
