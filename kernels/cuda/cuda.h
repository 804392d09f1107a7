/* The CUDA backend: cuBLASLt for matrix products, cuDNN for convolutions, our own kernels
 * for the rest. */
#ifndef TR_CUDA_H
#define TR_CUDA_H

#include "runtime/device/backend.h"

extern const tr_backend tr_cuda_backend;

#endif
