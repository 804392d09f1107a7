/* What the batchnorm kernels share: where a thread stands, and the sums of a block and of all
 * chunks. */
#ifndef TR_CUDA_LOOPS_BATCHNORM_CUH
#define TR_CUDA_LOOPS_BATCHNORM_CUH

#include <string.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/batchnorm.h"

/* A thread's share: rows begin + ty, begin + ty + by, ... before `end`, `width` channels from
 * `channel`. */
struct bn_place {
    size_t chunk, begin, end;
    size_t first; /* channel of the block */
    int channels; /* of the block, at most TR_BN_CHANNELS */
    int tx, ty;
    bool on; /* the thread has a column */
    size_t channel;
};

template <int P> __device__ inline bn_place bn_place_of(const tr_bn_map &m)
{
    bn_place p;
    const size_t columns = m.C / P, tile = blockIdx.x % m.tiles, from = tile * (size_t)m.bx;
    const size_t left = columns > from ? columns - from : 0;
    const int mine = left < (size_t)m.bx ? (int)left : m.bx;
    p.chunk = blockIdx.x / m.tiles;
    p.begin = p.chunk * m.chunk_rows;
    p.end = p.begin + m.chunk_rows < m.rows ? p.begin + m.chunk_rows : m.rows;
    p.first = from * P;
    p.channels = mine * P;
    p.tx = (int)threadIdx.x % m.bx;
    p.ty = (int)threadIdx.x / m.bx;
    p.on = p.tx < mine;
    p.channel = p.first + (size_t)p.tx * P;
    return p;
}

/* Rows of lane ty of a block whose chunk has `rows`. */
__device__ inline size_t bn_lane_rows(size_t rows, int ty, int by)
{
    return rows > (size_t)ty ? (rows - (size_t)ty + (size_t)by - 1) / (size_t)by : 0;
}

/* Rounds and writes. */
template <typename T, int P> __device__ inline void bn_write(T *p, const float *v)
{
    tr_pack<T, P> pack;
    TR_UNROLL
    for (int j = 0; j < P; j++) pack.v[j] = tr_store<T>(v[j]);
    tr_put(p, pack);
}

/* Blocks of the kernels that go over all chunks: 4 channels (32 bytes, what memory moves at least)
 * by 128 lanes, each lane every 128th chunk, all of them read at once. */
enum {
    BN_MERGE_CHANNELS = 4,
    BN_MERGE_LANES = 128,
    BN_MERGE_THREADS = BN_MERGE_CHANNELS * BN_MERGE_LANES,
    BN_MERGE_WARPS = BN_MERGE_THREADS / TR_WARP,
    BN_MERGE_HELD = (TR_BN_SUM_BLOCKS + BN_MERGE_LANES - 1) / BN_MERGE_LANES
};

/* Sum over the lanes of the thread's channel, to all of them: a tree over the lanes of a warp, then
 * the warps in order. `part` holds BN_MERGE_CHANNELS * BN_MERGE_WARPS. */
__device__ inline double bn_lanes_sum(double v, double *part)
{
    const int channel = (int)threadIdx.x % BN_MERGE_CHANNELS;
    for (int offset = BN_MERGE_CHANNELS; offset < TR_WARP; offset *= 2)
        v += __shfl_xor_sync(TR_ALL_LANES, v, offset);
    __syncthreads();
    if (threadIdx.x % TR_WARP < BN_MERGE_CHANNELS)
        part[threadIdx.x / TR_WARP * BN_MERGE_CHANNELS + channel] = v;
    __syncthreads();
    double sum = part[channel];
    TR_UNROLL
    for (int w = 1; w < BN_MERGE_WARPS; w++) sum += part[w * BN_MERGE_CHANNELS + channel];
    return sum;
}

/* The parts of the thread's chunks, first[] of its channel and second[]; 0 past the last chunk. */
__device__ inline void bn_merge_read(const tr_bn_map &m, const double *parts, size_t c,
                                     double *first, double *second)
{
    TR_UNROLL
    for (int k = 0; k < BN_MERGE_HELD; k++) {
        const size_t i = threadIdx.x / BN_MERGE_CHANNELS + (size_t)k * BN_MERGE_LANES;
        const bool on = c < m.C && i < m.chunks;
        first[k] = on ? parts[i * 2 * m.C + c] : 0.0;
        second[k] = on ? parts[(i * 2 + 1) * m.C + c] : 0.0;
    }
}

#endif
