/* The class token. */
#ifndef TR_CUDA_LOOPS_TOKENS_H
#define TR_CUDA_LOOPS_TOKENS_H

#include "kernels/cuda/launch.h"

/* y (samples, rows + 1, features) = the weights, float32 (features), then the rows of x, of each
 * sample. */
TR_CUDA_C tr_status tr_cuda_class_token_run(cudaStream_t stream, tr_dtype type, const void *x,
                                            const float *weight, void *y, size_t samples,
                                            size_t rows, size_t features);

/* y = x + row past + r of a table of `most` rows, of row r of each sample. */
TR_CUDA_C tr_status tr_cuda_place_rows_run(cudaStream_t stream, tr_dtype type, const void *x,
                                           const float *table, size_t most, const int32_t *past,
                                           void *y, size_t samples, size_t rows, size_t features);

#endif
