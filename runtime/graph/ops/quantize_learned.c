/* Rounded to 8 bits and back by a scale that is learned: LSQ (Esser, McKinstry, Bablani, Appuswamy
 * and Modha 2020), with the straight-through gradient of the rounding,
 *
 *     y = s clamp(round(x / s)),   dy/ds = round(x / s) - x / s, or the end that it was clamped to,
 *
 * times 1 / sqrt(n Q_P), so that a scale moves, relative to its size, about as far as what is
 * rounded. A scale is the magnitude of its parameter: a step past 0 leaves it positive. */
#include "runtime/graph/ops/registry.h"

const tr_learned_steps tr_learned_weight_steps = {.least = -127, .most = 127, .positive = 127};

const tr_op_def *tr_op_rounds_weight_learned(void)
{
    return &tr_def_quantize_weight_learned;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int x = op->in[0], scale = op->in[1], dy = tr_grad_of(b, op->out[0]);
    const bool weight = tr_build_tensor(b, x)->role == TR_ROLE_PARAM;
    const int dx = weight ? tr_grad_param(b, x) : tr_grad_new(b, x);
    const int dscale = tr_grad_learned(b, scale) ? tr_grad_param(b, scale) : -1;
    if (dx >= 0 || dscale >= 0)
        tr_build_backward(b, &tr_def_quantize_learned_grad, op, TR_IDS(dy, x, scale),
                          TR_IDS(dx, dscale));
}

const tr_op_def tr_def_fake_quantize_learned = {.name = "fake_quantize.learned",
                                                .gradient = gradient,
                                                .flops = tr_flops_elements,
                                                .share = TR_SHARE_FIRST};
const tr_op_def tr_def_quantize_weight_learned = {.name = "quantize_weight.learned",
                                                  .gradient = gradient,
                                                  .flops = tr_flops_elements,
                                                  .statistics = true};
const tr_op_def tr_def_quantize_learned_grad = {
    .name = "quantize.learned_grad", .flops = tr_flops_elements, .share = TR_SHARE_FIRST};
