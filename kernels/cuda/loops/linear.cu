/* A parameter's 16-bit copy, and the bias gradient as column sums. Bound by memory; each element is
 * read and written once, 16 bytes at a time where the width and the addresses allow it. (Bias and
 * activation behind a product: epilogue.cu.) */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/linear.h"

enum { BLOCK = 256 };

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
        tr_put(to + p * V, out);
    }
    for (size_t i = packs * V + first; i < n; i += stride) to[i] = tr_store<T>(from[i]);
}

template <typename T> static tr_status cast(cudaStream_t stream, const float *from, T *to, size_t n)
{
    const int V = 16 / sizeof(T);
    const size_t packs = tr_is_aligned(from, 4 * V) && tr_is_aligned(to, 16) ? n / V : 0;
    const unsigned grid = tr_rounds(packs ? packs : n, BLOCK);
    return TR_LAUNCH(TR_KERNEL(cast_kernel<T, V>), grid, BLOCK, 0, stream, from, to, packs, n);
}

tr_status tr_cuda_cast(cudaStream_t stream, tr_dtype type, const float *from, void *to, size_t n)
{
    if (n == 0) return TR_OK;
    TR_BY_TYPE(type, T, return cast<T>(stream, from, static_cast<T *>(to), n));
    return TR_OK;
}

/* ---- Column sums ---- */

/* Blocks that fill an H100, twice over; rows that a thread takes at least, and at a time; the
 * second kernel's blocks. */
enum { FILL = 8 * 132, LEAST = 8, RUN = 16, COLUMNS = 8, DEPTH = 64 };

/* Depends on rows, width and V alone. */
struct column_plan {
    size_t lanes;  /* of a block, V columns each: a power of two */
    size_t tiles;  /* of columns */
    size_t chunks; /* of rows */
};

static column_plan column_plan_of(size_t rows, size_t width, size_t V)
{
    column_plan p = {4, 1, 1};
    while (p.lanes < TR_WARP && p.lanes * V < width) p.lanes *= 2;
    p.tiles = (width + p.lanes * V - 1) / (p.lanes * V);
    const size_t least = BLOCK / p.lanes * LEAST, most = (FILL + p.tiles - 1) / p.tiles;
    p.chunks = (rows + least - 1) / least;
    if (p.chunks > most) p.chunks = most;
    return p;
}

/* Block (x, y) sums rows [y chunk, (y + 1) chunk) of columns [x lanes V, (x + 1) lanes V): its
 * BLOCK / lanes rows of threads take every such row from their own, then their sums are added in
 * order. A narrow matrix has more rows of threads, so that none is idle. Runs of RUN rows are
 * summed in float32 and added up in float64, so that the error does not grow with the rows: RUN
 * 2^-24 of the sum of magnitudes at the worst, and 2^-24 for what is kept of a chunk. Writes part
 * [chunks][width], or with one chunk the sum itself. */
// cost: read 1x write 0.008f min 1x flops 1 shape 8192x4096 per value of x
template <typename T, int V>
__global__ void column_chunk_kernel(const T *x, size_t rows, size_t width, unsigned lanes,
                                    size_t chunk, float *part, int accumulate)
{
    TR_SHARED(double, sums, BLOCK *V);
    const unsigned lane = threadIdx.x % lanes, row = threadIdx.x / lanes, step = BLOCK / lanes;
    const size_t left = (size_t)blockIdx.x * lanes * V, column = left + (size_t)lane * V;
    const size_t begin = blockIdx.y * chunk;
    const size_t end = begin + chunk < rows ? begin + chunk : rows;
    double sum[V];
    TR_UNROLL
    for (int v = 0; v < V; v++) sum[v] = 0.0;
    for (size_t first = begin + row; column < width && first < end; first += (size_t)RUN * step) {
        float run[V];
        TR_UNROLL
        for (int v = 0; v < V; v++) run[v] = 0.0f;
        TR_UNROLL
        for (int i = 0; i < RUN; i++) {
            const size_t r = first + (size_t)i * step;
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
    for (int v = 0; v < V; v++) sums[(row * V + v) * lanes + lane] = sum[v];
    __syncthreads();
    if (threadIdx.x >= lanes * V) return;
    const unsigned j = threadIdx.x; /* value j / lanes of lane j % lanes */
    const size_t to = left + j % lanes * V + j / lanes;
    if (to >= width) return;
    double total = sums[j];
    for (unsigned r = 1; r < step; r++) total += sums[r * V * lanes + j];
    float *at = part + blockIdx.y * width + to;
    *at = (float)(accumulate ? (double)*at + total : total);
}

/* Each of DEPTH threads of a column takes every DEPTH-th chunk, then theirs are added in order. */
// cost: read 1f write 0.016f min 1.016f flops 1 shape 66x4096 per partial sum
__global__ void __launch_bounds__(COLUMNS *DEPTH)
    column_total_kernel(const float *part, size_t chunks, size_t width, float *sum, int accumulate)
{
    TR_SHARED(double, sums, COLUMNS *DEPTH);
    const size_t j = (size_t)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    double total = 0;
    for (size_t c = threadIdx.x / COLUMNS; j < width && c < chunks; c += DEPTH)
        total += (double)part[c * width + j];
    sums[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x >= COLUMNS || j >= width) return;
    for (int i = 1; i < DEPTH; i++) total += sums[i * COLUMNS + threadIdx.x];
    sum[j] = (float)(accumulate ? (double)sum[j] + total : total);
}

template <typename T, int V>
static tr_status column_sum(cudaStream_t stream, const T *x, size_t rows, size_t width, float *part,
                            float *sum, int accumulate)
{
    const column_plan p = column_plan_of(rows, width, V);
    const bool one = p.chunks == 1;
    const tr_status st =
        TR_LAUNCH(TR_KERNEL(column_chunk_kernel<T, V>), dim3((unsigned)p.tiles, (unsigned)p.chunks),
                  BLOCK, 0, stream, x, rows, width, (unsigned)p.lanes,
                  (rows + p.chunks - 1) / p.chunks, one ? sum : part, one && accumulate);
    if (st != TR_OK || one) return st;
    return TR_LAUNCH(column_total_kernel, (unsigned)((width + COLUMNS - 1) / COLUMNS),
                     COLUMNS * DEPTH, 0, stream, part, p.chunks, width, sum, accumulate);
}

size_t tr_cuda_column_sum_workspace(size_t rows, size_t width)
{
    size_t most = 1;
    if (rows == 0 || width == 0) return 0;
    for (size_t V = 1; V <= 8; V *= 2) {
        const size_t chunks = column_plan_of(rows, width, V).chunks;
        if (chunks > most) most = chunks;
    }
    return most > 1 ? most * width * sizeof(float) : 0;
}

tr_status tr_cuda_column_sum(cudaStream_t stream, tr_dtype type, const void *x, size_t rows,
                             size_t width, float *part, float *sum, bool accumulate)
{
    if (width == 0) return TR_OK;
    if (rows == 0)
        return accumulate ? TR_OK
                          : tr_cuda_check(cudaMemsetAsync(sum, 0, width * sizeof *sum, stream),
                                          "cudaMemsetAsync");
    TR_BY_TYPE(type, T, {
        const int V = 16 / sizeof(T);
        const T *in = static_cast<const T *>(x);
        if (width % V == 0 && tr_is_aligned(x, 16))
            return column_sum<T, V>(stream, in, rows, width, part, sum, accumulate);
        return column_sum<T, 1>(stream, in, rows, width, part, sum, accumulate);
    });
    return TR_OK;
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
