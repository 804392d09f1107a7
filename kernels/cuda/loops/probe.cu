// A kernel that does nothing: launching it makes the driver look for code that fits the device.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/probe.h"

namespace
{

// cost: fixed
__global__ void nothing()
{
}

} // namespace

tr_status tr_cuda_probe(cudaStream_t stream)
{
    return TR_LAUNCH(nothing, 1, 1, 0, stream);
}

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...)    TEXT_OF(__VA_ARGS__)

const char *tr_cuda_architectures(void)
{
#ifdef __CUDA_ARCH_LIST__
    return TEXT(__CUDA_ARCH_LIST__);
#else
    return "";
#endif
}
