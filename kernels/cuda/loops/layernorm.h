/* Layer normalization of rows of D values, or RMSNorm of them (`centered` false). */
#ifndef TR_CUDA_LOOPS_LAYERNORM_H
#define TR_CUDA_LOOPS_LAYERNORM_H

#include "kernels/cuda/launch.h"

/* y = (x - mean) * rstd * weight + bias a row; stats[2 * rows] = mean, rstd, or NULL; not centered:
 * 0 in the mean's place, the mean square in the variance's. bias NULL = none. `keep`:
 * shared bytes that tr_cuda_layernorm_ready has made available. */
TR_CUDA_C tr_status tr_cuda_layernorm_run(tr_dtype t, const void *x, const float *weight,
                                          const float *bias, double eps, bool centered, void *y,
                                          float *stats, size_t rows, size_t D, size_t keep,
                                          cudaStream_t stream);

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
    bool rms;
} tr_cuda_layernorm_grad_args;

TR_CUDA_C size_t tr_cuda_layernorm_grad_workspace(tr_dtype t, size_t rows, size_t D);
TR_CUDA_C tr_status tr_cuda_layernorm_grad_run(tr_dtype t, const tr_cuda_layernorm_grad_args *a,
                                               cudaStream_t stream);

/* dweight[D] and dbias[D] (either may be NULL), added to where `accumulate`: sums over `blocks`
 * rows of 2 D, in order. */
TR_CUDA_C tr_status tr_cuda_layernorm_grad_sum(const float *partial, unsigned blocks, size_t D,
                                               float *dweight, float *dbias, bool accumulate,
                                               cudaStream_t stream);

#endif
