/* Weights of convolutions between the stored order (out, in/groups, kh, kw), float32, and cuDNN's
 * for channels-last (out, kh, kw, in/groups). `places` = kh * kw, below 2^31; `channels` = in /
 * groups. */
#ifndef TR_CUDA_LOOPS_FILTER_H
#define TR_CUDA_LOOPS_FILTER_H

#include "kernels/cuda/launch.h"

/* to (out, places, channels) = from (out, channels, places), rounded to `dtype`; of that type, or
 * with `wide` float32. */
TR_CUDA_C tr_status tr_cuda_filter_pack(cudaStream_t stream, tr_dtype dtype, bool wide,
                                        const float *from, void *to, size_t out, size_t channels,
                                        size_t places);
/* to (out, channels, places) = from (out, places, channels), of `dtype`; or += with `add`. */
TR_CUDA_C tr_status tr_cuda_filter_unpack(cudaStream_t stream, tr_dtype dtype, const void *from,
                                          float *to, size_t out, size_t channels, size_t places,
                                          bool add);

#endif
