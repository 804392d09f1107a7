/* Group normalization of channels-last samples: `places` rows of C channels each. */
#ifndef TR_CUDA_LOOPS_GROUPNORM_H
#define TR_CUDA_LOOPS_GROUPNORM_H

#include "kernels/cuda/launch.h"

typedef struct {
    size_t samples, places, C, groups;
} tr_cuda_groupnorm_shape;

/* y = (x - mean) * rstd * weight + bias, by a sample's group; stats[2 * samples * groups] = mean,
 * rstd, or NULL; weight, bias NULL: 1, 0. */
TR_CUDA_C tr_status tr_cuda_groupnorm_run(tr_dtype t, const tr_cuda_groupnorm_shape *s,
                                          const void *x, const float *weight, const float *bias,
                                          double eps, void *y, float *stats, cudaStream_t stream);

typedef struct {
    const void *dy, *x;
    const float *weight, *stats; /* weight may be NULL */
    void *dx;                    /* may be NULL, or dy */
    float *dweight, *dbias;      /* may be NULL */
    bool accumulate;             /* onto dweight and dbias */
    float *partial;              /* samples * 2 C */
} tr_cuda_groupnorm_grad_args;

TR_CUDA_C tr_status tr_cuda_groupnorm_grad_run(tr_dtype t, const tr_cuda_groupnorm_shape *s,
                                               const tr_cuda_groupnorm_grad_args *a,
                                               cudaStream_t stream);

#endif
