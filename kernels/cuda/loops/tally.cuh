/* The end of a loss kernel: what the block's threads have summed, to its place among the partial
 * sums. */
#ifndef TR_CUDA_TALLY_CUH
#define TR_CUDA_TALLY_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/loss.h"

struct tr_loss_sums {
    double loss, weight, correct, top5, targets;
};

/* Every thread of the block must take part; `part`: 32 of shared memory. */
__device__ inline void tr_loss_leave(const tr_loss_sums &mine, double *partial, double *part)
{
    const tr_loss_sums all = {tr_block_sum(mine.loss, part), tr_block_sum(mine.weight, part),
                              tr_block_sum(mine.correct, part), tr_block_sum(mine.top5, part),
                              tr_block_sum(mine.targets, part)};
    if (threadIdx.x > 0) return;
    double *to = partial + (size_t)blockIdx.x * TR_LOSS_PARTS;
    to[0] = all.loss;
    to[1] = all.weight;
    to[2] = all.correct;
    to[3] = all.top5;
    to[4] = all.targets;
}

__device__ inline float tr_loss_scale(const tr_control *control, float scale)
{
    return control ? (float)control->loss_scale : scale;
}

#endif
