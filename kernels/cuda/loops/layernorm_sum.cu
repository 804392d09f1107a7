/* The gradients of a normalization's weight and bias, of the partial sums that its blocks left: in
 * float64, in the order of the blocks, so that the bits are the same in every run. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/layernorm.h"

namespace
{

/* Of a block's threads. */
enum { COLUMNS = 32, DEPTH = 32 };

/* Columns of the partial sums, in the order of the blocks: each of DEPTH threads takes every
 * DEPTH-th. */
// cost: fixed
__global__ void __launch_bounds__(COLUMNS *DEPTH)
    layernorm_grad_sum(const float *partial, unsigned blocks, int D, float *dweight, float *dbias,
                       bool accumulate)
{
    TR_SHARED(double, part, COLUMNS *DEPTH);
    const int column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    const int depth = threadIdx.x / COLUMNS;
    double sum = 0.0;
    if (column < 2 * D)
        for (unsigned b = depth; b < blocks; b += DEPTH) sum += partial[(size_t)b * 2 * D + column];
    part[threadIdx.x] = sum;
    __syncthreads();
    float *to = column < D ? dweight : dbias;
    if (depth > 0 || column >= 2 * D || !to) return;
    to += column < D ? column : column - D;
    for (int i = 1; i < DEPTH; i++) sum += part[i * COLUMNS + threadIdx.x];
    *to = (accumulate ? *to : 0.0f) + (float)sum;
}

} // namespace

tr_status tr_cuda_layernorm_grad_sum(const float *partial, unsigned blocks, size_t D,
                                     float *dweight, float *dbias, bool accumulate,
                                     cudaStream_t stream)
{
    return TR_LAUNCH(layernorm_grad_sum, (unsigned)((2 * D + COLUMNS - 1) / COLUMNS),
                     COLUMNS * DEPTH, 0, stream, partial, blocks, (int)D, dweight, dbias,
                     accumulate);
}
