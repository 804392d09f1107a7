/* Pooling over channels-last images (batch, height, width, channels). At most 2^31 elements. */
#ifndef TR_CUDA_LOOPS_POOL_H
#define TR_CUDA_LOOPS_POOL_H

#include "kernels/cuda/launch.h"

typedef struct {
    tr_dtype type; /* of x, y and their gradients; of a maximum int8 and uint8, too */
    unsigned batch, channels;
    int size[2], result[2];                       /* height, width of x and of y */
    int kernel[2], stride[2], padding[2], end[2]; /* end: padding behind an image */
    bool include_pad;                             /* averages: padding counts as zeros */
    bool wide;                                    /* indices are int32, else uint8 */
} tr_cuda_pool;

/* Indices: stored as y, the position kh * width + kw in the window; NULL: not wanted. Ties: the
 * first; NaN wins (the last of several). */
TR_CUDA_C tr_status tr_cuda_max_pool(cudaStream_t stream, const tr_cuda_pool *p, const void *x,
                                     void *y, void *indices);
TR_CUDA_C tr_status tr_cuda_max_pool_grad(cudaStream_t stream, const tr_cuda_pool *p,
                                          const void *dy, const void *indices, void *dx);
TR_CUDA_C tr_status tr_cuda_avg_pool(cudaStream_t stream, const tr_cuda_pool *p, const void *x,
                                     void *y);
/* Of 8 bits (p->type; y likewise, signed or not): sums times factor / places that count, clamped,
 * then to the nearest, halves even. */
TR_CUDA_C tr_status tr_cuda_avg_pool_steps(cudaStream_t stream, const tr_cuda_pool *p,
                                           bool to_signed, float factor, const void *x, void *y);
TR_CUDA_C tr_status tr_cuda_avg_pool_grad(cudaStream_t stream, const tr_cuda_pool *p,
                                          const void *dy, void *dx);

/* y (batch, channels) = mean of x (batch, places, channels); dx = dy / places, to every place. */
TR_CUDA_C tr_status tr_cuda_global_pool(cudaStream_t stream, tr_dtype dtype, const void *x, void *y,
                                        size_t batch, size_t places, size_t channels);
TR_CUDA_C tr_status tr_cuda_global_pool_grad(cudaStream_t stream, tr_dtype dtype, const void *dy,
                                             void *dx, size_t batch, size_t places,
                                             size_t channels);

#endif
