/* Other orders of a sample's elements. Any: gathered by a table, a thread writes 16 bytes; a table
 * of 4 bytes an element of a sample is read for each sample, from cache. Transposition of each
 * sample's rows x cols matrix: flatten of a channels-last image, and back.
 *
 * Bytes: every element read once, written once: the minimum. Square tiles go through shared memory,
 * so that both sides are read and written in whole 128-byte lines (128 elements of a byte, 64 of
 * 2, 32 of 4); the tile's rows are one bank longer, so that its columns lie in different banks.
 * Matrices narrower than 16 either way, which would leave most of a tile empty, are gathered:
 * writes in order, reads from few lines that stay in the first-level cache. */
#include "kernels/cuda/loops/arrange.h"
#include "kernels/cuda/loops/divide.cuh"

namespace
{

enum { THREADS = 256, NARROW = 16 };

template <typename E> struct tile {
    enum { SIDE = 128 / sizeof(E), PAD = 4 / sizeof(E), DEPTH = THREADS / SIDE };
};

// cost: read 1x write 1x min 2x flops 0 shape 256x49x512
template <typename E>
__global__ void __launch_bounds__(THREADS)
    transpose_tiles(const E *x, E *y, size_t rows, size_t cols, unsigned across, unsigned tiles)
{
    enum { SIDE = tile<E>::SIDE, WIDTH = (int)tile<E>::SIDE + (int)tile<E>::PAD };
    TR_SHARED(E, held, (size_t)SIDE * WIDTH);
    const size_t sample = blockIdx.x / tiles, at = blockIdx.x % tiles;
    const size_t r0 = at / across * SIDE, c0 = at % across * SIDE;
    const size_t lane = threadIdx.x % SIDE;
    x += sample * rows * cols;
    y += sample * rows * cols;
    TR_UNROLL
    for (unsigned i = threadIdx.x / SIDE; i < SIDE; i += tile<E>::DEPTH)
        if (r0 + i < rows && c0 + lane < cols)
            held[i * WIDTH + lane] = x[(r0 + i) * cols + c0 + lane];
    __syncthreads();
    TR_UNROLL
    for (unsigned i = threadIdx.x / SIDE; i < SIDE; i += tile<E>::DEPTH)
        if (c0 + i < cols && r0 + lane < rows)
            y[(c0 + i) * rows + r0 + lane] = held[lane * WIDTH + i];
}

// cost: read 1x write 1x min 2x flops 8 shape 256x4x512
template <typename E>
__global__ void __launch_bounds__(THREADS)
    transpose_gather(const E *x, E *y, tr_divider sample, tr_divider rows, size_t cols, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const size_t s = tr_quotient(sample, i), at = i - s * sample.by;
    const size_t c = tr_quotient(rows, at), r = at - c * rows.by;
    y[i] = x[s * sample.by + r * cols + c];
}

// cost: read 1x+1b write 1x min 2x flops 4 shape 256x49x512
template <typename E, int V>
__global__ void __launch_bounds__(THREADS)
    gather(const E *x, tr_pack<E, V> *y, const tr_pack<int32_t, V> *table, tr_divider sample,
           size_t packs)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= packs) return;
    const size_t s = tr_quotient(sample, i);
    const tr_pack<int32_t, V> at = table[i - s * sample.by];
    const E *from = x + s * sample.by * V;
    tr_pack<E, V> out;
    TR_UNROLL
    for (int k = 0; k < V; k++) out.v[k] = from[at.v[k]];
    tr_put(reinterpret_cast<E *>(y + i), out);
}

template <typename E, int V>
tr_status launch_gather(const void *x, void *y, const int32_t *table, size_t samples, size_t count,
                        cudaStream_t stream)
{
    const size_t packs = samples * (count / V);
    return TR_LAUNCH(TR_KERNEL(gather<E, V>), tr_blocks(packs, THREADS, INT32_MAX), THREADS, 0,
                     stream, static_cast<const E *>(x), static_cast<tr_pack<E, V> *>(y),
                     reinterpret_cast<const tr_pack<int32_t, V> *>(table), tr_divide_by(count / V),
                     packs);
}

template <typename E>
tr_status launch(const E *x, E *y, size_t samples, size_t rows, size_t cols, cudaStream_t stream)
{
    const size_t side = tile<E>::SIDE, across = (cols + side - 1) / side;
    const size_t tiles = across * ((rows + side - 1) / side);
    const size_t n = samples * rows * cols;
    if (rows < NARROW || cols < NARROW || tiles * samples > INT32_MAX)
        return TR_LAUNCH(TR_KERNEL(transpose_gather<E>), tr_blocks(n, THREADS, INT32_MAX), THREADS,
                         0, stream, x, y, tr_divide_by(rows * cols), tr_divide_by(rows), cols, n);
    return TR_LAUNCH(TR_KERNEL(transpose_tiles<E>), (unsigned)(tiles * samples), THREADS, 0, stream,
                     x, y, rows, cols, (unsigned)across, (unsigned)tiles);
}

} // namespace

tr_status tr_cuda_transpose_run(size_t size, const void *x, void *y, size_t samples, size_t rows,
                                size_t cols, cudaStream_t stream)
{
    if (samples == 0 || rows == 0 || cols == 0) return TR_OK;
    if (rows == 1 || cols == 1)
        return tr_cuda_check(
            cudaMemcpyAsync(y, x, samples * rows * cols * size, cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpyAsync(y, x, nbytes)");
    if (size == 1)
        return launch(static_cast<const uint8_t *>(x), static_cast<uint8_t *>(y), samples, rows,
                      cols, stream);
    if (size == 2)
        return launch(static_cast<const uint16_t *>(x), static_cast<uint16_t *>(y), samples, rows,
                      cols, stream);
    return launch(static_cast<const uint32_t *>(x), static_cast<uint32_t *>(y), samples, rows, cols,
                  stream);
}

tr_status tr_cuda_gather_run(size_t size, const void *x, void *y, const int32_t *table,
                             size_t samples, size_t count, cudaStream_t stream)
{
    if (samples == 0 || count == 0) return TR_OK;
    const bool whole = count * size % 16 == 0 && tr_is_aligned(y, 16);
    if (size == 1)
        return whole ? launch_gather<uint8_t, 16>(x, y, table, samples, count, stream)
                     : launch_gather<uint8_t, 1>(x, y, table, samples, count, stream);
    if (size == 2)
        return whole ? launch_gather<uint16_t, 8>(x, y, table, samples, count, stream)
                     : launch_gather<uint16_t, 1>(x, y, table, samples, count, stream);
    return whole ? launch_gather<uint32_t, 4>(x, y, table, samples, count, stream)
                 : launch_gather<uint32_t, 1>(x, y, table, samples, count, stream);
}
