/* What the batchnorm kernels, forward and backward, share. */
#ifndef TR_CUDA_BATCHNORM_H
#define TR_CUDA_BATCHNORM_H

#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/batchnorm.h"

typedef struct {
    tr_cuda_kernel k;
    tr_bn_map map;
    double eps, momentum;
    tr_act act;
    bool update_states;
} tr_cuda_batchnorm_kernel;

/* Shapes from operand `x`, which is (N, C) or (N, C, H, W) stored channels-last; N may be 0. `run`:
 * rows that a thread should take at least. */
tr_status tr_cuda_batchnorm_open(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x,
                                 size_t run, tr_status (*fn)(tr_kernel *, const tr_run *),
                                 tr_cuda_batchnorm_kernel **out);

#endif
