/* The one head of plain elementwise ops: each is declared here once, and both backends make a
 * kernel of it: a loop for every type and instruction set level (cpu/loops/elementwise.c), a CUDA
 * kernel for every type (cuda/loops/elementwise.cu). The list of ops gives such an op the kernel
 * `elementwise`.
 *
 * X(op, operands, value, numbers): out[0] = value, element by element, in float32, rounded once, NaN
 * and infinities as IEEE says. `value` is an expression in C and C++ of x, y (the elements of the
 * first two of 1 or 2 operands, all of out[0]'s shape, type and layout) and n, the tr_numbers that
 * `numbers` makes of `attrs`, the op's attributes. */
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
/* Clamped wide of the ends, so that what is beyond them stays so. */
#define TR_STEP(v, n) TR_NEAREST(TR_CLAMP((v) * (n).a, (n).b - 4, (n).c + 4))

#define TR_ELEMENTWISE(X)                                                                          \
    X(leaky_relu, 1, x > 0.0f ? x : n.a * x, TR_LEAKY_NUMBERS)                                     \
    X(leaky_relu_grad, 2, y > 0.0f ? x : n.a * x, TR_LEAKY_NUMBERS)                                \
    X(fake_quantize, 1, TR_NEAREST(TR_CLAMP(x *n.a, n.b, n.c)) * n.d, TR_QUANT_NUMBERS)            \
    X(fake_quantize_grad, 2, TR_STEP(y, n) < n.b || TR_STEP(y, n) > n.c ? 0.0f : x,                \
      TR_QUANT_NUMBERS)                                                                            \
    X(relu6, 1, x <= 0.0f ? 0.0f : x >= 6.0f ? 6.0f : x, TR_NO_NUMBERS)                            \
    X(relu6_grad, 2, y <= 0.0f || y >= 6.0f ? 0.0f : x, TR_NO_NUMBERS)

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
