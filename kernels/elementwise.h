/* The one head of plain elementwise ops: each is declared here once, and both backends make a
 * kernel of it: a loop for every type and instruction set level (cpu/loops/elementwise.c), a CUDA
 * kernel for every type (cuda/loops/elementwise.cu). The list of ops gives such an op the kernel
 * `elementwise`.
 *
 * X(op, operands, value, number): out[0] = value, element by element, in float32, rounded once, NaN
 * and infinities as IEEE says. `value` is an expression in C and C++ of x, y (the elements of the
 * first two of 1 or 2 operands, all of out[0]'s shape, type and layout) and a, the float of
 * `number`, an expression of `attrs`, the op's attributes. */
#ifndef TR_KERNELS_ELEMENTWISE_H
#define TR_KERNELS_ELEMENTWISE_H

#include "runtime/graph/ops.h"
#include "runtime/graph/ops/list.h"

#define TR_LEAKY_SLOPE ((const tr_leaky_relu_attrs *)attrs)->negative_slope

#define TR_ELEMENTWISE(X)                                                                          \
    X(leaky_relu, 1, x > 0.0f ? x : a * x, TR_LEAKY_SLOPE)                                         \
    X(leaky_relu_grad, 2, y > 0.0f ? x : a * x, TR_LEAKY_SLOPE)

typedef enum {
#define X(op, operands, value, number) TR_ELEMENTWISE_##op,
    TR_ELEMENTWISE(X)
#undef X
} tr_elementwise;

/* What an op with the kernel `elementwise` computes; refused where it has other operands than are
 * declared above, or is not. */
static inline tr_status tr_elementwise_of(const tr_op *op, tr_elementwise *which, float *a)
{
    const void *attrs = op->attrs;
    int operands = 0;
    switch (tr_op_place(op->def)) {
#define X(op_, operands_, value, number)                                                           \
    case TR_OP_##op_:                                                                              \
        operands = operands_;                                                                      \
        *a = (float)(number);                                                                      \
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
