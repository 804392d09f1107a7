/* What launching a kernel takes: C linkage, errors, and types that kernels share with the runtime.
 * What loops/ declares starts from here and not from internal.h, so that what changes in graphs or
 * configs compiles no device code anew. */
#ifndef TR_CUDA_LAUNCH_H
#define TR_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "runtime/base/base.h"
#include "runtime/device/training.h"
#include "runtime/graph/kinds.h"

#ifdef __cplusplus
#define TR_CUDA_C extern "C"
#else
#define TR_CUDA_C
#endif

/* TR_OK, or the call's own name and text: "cudaMalloc(&p, n): out of memory
 * (cudaErrorMemoryAllocation)". cudaErrorMemoryAllocation is TR_MEMORY, all else TR_KERNEL. */
TR_CUDA_C tr_status tr_cuda_check(cudaError_t e, const char *call);
#define TR_CUDA_TRY(call) TR_TRY(tr_cuda_check((call), #call))

#endif
