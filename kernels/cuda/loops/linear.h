/* What a linear layer needs besides the product. All Local; into `stream`; nothing for zero
 * elements. Types: float32, bfloat16, float16.
 * Bias and activation behind a product: epilogue.h. */
#ifndef TR_CUDA_LOOPS_LINEAR_H
#define TR_CUDA_LOOPS_LINEAR_H

#include "kernels/cuda/launch.h"

/* to[i] = from[i], rounded to `type`. Reads 4n, writes 2n (or 4n) bytes: the minimum. */
TR_CUDA_C tr_status tr_cuda_cast(cudaStream_t stream, tr_dtype type, const float *from, void *to,
                                 size_t n);

/* Bytes of `part` for tr_cuda_column_sum. */
TR_CUDA_C size_t tr_cuda_column_sum_workspace(size_t rows, size_t width);
/* sum[j] = sum over r of x[r][j], added to sum[j] where `accumulate`; float32. The order depends on
 * rows, width and whether 16 bytes of x are aligned: chunks of rows, each summed by a block, then
 * the chunks. Reads x once; besides, two passes over the chunks' sums. */
TR_CUDA_C tr_status tr_cuda_column_sum(cudaStream_t stream, tr_dtype type, const void *x,
                                       size_t rows, size_t width, float *part, float *sum,
                                       bool accumulate);

/* to[i] += from[i]. */
TR_CUDA_C tr_status tr_cuda_add_to(cudaStream_t stream, float *to, const float *from, size_t n);

#endif
