/* Weights rounded to 8 bits. */
#ifndef TR_CUDA_LOOPS_QUANTIZE_H
#define TR_CUDA_LOOPS_QUANTIZE_H

#include "kernels/cuda/internal.h"

/* Each row of D float32 to multiples of the 127th part of its largest magnitude (1 where that is 0), in
 * [-127, 127]; NaN stays. At most 2^31 - 1 rows. Reads x twice, the second time from the caches. */
TR_CUDA_C tr_status tr_cuda_quantize_rows(cudaStream_t stream, const float *x, float *y,
                                          size_t rows, size_t D);

#endif
