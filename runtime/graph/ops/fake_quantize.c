/* Rounded to 8 bits and back, as torch.fake_quantize_per_tensor_affine does it: what a value
 * becomes between two layers that compute in int8. The gradient is that of the identity where
 * nothing was clipped (straight-through; Bengio, Leonard and Courville 2013). */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_REAL("scale", offsetof(tr_fake_quantize_attrs, scale), NULL, 1e-30, 1e30, NULL,
            "of one step; rounded to float32"),
    TR_INT("zero_point", offsetof(tr_fake_quantize_attrs, zero_point), "0", -128, 255, NULL,
           "the step that stands for 0"),
    TR_BOOL("signed", offsetof(tr_fake_quantize_attrs, is_signed), "true",
            "steps from -128 to 127, else from 0 to 255"),
    TR_BOOL(
        "learn_scale", offsetof(tr_fake_quantize_attrs, learn_scale), "false",
        "the scale is a parameter that is trained, and `scale` its initial value (LSQ; Esser et "
        "al. 2020)"),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    (void)mk;
    tr_fake_quantize_attrs *a = at;
    const int64_t least = a->is_signed ? -128 : 0;
    a->scale = (double)(float)a->scale;
    if (a->zero_point < least || a->zero_point > least + 255)
        return tr_layer_fail(l, TR_CONFIG, "zero_point: %lld is not in [%lld, %lld]",
                             (long long)a->zero_point, (long long)least, (long long)least + 255);
    a->steps = (tr_learned_steps){.least = (float)(least - a->zero_point),
                                  .most = (float)(least + 255 - a->zero_point),
                                  .positive = (float)(least + 255),
                                  .sampled = true};
    return TR_OK;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const tr_fake_quantize_attrs *a = l->attrs;
    const tr_param_decl scale = {
        .name = TR_SCALE_ROW, .ndim = 1, .dims = {1}, .init = TR_INIT_CONSTANT, .std = a->scale};
    return a->learn_scale ? tr_layer_param(mk, l, &scale) : TR_OK;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const tr_fake_quantize_attrs *a = l->attrs;
    const int x = tr_build_input(b, l, 0), y = tr_build_output(b, l);
    if (a->learn_scale)
        tr_build_op(b, &tr_def_fake_quantize_learned, l->name, l->index, &a->steps,
                    TR_PHASE_FORWARD, TR_IDS(x, tr_build_param(b, l, 0)), TR_IDS(y));
    else
        tr_build_forward(b, l->def, l, TR_IDS(x), TR_IDS(y));
    return y;
}

/* One scale is of all channels. */
static tr_channels channels_of(const tr_layer *l)
{
    return ((const tr_fake_quantize_attrs *)l->attrs)->learn_scale ? TR_CHANNELS_MIXED
                                                                   : TR_CHANNELS_EACH;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_fake_quantize_grad, op,
                      TR_IDS(tr_grad_of(b, op->out[0]), op->in[0]),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

const tr_op_def tr_def_fake_quantize = {
    .name = "fake_quantize",
    .example = "fake_quantize: {scale: 0.02, zero_point: 3}",
    .doc = "`scale * (q - zero_point)` with `q = clamp(round(x / scale) + zero_point)`, 8 bits, "
           "halves to even; the gradient passes where `q` was not clamped.",
    .fields = fields,
    .attrs_size = sizeof(tr_fake_quantize_attrs),
    .min_in = 1,
    .max_in = 1,
    .operands = 1,
    .learned = true,
    .sequence = TR_SEQUENCE_EITHER,
    .rows = TR_ROWS_APART,
    .infer = infer,
    .forward = forward,
    .quantize = &tr_def_int8_quantize,
    .dequantize = &tr_def_int8_dequantize,
    .finish = finish,
    .gradient = gradient,
    .flops = tr_flops_elements,
    .share = TR_SHARE_FIRST,
    .channels_of = channels_of,
};

const tr_op_def tr_def_fake_quantize_grad = {
    .name = "fake_quantize.grad", .flops = tr_flops_elements, .share = TR_SHARE_FIRST};
