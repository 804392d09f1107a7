/* What the program gets of the module. */
#include "trainer/device/gpu.h"

#include <build_id.h>
#include <string.h>

#include "collectives/nccl/nccl.h"
#include "kernels/cuda/cuda.h"

__attribute__((visibility("default"))) const tr_gpu *tr_gpu_module(const char *build_id)
{
    static const tr_gpu gpu = {&tr_cuda_backend, &tr_nccl_reducers};
    return strcmp(build_id, TR_BUILD_ID) == 0 ? &gpu : NULL;
}
