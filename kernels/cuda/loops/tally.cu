/* Adds the partial sums that a loss kernel's blocks left to the tally, in order: one block, some 3
 * us. */
#include "kernels/cuda/loops/tally.cuh"

enum { THREADS = 256 };

// cost: fixed
static __global__ void __launch_bounds__(THREADS)
    tally_add(const double *partial, unsigned blocks, tr_cuda_counted counted, double *tally)
{
    TR_SHARED(double, part, TR_WARP);
    double sums[TR_LOSS_PARTS] = {};
    for (unsigned b = threadIdx.x; b < blocks; b += THREADS)
        for (int i = 0; i < TR_LOSS_PARTS; i++) sums[i] += partial[(size_t)b * TR_LOSS_PARTS + i];
    for (int i = 0; i < TR_LOSS_PARTS; i++) sums[i] = tr_block_sum(sums[i], part);
    if (threadIdx.x > 0) return;
    tally[TR_TALLY_LOSS] += sums[0];
    tally[TR_TALLY_WEIGHT] += sums[1];
    tally[TR_TALLY_CORRECT] += sums[2] * counted.times / counted.by;
    tally[TR_TALLY_TOP5] += sums[3];
    tally[TR_TALLY_SAMPLES] += counted.samples + sums[4] * counted.each;
    tally[TR_TALLY_TARGETS] += counted.targets + sums[4];
}

tr_status tr_cuda_tally_add(const double *partial, unsigned blocks, const tr_cuda_counted *counted,
                            double *tally, cudaStream_t stream)
{
    return TR_LAUNCH(tally_add, 1, THREADS, 0, stream, partial, blocks, *counted, tally);
}
