/* The one head of plain elementwise ops: each is declared here once, and both backends make a
 * kernel of it: a loop for every type and instruction set level (cpu/loops/elementwise.c), a CUDA
 * kernel for every type (cuda/loops/elementwise.cu). The list of ops gives such an op the kernel
 * `elementwise`.
 *
 * X(op, operands, value, numbers): out[0] = value, element by element, in float32, rounded once,
 * NaN and infinities as IEEE says. `value` is an expression in C and C++ of x, y (the elements of
 * the first two of 1 or 2 operands, all of out[0]'s shape, type and layout), n, the tr_numbers that
 * `numbers` makes of `attrs`, the op's attributes, and the functions that each backend has:
 * tr_vexp, tr_vexpm1 (from -1 up to e^88), tr_vlog1p (of [0, 1]), tr_vsigmoid. */
#ifndef TR_KERNELS_ELEMENTWISE_H
#define TR_KERNELS_ELEMENTWISE_H

#include "runtime/graph/ops.h"
#include "runtime/graph/ops/list.h"

typedef struct {
    float a, b, c, d;
} tr_numbers;

#define TR_NO_NUMBERS tr_no_numbers()
static inline tr_numbers tr_no_numbers(void)
{
    tr_numbers n = {0, 0, 0, 0};
    return n;
}

#define TR_LEAKY_NUMBERS tr_leaky_numbers((const tr_leaky_relu_attrs *)attrs)
static inline tr_numbers tr_leaky_numbers(const tr_leaky_relu_attrs *attrs)
{
    tr_numbers n = {(float)attrs->negative_slope, 0, 0, 0};
    return n;
}

#define TR_ELU_NUMBERS tr_elu_numbers((const tr_elu_attrs *)attrs)
static inline tr_numbers tr_elu_numbers(const tr_elu_attrs *attrs)
{
    tr_numbers n = {(float)attrs->alpha, 0, 0, 0};
    return n;
}

/* a: beta; b: 1 / beta; c: threshold */
#define TR_SOFTPLUS_NUMBERS tr_softplus_numbers((const tr_softplus_attrs *)attrs)
static inline tr_numbers tr_softplus_numbers(const tr_softplus_attrs *attrs)
{
    tr_numbers n = {(float)attrs->beta, (float)(1 / attrs->beta), (float)attrs->threshold, 0};
    return n;
}
/* log(1 + exp(v)), without an exponential that overflows. */
#define TR_SOFTPLUS(v) (((v) > 0.0f ? (v) : 0.0f) + tr_vlog1p(tr_vexp((v) > 0.0f ? -(v) : (v))))
/* relu6(x + 3) / 6 */
#define TR_GATE(x) ((x) <= -3.0f ? 0.0f : (x) >= 3.0f ? 1.0f : ((x) + 3.0f) * (1.0f / 6.0f))

/* a: 1 / scale; b, c: the least and the largest step, less the zero point; d: scale. Floats within
 * TR_ROUNDING of 0 that get it added and taken away again are whole, halves even. */
#define TR_ROUNDING      12582912.0f /* 1.5 * 2^23 */
#define TR_QUANT_NUMBERS tr_quant_numbers((const tr_fake_quantize_attrs *)attrs)
static inline tr_numbers tr_quant_numbers(const tr_fake_quantize_attrs *attrs)
{
    const float zero = (float)attrs->zero_point, least = attrs->is_signed ? -128.0f : 0.0f;
    tr_numbers n = {1.0f / (float)attrs->scale, least - zero, least + 255 - zero,
                    (float)attrs->scale};
    return n;
}
#define TR_CLAMP(v, least, most) ((v) < (least) ? (least) : (v) > (most) ? (most) : (v))
#define TR_NEAREST(v)            (((v) + TR_ROUNDING) - TR_ROUNDING)
/* Of a row whose largest value or magnitude is `most`, with the steps of dynamic_quantize. */
#define TR_DYNAMIC_STEPS(is_signed)   ((is_signed) ? 127.0f : 255.0f)
#define TR_DYNAMIC_SCALE(most, steps) (((most) > 1e-30f ? (most) : 1e-30f) / (steps))
/* Clamped wide of the ends, so that what is beyond them stays so. */
#define TR_STEP(v, n) TR_NEAREST(TR_CLAMP((v) * (n).a, (n).b - 4, (n).c + 4))

#define TR_ELEMENTWISE(X)                                                                          \
    X(leaky_relu, 1, x > 0.0f ? x : n.a * x, TR_LEAKY_NUMBERS)                                     \
    X(leaky_relu_grad, 2, y > 0.0f ? x : n.a * x, TR_LEAKY_NUMBERS)                                \
    X(fake_quantize, 1, TR_NEAREST(TR_CLAMP(x *n.a, n.b, n.c)) * n.d, TR_QUANT_NUMBERS)            \
    X(fake_quantize_grad, 2, TR_STEP(y, n) < n.b || TR_STEP(y, n) > n.c ? 0.0f : x,                \
      TR_QUANT_NUMBERS)                                                                            \
    X(relu6, 1, x <= 0.0f ? 0.0f : x >= 6.0f ? 6.0f : x, TR_NO_NUMBERS)                            \
    X(relu6_grad, 2, y <= 0.0f || y >= 6.0f ? 0.0f : x, TR_NO_NUMBERS)                             \
    X(elu, 1, x > 0.0f ? x : n.a * tr_vexpm1(x), TR_ELU_NUMBERS)                                   \
    X(elu_grad, 2, y > 0.0f ? x : x * n.a * tr_vexp(y), TR_ELU_NUMBERS)                            \
    X(hardswish, 1, x <= -3.0f ? 0.0f : x * TR_GATE(x), TR_NO_NUMBERS)                             \
    X(hardswish_grad, 2,                                                                           \
      y <= -3.0f  ? 0.0f                                                                           \
      : y >= 3.0f ? x                                                                              \
                  : x * (y * (1.0f / 3.0f) + 0.5f),                                                \
      TR_NO_NUMBERS)                                                                               \
    X(hardsigmoid, 1, TR_GATE(x), TR_NO_NUMBERS)                                                   \
    X(hardsigmoid_grad, 2, y <= -3.0f || y >= 3.0f ? 0.0f : x * (1.0f / 6.0f), TR_NO_NUMBERS)      \
    X(softplus, 1, x *n.a > n.c ? x : TR_SOFTPLUS(x * n.a) * n.b, TR_SOFTPLUS_NUMBERS)             \
    X(softplus_grad, 2, y *n.a > n.c ? x : x * tr_vsigmoid(y * n.a), TR_SOFTPLUS_NUMBERS)

typedef enum {
#define X(op, operands, value, numbers) TR_ELEMENTWISE_##op,
    TR_ELEMENTWISE(X)
#undef X
} tr_elementwise;

/* What an op with the kernel `elementwise` computes; refused where it has other operands than are
 * declared above, or is not. */
static inline tr_status tr_elementwise_of(const tr_op *op, tr_elementwise *which, tr_numbers *n)
{
    const void *attrs = op->attrs;
    int operands = 0;
    switch (tr_op_place(op->def)) {
#define X(op_, operands_, value, numbers)                                                          \
    case TR_OP_##op_:                                                                              \
        operands = operands_;                                                                      \
        *n = numbers;                                                                              \
        *which = TR_ELEMENTWISE_##op_;                                                             \
        break;
        TR_ELEMENTWISE(X)
#undef X
    default:
        break;
    }
    if (operands > 0 && operands == op->nin) return TR_OK;
    return TR_FAIL(TR_INTERNAL, "layer %s: %d operands of an elementwise op that takes %d",
                   op->layer, op->nin, operands);
}

#endif
