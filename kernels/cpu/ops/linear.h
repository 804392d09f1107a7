/* What linear.c and linear_wide.c share. Private to this folder. */
#ifndef TR_CPU_LINEAR_H
#define TR_CPU_LINEAR_H

#include "kernels/cpu/onednn/onednn.h"

/* Whether a product of float32 that reads a matrix of `depth` rows of n as it is stored takes up to
 * twice as long as one that reads a copy in oneDNN's layout: rows so far apart share few sets of
 * the first-level cache. Where n is a power of two oneDNN sees to it itself. Smaller products are
 * over before the copy is. */
static inline bool tr_linear_wants_copy(int64_t rows, int64_t depth, int64_t n, tr_dtype type)
{
    return type == TR_F32 && n > 2048 && n % 512 == 0 && (n & (n - 1)) != 0 && rows >= 64 &&
           depth >= 256;
}

/* The matrix `b` as a product reads it: in the layout that oneDNN likes best if it is to be
 * copied. */
static inline tr_dnnl_array tr_linear_factor(bool copied, const tr_dnnl_array *b, tr_dtype type)
{
    return copied ? tr_dnnl_any(*b, type) : *b;
}

/* The call that copies `plain` to place `at` of the workspace, as the product `pd` wants it; where
 * it lies is the caller's to say. */
tr_status tr_linear_copy(tr_dnnl_kernel *k, tr_call_when when, dnnl_primitive_desc_t pd,
                         const tr_dnnl_array *plain, size_t at, tr_dnnl_call **out);

typedef enum {
    TR_LINEAR_FORWARD,     /* y = act(x W^T + b) */
    TR_LINEAR_GRAD_INPUT,  /* dx = dy W */
    TR_LINEAR_GRAD_WEIGHT, /* dW = dy^T x, of the learned part */
} tr_linear_product;

/* *Local.* The kernel of `op`, with `rows` of bfloat16 activations, by products of float32. */
tr_status tr_cpu_linear_wide(tr_cpu *cpu, const tr_op *op, tr_linear_product which, int64_t rows,
                             const tr_linear_matrix *matrix, const tr_tensor *weight,
                             tr_kernel **out);

#endif
