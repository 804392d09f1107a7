/* What conv2d_grad.c asks of a linear layer's kernel. */
#ifndef TR_CUDA_OPS_LINEAR_H
#define TR_CUDA_OPS_LINEAR_H

#include "kernels/cuda/internal.h"

/* Of a kernel of ops/linear.c: whether its product keeps the device busy
 * (tr_cuda_product_fills). */
bool tr_cuda_linear_fills(const tr_kernel *k);

#endif
