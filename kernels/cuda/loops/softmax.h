/* Softmax over rows of D values and its gradient. */
#ifndef TR_CUDA_LOOPS_SOFTMAX_H
#define TR_CUDA_LOOPS_SOFTMAX_H

#include "kernels/cuda/launch.h"

/* y = exp(x - max) / sum. `keep`: shared bytes that tr_cuda_softmax_ready has made available. */
TR_CUDA_C tr_status tr_cuda_softmax_run(tr_dtype t, const void *x, void *y, size_t rows, size_t D,
                                        size_t keep, cudaStream_t stream);
/* dx = y * (dy - sum(dy * y)); dx may be dy. */
TR_CUDA_C tr_status tr_cuda_softmax_grad_run(tr_dtype t, const void *dy, const void *y, void *dx,
                                             size_t rows, size_t D, size_t keep,
                                             cudaStream_t stream);
/* Lets wide rows be kept in up to `keep` bytes of shared memory. Once, before the first run;
 * touches the device. */
TR_CUDA_C tr_status tr_cuda_softmax_ready(tr_dtype t, size_t keep);

#endif
