/* Values to 8 bits by the ranges of the data at hand, and products of these to values. */
#ifndef TR_CUDA_LOOPS_DYNAMIC_H
#define TR_CUDA_LOOPS_DYNAMIC_H

#include "kernels/cuda/launch.h"

/* Rows of D values, each rounded by its own range as dynamic_quantize states it
 * (runtime/graph/ops.h). */
typedef struct {
    const void *x; /* (rows, D) of the type of activations */
    void *y;       /* the same of that type; with scales: of 8 bits */
    float *scales; /* (rows); NULL: y is rounded and of x's type */
    bool is_signed;
    size_t rows, D;
    float *parts; /* tr_cuda_dynamic_parts(rows, D) */
} tr_cuda_dynamic_args;
TR_CUDA_C size_t tr_cuda_dynamic_parts(size_t rows, size_t D); /* float32 of workspace */
/* Fewer than 2^31 rows and pieces. Reads x twice. */
TR_CUDA_C tr_status tr_cuda_dynamic_run(cudaStream_t stream, tr_dtype dtype,
                                        const tr_cuda_dynamic_args *a);

/* y = act(fma(x, scales[row / places], bias) + residual), of rows of `channels`; fewer than 2^31
 * elements. */
typedef struct {
    const float *x, *scales, *bias; /* bias (channels), NULL: none */
    const void *residual;           /* as y; NULL: none */
    void *y;                        /* may be x, of float32 */
    tr_act act;
    size_t rows, channels, places;
} tr_cuda_rescale_args;
TR_CUDA_C tr_status tr_cuda_rescale_run(cudaStream_t stream, tr_dtype dtype,
                                        const tr_cuda_rescale_args *a);

#endif
