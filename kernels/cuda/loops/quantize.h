/* Weights rounded to 8 bits; activations to 8 bits and back. */
#ifndef TR_CUDA_LOOPS_QUANTIZE_H
#define TR_CUDA_LOOPS_QUANTIZE_H

#include "kernels/cuda/launch.h"

/* Each row of D float32 to multiples of the 127th part of its largest magnitude (1 where that is
 * 0), in [-127, 127]; NaN stays. At most 2^31 - 1 rows. Reads x twice, the second time from the
 * caches. */
TR_CUDA_C tr_status tr_cuda_quantize_rows(cudaStream_t stream, const float *x, float *y,
                                          size_t rows, size_t D);

/* n values of `dtype` to 8 bits, signed or not: x * inverse, clamped, then to the nearest, halves
 * even; NaN becomes the least. */
TR_CUDA_C tr_status tr_cuda_to_steps(cudaStream_t stream, tr_dtype dtype, bool is_signed,
                                     float inverse, const void *x, void *y, size_t n);
/* y = x * scale, in `dtype`. */
TR_CUDA_C tr_status tr_cuda_from_steps(cudaStream_t stream, tr_dtype dtype, bool is_signed,
                                       float scale, const void *x, void *y, size_t n);

#endif
