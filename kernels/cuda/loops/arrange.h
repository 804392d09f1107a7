/* Kernels that only move: transposition of samples and other orders, rows put side by side or taken
 * apart. */
#ifndef TR_CUDA_LOOPS_ARRANGE_H
#define TR_CUDA_LOOPS_ARRANGE_H

#include "kernels/cuda/launch.h"

/* y[s] = transpose of x[s], rows x cols elements of `size` (1, 2 or 4) bytes. */
TR_CUDA_C tr_status tr_cuda_transpose_run(size_t size, const void *x, void *y, size_t samples,
                                          size_t rows, size_t cols, cudaStream_t stream);

/* y[s][i] = x[s][table[i]] of samples of `count` elements; table: on the device. */
TR_CUDA_C tr_status tr_cuda_gather_run(size_t size, const void *x, void *y, const int32_t *table,
                                       size_t samples, size_t count, cudaStream_t stream);

/* `rows` rows; each row of `whole` is the rows of `count` parts of part[i] bytes (even numbers),
 * one after the other. split: from whole to the parts, of which absent (NULL) ones are left out;
 * else to whole. */
TR_CUDA_C tr_status tr_cuda_concat_run(bool split, void *whole, void *const *parts,
                                       const size_t *part, int count, size_t rows,
                                       cudaStream_t stream);

#endif
