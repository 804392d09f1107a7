/* A convolution whose filters are learned in sketches: one of 2 * terms * rank filters, then fixed
 * signs over the channels (sklinear.c; Panther's SKConv2d). */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_skconv2d_attrs s;
    tr_ints kernel, stride, padding, dilation; /* as written: one int or [h, w] */
    int init;
} attrs;

static const tr_field fields[] = {
    TR_INT("out", offsetof(attrs, s.a.out), NULL, 1, INT32_MAX, NULL, "output channels"),
    TR_INTS("kernel", offsetof(attrs, kernel), NULL, 1, INT16_MAX, "pixels",
            "one size, or [height, width]"),
    TR_SKETCH_FIELDS(attrs, s.a.sketch, "sketches of the filters: twice as many are averaged"),
    TR_INTS("stride", offsetof(attrs, stride), "1", 1, INT16_MAX, "pixels",
            "one step, or [height, width]"),
    TR_PADDING_FIELD(offsetof(attrs, padding), "zeros added on both sides"),
    TR_INTS("dilation", offsetof(attrs, dilation), "1", 1, INT16_MAX, "pixels",
            "distance of the kernel's points; 1 = dense"),
    TR_BOOL("bias", offsetof(attrs, s.a.bias), "true", "add a learned bias"),
    TR_INIT_FIELD(attrs),
    {0},
};

static tr_window window_of(tr_conv2d_attrs *c)
{
    return (tr_window){.kernel = c->kernel,
                       .stride = c->stride,
                       .dilation = c->dilation,
                       .padding = c->padding,
                       .extra = c->extra};
}

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    attrs *a = at;
    const tr_window w = window_of(&a->s.conv);
    tr_status st = TR_OK;
    a->init = (int)tr_layer_init(mk, a->init);
    tr_sketch_finish(l, &a->s.a.sketch, TR_SKETCH_SIGNS);
    a->s.conv.out = 2 * a->s.a.sketch.terms * a->s.a.sketch.rank;
    a->s.conv.groups = 1;
    TR_TRY(tr_layer_pair(l, "kernel", &a->kernel, a->s.conv.kernel));
    TR_TRY(tr_layer_pair(l, "stride", &a->stride, a->s.conv.stride));
    TR_TRY(tr_layer_pair(l, "dilation", &a->dilation, a->s.conv.dilation));
    TR_TRY(tr_layer_padding(l, &a->padding, &w));
out:
    return st;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    attrs *a = l->attrs;
    const tr_window w = window_of(&a->s.conv);
    tr_status st = TR_OK;
    TR_TRY(tr_layer_image(l));
    const int64_t in = l->inputs[0].dims[0], *kernel = a->s.conv.kernel;
    const int64_t fan_in = in * kernel[0] * kernel[1];
    l->output = (tr_shape){.ndim = 3, .dims = {a->s.a.out}, .layout = TR_LAYOUT_CHANNELS_LAST};
    for (int axis = 0; axis < 2; axis++) TR_TRY(tr_layer_window(l, axis, &w));
    const tr_param_decl s = {.name = "s1",
                             .ndim = 4,
                             .dims = {a->s.conv.out, in, kernel[0], kernel[1]},
                             .init = (tr_init_kind)a->init,
                             .fan_in = (double)fan_in,
                             .fan_out = (double)(a->s.a.out * kernel[0] * kernel[1]),
                             .decay = true,
                             .sketch = a->s.a.sketch,
                             .of = {a->s.a.out, fan_in}};
    TR_TRY(tr_layer_param(mk, l, &s));
    if (a->s.a.bias) TR_TRY(tr_layer_bias(mk, l, &s, a->s.a.out));
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const attrs *a = l->attrs;
    const int x = tr_build_input(b, l, 0), s1 = tr_build_param(b, l, 0);
    const int y = tr_build_output(b, l);
    const int h = tr_build_channels(b, l->name, "sketches", y, a->s.conv.out);
    tr_build_op(b, &tr_def_conv2d, l->name, l->index, &a->s.conv, TR_PHASE_FORWARD,
                TR_IDS(x, s1, -1, -1), TR_IDS(h));
    tr_build_op(b, l->def, l->name, l->index, &a->s.a, TR_PHASE_FORWARD,
                TR_IDS(h, s1, a->s.a.bias ? tr_build_param(b, l, 1) : -1), TR_IDS(y));
    return y;
}

/* The convolution is an op of its own. */
static void gradient(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]), h = op->in[0], bias = op->in[2];
    if (tr_grad_learned(b, bias))
        tr_build_backward(b, &tr_def_channel_bias_grad, op, TR_IDS(dy),
                          TR_IDS(tr_grad_param(b, bias)));
    if (tr_grad_wanted(b, h))
        tr_build_backward(b, &tr_def_sklinear_grad_input, op, TR_IDS(dy, op->in[1]),
                          TR_IDS(tr_grad_new(b, h)));
}

static double flops(const tr_graph *g, const tr_op *op)
{
    const tr_linear_matrix m = tr_linear_matrix_of(op, &g->tensors[op->in[1]]);
    return 2 * (double)g->tensors[op->out[0]].count * (double)m.in;
}

const tr_op_def tr_def_skconv2d = {
    .name = "skconv2d",
    .example = "skconv2d: {out: 64, kernel: 3, terms: 2, rank: 8, padding: 1}",
    .doc =
        "2-D convolution whose filters are learned in sketches (Panther's SKConv2d; Seddik et "
        "al. 2026): a convolution of 2 * terms * rank filters, then `y = 1 / (2 terms) * sum of "
        "U_i^T h_i + b` over the channels, U_i (rank, out) fixed signs / sqrt(rank), made from "
        "the seed and in no file. Initial values are sketches of a dense layer's. Parameters: s1 "
        "(2 * terms * rank, in, height, width), bias (out).",
    .fields = fields,
    .attrs_size = sizeof(attrs),
    .learned = true,
    .rounds = 1u << 0, /* s1 */
    .min_in = 1,
    .max_in = 1,
    .finish = finish,
    .infer = infer,
    .forward = forward,
    .operands = 3,
    .gradient = gradient,
    .acts_infer = TR_ACT_ANY,
    .acts_train = TR_ACT_IS(TR_ACT_RELU),
    .multiplies = true,
    .width = "out",
    .flops = flops};
