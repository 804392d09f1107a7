/* Layer normalization of rows of D values. */
#ifndef TR_CUDA_LOOPS_LAYERNORM_H
#define TR_CUDA_LOOPS_LAYERNORM_H

#include "kernels/cuda/internal.h"

/* y = (x - mean) * rstd * weight + bias a row; stats[2 * rows] = mean, rstd, or NULL. `keep`:
 * shared bytes that tr_cuda_layernorm_ready has made available. */
TR_CUDA_C tr_status tr_cuda_layernorm_run(tr_dtype t, const void *x, const float *weight,
                                          const float *bias, double eps, void *y, float *stats,
                                          size_t rows, size_t D, size_t keep, cudaStream_t stream);

/* Lets wide rows be kept in up to `keep` bytes of shared memory. Once, before the first run;
 * touches the device. */
TR_CUDA_C tr_status tr_cuda_layernorm_ready(tr_dtype t, size_t keep);
TR_CUDA_C tr_status tr_cuda_layernorm_grad_ready(tr_dtype t, size_t keep);

typedef struct {
    const void *dy, *x;
    const float *weight, *stats;
    void *dx;               /* may be NULL */
    float *dweight, *dbias; /* may be NULL */
    bool accumulate;        /* onto dweight and dbias */
    size_t rows, D;
    float *partial; /* tr_cuda_layernorm_grad_workspace bytes */
    size_t keep;
} tr_cuda_layernorm_grad_args;

TR_CUDA_C size_t tr_cuda_layernorm_grad_workspace(tr_dtype t, size_t rows, size_t D);
TR_CUDA_C tr_status tr_cuda_layernorm_grad_run(tr_dtype t, const tr_cuda_layernorm_grad_args *a,
                                               cudaStream_t stream);

#endif
