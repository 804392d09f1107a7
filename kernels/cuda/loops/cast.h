/* Conversion to float32. The other way: linear.h. */
#ifndef TR_CUDA_LOOPS_CAST_H
#define TR_CUDA_LOOPS_CAST_H

#include "kernels/cuda/launch.h"

/* to[i] = from[i], exactly; `from` of type `dtype`, aligned to its elements, `to` to 16 bytes. */
TR_CUDA_C tr_status tr_cuda_cast_to_f32(cudaStream_t stream, tr_dtype dtype, const void *from,
                                        float *to, size_t count);

#endif
