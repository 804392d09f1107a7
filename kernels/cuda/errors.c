/* Errors of the CUDA runtime as error records: the call, CUDA's own text and the name to search
 * for. */
#include "kernels/cuda/internal.h"

tr_status tr_cuda_check(cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return TR_OK;
    /* Told once, here: the next launch asks for the last error and must not find this one. */
    (void)cudaGetLastError();
    return TR_FAIL(e == cudaErrorMemoryAllocation ? TR_MEMORY : TR_KERNEL, "%s: %s (%s)", call,
                   cudaGetErrorString(e), cudaGetErrorName(e));
}
