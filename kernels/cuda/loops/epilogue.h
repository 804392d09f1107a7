/* What follows a convolution, where cuDNN does not do it. */
#ifndef TR_CUDA_LOOPS_EPILOGUE_H
#define TR_CUDA_LOOPS_EPILOGUE_H

#include "kernels/cuda/launch.h"

/* y (rows, channels) = act(z + bias + residual), in float32, rounded once. y and residual of type
 * `to`, z of type `from`, which is `to` (then z may be y) or float32; bias (channels) float32 and
 * residual may be NULL. All 32-byte aligned; at most 2^31 elements. NaN stays NaN. */
TR_CUDA_C tr_status tr_cuda_epilogue(cudaStream_t stream, tr_act act, tr_dtype from, tr_dtype to,
                                     const void *z, const float *bias, const void *residual,
                                     void *y, size_t rows, size_t channels);

#endif
