// One thread reads the device's clock and adds what went by to the control: four laps a step and,
// where steps are not recorded, two a gather of synchronized batchnorm (ResNet-50: 212). Each is a
// launch of next to nothing, whose time nobody has measured. Events cannot say it: those of a
// recorded step are overwritten when the next one is launched, a step before the host comes to read
// them.
//
// %globaltimer counts nanoseconds, the same on all multiprocessors, and moves in steps of up to 1
// us (of 32 ns on recent devices). Source: PTX ISA, "Special Registers". There is no function for
// it, so this is the one place with inline assembly.
#include <chrono>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/lap.h"

static __device__ inline uint64_t nanoseconds()
{
#ifdef __CUDA_ARCH__
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
#else
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
#endif
}

// cost: fixed
static __global__ void lap_kernel(tr_control *c, int which)
{
    tr_control_lap(c, which, nanoseconds());
}

tr_status tr_lap_launch(cudaStream_t stream, tr_control *control, int lap)
{
    return TR_LAUNCH(lap_kernel, 1, 1, 0, stream, control, lap);
}
