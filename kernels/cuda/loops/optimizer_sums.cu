/* The gradient's sum of squares, and the decision about an update.
 *
 * Squares are taken in float64: those of all finite float32 values fit, so that the sum is finite
 * if and only if every element is. A block's share and the order of all additions depend on the
 * count alone. Reads the gradient once (the minimum) and moves 16 KB of partial sums; 2 float64
 * operations an element, a tenth of what an H100 does at the speed of its memory. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/optimizer.h"

enum { THREADS = 256, WIDTH = 4 };

typedef tr_pack<float, WIDTH> quad;

/* ---- Sum of squares -------------------------------------------------------------------------- */

static __device__ inline double square(float v)
{
    return (double)v * (double)v;
}

// cost: read 1f min 1f flops 2 shape 25557032
static __global__ void __launch_bounds__(THREADS)
    sum_squares(const float *g, size_t count, size_t share, bool aligned, double *parts)
{
    TR_SHARED(double, part, TR_WARP);
    const size_t begin = blockIdx.x * share, end = begin + share < count ? begin + share : count;
    size_t i = begin;
    double sums[WIDTH] = {0.0, 0.0, 0.0, 0.0};
    if (aligned) {
        const size_t n = (end - begin) / WIDTH;
        const quad *quads = reinterpret_cast<const quad *>(g + begin);
        for (size_t k = threadIdx.x; k < n; k += 4 * THREADS) {
            quad v[4] = {}; /* loads under way at a time */
            TR_UNROLL
            for (int u = 0; u < 4; u++)
                if (k + u * THREADS < n) v[u] = quads[k + u * THREADS];
            TR_UNROLL
            for (int u = 0; u < 4; u++) {
                TR_UNROLL
                for (int j = 0; j < WIDTH; j++) sums[j] += square(v[u].v[j]);
            }
        }
        i += n * WIDTH;
    }
    for (i += threadIdx.x; i < end; i += THREADS) sums[0] += square(g[i]);
    const double sum = tr_block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), part);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// cost: fixed
static __global__ void __launch_bounds__(THREADS)
    sum_parts(const double *parts, unsigned n, double *out)
{
    TR_SHARED(double, part, TR_WARP);
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < n; i += THREADS) sum += parts[i];
    sum = tr_block_sum(sum, part);
    if (threadIdx.x == 0) *out = sum;
}

tr_status tr_sum_squares_launch(cudaStream_t stream, const float *g, size_t count, double *parts,
                                double *out)
{
    if (count == 0)
        return tr_cuda_check(cudaMemsetAsync(out, 0, sizeof *out, stream),
                             "cudaMemsetAsync(sum of nothing)");
    size_t share = (count + TR_SQUARES_PARTS - 1) / TR_SQUARES_PARTS;
    share = (share + TR_SQUARES_CHUNK - 1) / TR_SQUARES_CHUNK * TR_SQUARES_CHUNK;
    const unsigned blocks = (unsigned)((count + share - 1) / share);
    const tr_status st = TR_LAUNCH(sum_squares, blocks, THREADS, 0, stream, g, count, share,
                                   tr_is_aligned(g, sizeof(quad)), parts);
    if (st != TR_OK) return st;
    return TR_LAUNCH(sum_parts, 1, THREADS, 0, stream, parts, blocks, out);
}

/* Chunks are dealt to blocks in turn: the order of all additions depends on their number alone. */
// cost: read 1f min 1f flops 2 shape 25557032
static __global__ void __launch_bounds__(THREADS)
    sum_chunks(const float *g, const tr_update_chunk *chunks, size_t nchunks, double *parts)
{
    TR_SHARED(double, part, TR_WARP);
    double sums[WIDTH] = {0.0, 0.0, 0.0, 0.0};
    for (size_t b = blockIdx.x; b < nchunks; b += gridDim.x) {
        const tr_update_chunk chunk = chunks[b];
        const float *at = g + chunk.begin;
        for (unsigned i = threadIdx.x * WIDTH; i < chunk.count; i += THREADS * WIDTH) {
            const quad v = *reinterpret_cast<const quad *>(at + i);
            TR_UNROLL
            for (int j = 0; j < WIDTH; j++) sums[j] += square(v.v[j]);
        }
    }
    const double sum = tr_block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), part);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

tr_status tr_chunk_squares_launch(cudaStream_t stream, const float *g,
                                  const tr_update_chunk *chunks, size_t nchunks, double *parts,
                                  double *out)
{
    if (nchunks == 0)
        return tr_cuda_check(cudaMemsetAsync(out, 0, sizeof *out, stream),
                             "cudaMemsetAsync(sum of nothing)");
    const unsigned blocks = tr_blocks(nchunks, 1, TR_SQUARES_PARTS);
    const tr_status st =
        TR_LAUNCH(sum_chunks, blocks, THREADS, 0, stream, g, chunks, nchunks, parts);
    if (st != TR_OK) return st;
    return TR_LAUNCH(sum_parts, 1, THREADS, 0, stream, parts, blocks, out);
}

/* ---- The decision ---------------------------------------------------------------------------- */

// cost: fixed
static __global__ void decide(tr_control *c)
{
    c->first_nonfinite = UINT64_MAX;
    tr_control_decide(c);
}

static __device__ inline bool finite_sums(const tr_control *c)
{
    return isfinite(c->sum_squares) && isfinite(c->sums[TR_TALLY_LOSS]);
}

/* Of all elements that are not finite the lowest: a minimum of integers, the same in any order.
 * After the decision, which leaves the sums as they are and does not look at what is found here. A
 * step with finite sums, which is nearly every one, reads nothing. */
// cost: fixed
static __global__ void __launch_bounds__(THREADS)
    find_nonfinite(const float *g, const tr_update_chunk *chunks, size_t nchunks, tr_control *c)
{
    if (finite_sums(c)) return;
    for (size_t b = blockIdx.x; b < nchunks; b += gridDim.x) {
        const tr_update_chunk chunk = chunks[b];
        for (unsigned i = threadIdx.x; i < chunk.count; i += THREADS)
            if (!isfinite(g[chunk.begin + i])) {
                atomicMin(reinterpret_cast<unsigned long long *>(&c->first_nonfinite),
                          (unsigned long long)(chunk.begin + i));
                return; /* all that this thread would find later lies higher */
            }
    }
}

tr_status tr_decide_launch(cudaStream_t stream, const tr_update_plan *p, tr_control *control)
{
    const tr_status st = TR_LAUNCH(decide, 1, 1, 0, stream, control);
    if (st != TR_OK || p->nchunks == 0) return st;
    return TR_LAUNCH(find_nonfinite, tr_rounds(p->nchunks, 1), THREADS, 0, stream, p->u.g,
                     p->chunks, p->nchunks, control);
}
