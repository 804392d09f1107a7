/* Relu with learned slopes, of rows of channels. */
#ifndef TR_CUDA_LOOPS_PRELU_H
#define TR_CUDA_LOOPS_PRELU_H

#include "kernels/cuda/launch.h"

/* weight: one for each of `channels`, or (`weights` 1) one for all. y may be x. */
TR_CUDA_C tr_status tr_cuda_prelu_run(tr_dtype t, const void *x, const float *weight,
                                      size_t weights, void *y, size_t rows, size_t channels,
                                      cudaStream_t stream);

typedef struct {
    const void *dy, *x;
    const float *weight;
    void *dx; /* may be NULL, or dy */
    float *dweight;
    bool accumulate; /* onto dweight */
    size_t rows, channels, weights;
    double *partial; /* tr_cuda_prelu_grad_workspace bytes */
} tr_cuda_prelu_grad_args;

TR_CUDA_C size_t tr_cuda_prelu_grad_workspace(size_t rows, size_t channels, size_t weights);
TR_CUDA_C tr_status tr_cuda_prelu_grad_run(tr_dtype t, const tr_cuda_prelu_grad_args *a,
                                           cudaStream_t stream);

#endif
