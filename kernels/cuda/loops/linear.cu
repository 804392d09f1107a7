/* What a linear layer needs besides the product: a parameter's 16-bit copy, bias and activation
 * where no epilogue of the library does them, and the bias gradient as column sums. All bound by
 * memory; each element is read and written once, 16 bytes at a time where the width and the
 * addresses allow it. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/linear.h"

enum { BLOCK = 256, MOST_BLOCKS = 4096 };

static bool aligned(const void *p, size_t to)
{
    return (uintptr_t)p % to == 0;
}

/* ---- A copy in another type ---- */

/* Thread t converts elements [V t, V t + V). */
// cost: read 1f write 1x min 1f+1x flops 1 shape 25557032
template <typename T, int V>
__global__ void cast_kernel(const float *from, T *to, size_t packs, size_t n)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t p = first; p < packs; p += stride) {
        const tr_pack<float, V> in = reinterpret_cast<const tr_pack<float, V> *>(from)[p];
        tr_pack<T, V> out;
        for (int v = 0; v < V; v++) out.v[v] = tr_store<T>(in.v[v]);
        reinterpret_cast<tr_pack<T, V> *>(to)[p] = out;
    }
    for (size_t i = packs * V + first; i < n; i += stride) to[i] = tr_store<T>(from[i]);
}

template <typename T> static tr_status cast(cudaStream_t stream, const float *from, T *to, size_t n)
{
    const int V = 4; /* 16 bytes of float32 */
    const size_t packs = aligned(from, 16) && aligned(to, sizeof(T) * V) ? n / V : 0;
    const unsigned grid = tr_blocks(packs ? packs : n, BLOCK, MOST_BLOCKS);
    return TR_LAUNCH(TR_KERNEL(cast_kernel<T, V>), grid, BLOCK, 0, stream, from, to, packs, n);
}

tr_status tr_cuda_cast(cudaStream_t stream, tr_dtype type, const float *from, void *to, size_t n)
{
    if (n == 0) return TR_OK;
    TR_BY_TYPE(type, T, return cast<T>(stream, from, static_cast<T *>(to), n));
    return TR_OK;
}

/* ---- Column sums ---- */

enum { LANES = 32, ROWS = 8, CHUNK = 64, MOST_CHUNKS = 128, RUN = 16 };

static size_t chunks_of(size_t rows)
{
    const size_t chunks = (rows + CHUNK - 1) / CHUNK;
    return chunks < MOST_CHUNKS ? chunks : (size_t)MOST_CHUNKS;
}

/* Block (x, y) sums rows [y chunk, (y + 1) chunk) of columns [x LANES V, (x + 1) LANES V): thread
 * (lane, row) takes every ROWS-th row from its own, then the ROWS sums are added in order. Runs of
 * RUN rows are summed in float32 and added up in float64, so that the error does not grow with the
 * rows: RUN 2^-24 of the sum of magnitudes at the worst, and 2^-24 for what is kept of a chunk.
 * Writes part [chunks][width], or with one chunk the sum itself. */
// cost: read 1x write 0.016f min 1x flops 1 shape 8192x4096 per value of x
template <typename T, int V>
__global__ void column_chunk_kernel(const T *x, size_t rows, size_t width, size_t chunk,
                                    float *part, int accumulate)
{
    TR_SHARED(double, sums, ROWS *LANES *V);
    const size_t column = ((size_t)blockIdx.x * LANES + threadIdx.x) * V;
    const size_t begin = blockIdx.y * chunk;
    const size_t end = begin + chunk < rows ? begin + chunk : rows;
    double sum[V];
    TR_UNROLL
    for (int v = 0; v < V; v++) sum[v] = 0.0;
    for (size_t first = begin + threadIdx.y; column < width && first < end; first += RUN * ROWS) {
        float run[V];
        TR_UNROLL
        for (int v = 0; v < V; v++) run[v] = 0.0f;
        TR_UNROLL
        for (int i = 0; i < RUN; i++) {
            const size_t r = first + (size_t)i * ROWS;
            if (r >= end) continue;
            const tr_pack<T, V> in =
                *reinterpret_cast<const tr_pack<T, V> *>(x + r * width + column);
            TR_UNROLL
            for (int v = 0; v < V; v++) run[v] += tr_load<T>(in.v[v]);
        }
        TR_UNROLL
        for (int v = 0; v < V; v++) sum[v] += (double)run[v];
    }
    TR_UNROLL
    for (int v = 0; v < V; v++) sums[(threadIdx.y * V + v) * LANES + threadIdx.x] = sum[v];
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    TR_UNROLL
    for (int v = 0; v < V; v++) {
        double total = sum[v];
        for (int r = 1; r < ROWS; r++) total += sums[(r * V + v) * LANES + threadIdx.x];
        float *to = part + blockIdx.y * width + column + v;
        *to = (float)(accumulate ? (double)*to + total : total);
    }
}

// cost: read 1f write 0.008f min 1.008f flops 1 shape 128x4096 per partial sum
__global__ void column_total_kernel(const float *part, size_t chunks, size_t width, float *sum,
                                    int accumulate)
{
    const size_t j = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= width) return;
    double total = 0;
    for (size_t c = 0; c < chunks; c++) total += (double)part[c * width + j];
    sum[j] = (float)(accumulate ? (double)sum[j] + total : total);
}

template <typename T, int V>
static tr_status column_chunks(cudaStream_t stream, const T *x, size_t rows, size_t width,
                               size_t chunks, float *to, int accumulate)
{
    const dim3 grid((unsigned)((width + LANES * V - 1) / (LANES * V)), (unsigned)chunks);
    const size_t chunk = (rows + chunks - 1) / chunks;
    return TR_LAUNCH(TR_KERNEL(column_chunk_kernel<T, V>), grid, dim3(LANES, ROWS), 0, stream, x,
                     rows, width, chunk, to, accumulate);
}

size_t tr_cuda_column_sum_workspace(size_t rows, size_t width)
{
    const size_t chunks = chunks_of(rows);
    return chunks > 1 ? chunks * width * sizeof(float) : 0;
}

tr_status tr_cuda_column_sum(cudaStream_t stream, tr_dtype type, const void *x, size_t rows,
                             size_t width, float *part, float *sum, bool accumulate)
{
    if (width == 0) return TR_OK;
    if (rows == 0)
        return accumulate ? TR_OK
                          : tr_cuda_check(cudaMemsetAsync(sum, 0, width * sizeof *sum, stream),
                                          "cudaMemsetAsync");
    const size_t chunks = chunks_of(rows);
    float *to = chunks > 1 ? part : sum;
    const int add = chunks == 1 && accumulate;
    tr_status st = TR_OK;
    TR_BY_TYPE(type, T, {
        const int V = 16 / sizeof(T);
        const T *in = static_cast<const T *>(x);
        if (width % V == 0 && aligned(x, 16))
            st = column_chunks<T, V>(stream, in, rows, width, chunks, to, add);
        else
            st = column_chunks<T, 1>(stream, in, rows, width, chunks, to, add);
    });
    if (st != TR_OK || chunks == 1) return st;
    return TR_LAUNCH(column_total_kernel, (unsigned)((width + BLOCK - 1) / BLOCK), BLOCK, 0, stream,
                     part, chunks, width, sum, (int)accumulate);
}

// cost: fixed
__global__ void add_to_kernel(float *to, const float *from, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] += from[i];
}

tr_status tr_cuda_add_to(cudaStream_t stream, float *to, const float *from, size_t n)
{
    if (n == 0) return TR_OK;
    return TR_LAUNCH(add_to_kernel, (unsigned)((n + BLOCK - 1) / BLOCK), BLOCK, 0, stream, to, from,
                     n);
}
