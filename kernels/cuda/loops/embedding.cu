/* Rows of a table by number: y[row] = table[ids[row]], each element read once and written once, up
 * to 16 bytes of y a thread.
 *
 * Backward, dtable[v] = sum of the dy[row] that v was looked up for: (id, row) are sorted stably by
 * id, the sorted rows are cut into chunks of a size that their number alone fixes, and a thread
 * goes through the rows of its chunk with V of the columns. Runs of one id that lie inside a chunk
 * are finished there; what a chunk has of a run that spans chunks it leaves as a partial sum, and a
 * second kernel adds those of one run in order, a block for each run that begins in a chunk and
 * leaves it. So an id that fills half of the batch is summed by as many blocks as there are chunks
 * in it, and its 4096 partial sums at most by ways that take 256 of them each. No atomics.
 *
 * Bytes: dy once, the rows of dtable that are met once (twice where they are added to); dtable is
 * set to zero before, which is the minimum but for the rows that are met. Sorting moves some 8
 * bytes twice for each 8 bits of the ids and row: little beside dy unless D is below 32. A run is
 * summed in float32 within a chunk (32 rows, more beyond 131072 rows), in float64 across chunks. */
#include "kernels/cuda/loops/embedding.h"
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/sort.h"

namespace
{

enum { THREADS = 256, WAYS = 8, DEPTH = 4, MERGE_WAYS = 16 };
enum { LEAST_CHUNK = 32, MOST_CHUNKS = 4096, ALIGN = 256 };

// cost: read 1f write 1x min 1f+1x flops 0 shape 65536x1024
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    embedding(const float *table, const int32_t *ids, T *y, tr_divider width, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const size_t row = tr_quotient(width, i), at = i - row * width.by;
    const size_t from = (size_t)ids[row] * width.by + at;
    const tr_pack<float, V> in = reinterpret_cast<const tr_pack<float, V> *>(table)[from];
    tr_pack<T, V> out;
    TR_UNROLL
    for (int v = 0; v < V; v++) out.v[v] = tr_store<T>(in.v[v]);
    tr_put(y + i * V, out);
}

// cost: read 0b write 1f min 1f flops 0 shape 65536 per row
__global__ void __launch_bounds__(THREADS) embedding_rows(uint32_t *rows, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) rows[i] = (uint32_t)i;
}

/* What the kernels of the gradient share. part: [chunks][2][D], sums of the run that goes on from
 * the chunk before, and of the one that begins here and leaves the chunk. */
struct pieces {
    const uint32_t *ids, *rows; /* sorted */
    float *part, *dtable;
    size_t n, chunk, D;
    int accumulate;
};

template <int V> __device__ inline void give(float *to, const float *sum, int add)
{
    tr_pack<float, V> out;
    if (add)
        out = *reinterpret_cast<tr_pack<float, V> *>(to);
    else
        TR_UNROLL
    for (int v = 0; v < V; v++) out.v[v] = 0.0f;
    TR_UNROLL
    for (int v = 0; v < V; v++) out.v[v] += sum[v];
    tr_put(to, out);
}

/* Block (x, y) takes columns [x 32 V, (x + 1) 32 V) of chunks [y WAYS, (y + 1) WAYS), a warp
 * each. */
// cost: read 1x write 1f min 1x+1f flops 1 shape 65536x1024 per value of dy, all ids different
template <typename T, int V>
__global__ void __launch_bounds__(TR_WARP *WAYS) embedding_chunks(const T *dy, pieces p)
{
    const size_t column = ((size_t)blockIdx.x * TR_WARP + threadIdx.x) * V;
    const size_t c = (size_t)blockIdx.y * WAYS + threadIdx.y, begin = c * p.chunk;
    if (column >= p.D || begin >= p.n) return;
    const size_t end = begin + p.chunk < p.n ? begin + p.chunk : p.n;
    float *const part = p.part + 2 * c * p.D + column;
    uint32_t id = p.ids[begin];
    bool front = begin > 0 && p.ids[begin - 1] == id;
    float sum[V];
    TR_UNROLL
    for (int v = 0; v < V; v++) sum[v] = 0.0f;
    for (size_t first = begin; first < end; first += DEPTH) {
        tr_pack<T, V> in[DEPTH];
        uint32_t next[DEPTH];
        TR_UNROLL
        for (int k = 0; k < DEPTH; k++) {
            const size_t i = first + k < end ? first + k : end - 1;
            next[k] = p.ids[i];
            in[k] = *reinterpret_cast<const tr_pack<T, V> *>(dy + p.rows[i] * p.D + column);
        }
        TR_UNROLL
        for (int k = 0; k < DEPTH; k++) {
            if (first + k >= end) continue;
            if (next[k] != id) { /* a run ends inside */
                if (front)
                    give<V>(part, sum, 0);
                else
                    give<V>(p.dtable + id * p.D + column, sum, p.accumulate);
                front = false;
                id = next[k];
                TR_UNROLL
                for (int v = 0; v < V; v++) sum[v] = 0.0f;
            }
            TR_UNROLL
            for (int v = 0; v < V; v++) sum[v] += tr_load<T>(in[k].v[v]);
        }
    }
    if (front)
        give<V>(part, sum, 0);
    else if (end < p.n && p.ids[end] == id)
        give<V>(part + p.D, sum, 0);
    else
        give<V>(p.dtable + id * p.D + column, sum, p.accumulate);
}

/* Block (x, y) adds up the run that begins in chunk y and leaves it, if there is one: of its
 * partial sums each way takes an equal share in order, then the ways are added in order. */
// cost: read 0.031f min 0.031f flops 0.031 shape 65536x1024 per value of dy, few ids
__global__ void __launch_bounds__(TR_WARP *MERGE_WAYS) embedding_merge(pieces p)
{
    TR_SHARED(double, sums, TR_WARP *MERGE_WAYS);
    const size_t c = blockIdx.y, begin = c * p.chunk, end = begin + p.chunk;
    const uint32_t id = p.ids[end - 1];
    if (p.ids[end] != id) return;
    if (begin > 0 && p.ids[begin - 1] == id) return; /* began before */
    size_t low = end, high = p.n; /* the first that is not of the run lies in (low, high] */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (p.ids[middle] == id)
            low = middle;
        else
            high = middle;
    }
    const size_t count = low / p.chunk - c + 1;
    const size_t column = (size_t)blockIdx.x * TR_WARP + threadIdx.x;
    const size_t from = count * threadIdx.y / MERGE_WAYS,
                 to = count * (threadIdx.y + 1) / MERGE_WAYS;
    double sum = 0.0;
    if (column < p.D)
        for (size_t i = from; i < to; i++)
            sum += (double)p.part[(2 * (c + i) + (i == 0)) * p.D + column];
    sums[threadIdx.y * TR_WARP + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= p.D) return;
    for (int w = 1; w < MERGE_WAYS; w++) sum += sums[w * TR_WARP + threadIdx.x];
    float *total = p.dtable + id * p.D + column;
    *total = (float)(p.accumulate ? (double)*total + sum : sum);
}

template <typename T, int V>
tr_status look_up(cudaStream_t stream, const float *table, const int32_t *ids, void *y, size_t rows,
                  size_t D)
{
    const size_t n = rows * (D / V);
    return TR_LAUNCH(TR_KERNEL(embedding<T, V>), tr_blocks(n, THREADS, INT32_MAX), THREADS, 0,
                     stream, table, ids, static_cast<T *>(y), tr_divide_by(D / V), n);
}

size_t aligned(size_t nbytes)
{
    return (nbytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t chunk_of(size_t rows)
{
    const size_t chunk = (rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    return chunk > LEAST_CHUNK ? chunk : (size_t)LEAST_CHUNK;
}

size_t chunks_of(size_t rows)
{
    return (rows + chunk_of(rows) - 1) / chunk_of(rows);
}

template <typename T, int V>
tr_status sum_chunks(cudaStream_t stream, const void *dy, const pieces &p)
{
    const dim3 grid((unsigned)((p.D + TR_WARP * V - 1) / (TR_WARP * V)),
                    (unsigned)((chunks_of(p.n) + WAYS - 1) / WAYS));
    return TR_LAUNCH(TR_KERNEL(embedding_chunks<T, V>), grid, dim3(TR_WARP, WAYS), 0, stream,
                     static_cast<const T *>(dy), p);
}

} // namespace

tr_status tr_cuda_embedding_run(cudaStream_t stream, tr_dtype type, const float *table,
                                const int32_t *ids, void *y, size_t rows, size_t D)
{
    if (rows == 0 || D == 0) return TR_OK;
    TR_BY_TYPE(type, T, {
        const int V = 16 / sizeof(T);
        if (D % V == 0 && tr_is_aligned(table, 4 * V) && tr_is_aligned(y, 16))
            return look_up<T, V>(stream, table, ids, y, rows, D);
        return look_up<T, 1>(stream, table, ids, y, rows, D);
    });
    return TR_OK;
}

size_t tr_cuda_embedding_grad_workspace(size_t rows, size_t D, size_t sort_bytes)
{
    return 3 * aligned(rows * sizeof(uint32_t)) + aligned(2 * chunks_of(rows) * D * sizeof(float)) +
           sort_bytes;
}

tr_status tr_cuda_embedding_grad_run(cudaStream_t stream, tr_dtype type,
                                     const tr_cuda_embedding_grad_args *a)
{
    tr_status st = TR_OK;
    const size_t n = a->rows, array = aligned(n * sizeof(uint32_t)), chunks = chunks_of(n);
    if (!a->accumulate && a->num * a->D > 0)
        st = tr_cuda_check(cudaMemsetAsync(a->dtable, 0, a->num * a->D * sizeof(float), stream),
                           "cudaMemsetAsync");
    if (st != TR_OK || n == 0 || a->D == 0) return st;
    char *at = static_cast<char *>(a->workspace);
    uint32_t *rows = reinterpret_cast<uint32_t *>(at), *ids = rows + array / 4,
             *sorted = ids + array / 4;
    float *part = reinterpret_cast<float *>(at + 3 * array);
    void *scratch = at + 3 * array + aligned(2 * chunks * a->D * sizeof(float));
    st = TR_LAUNCH(embedding_rows, tr_blocks(n, THREADS, INT32_MAX), THREADS, 0, stream, rows, n);
    if (st != TR_OK) return st;
    st = tr_cuda_sort(stream, reinterpret_cast<const uint32_t *>(a->ids), ids, rows, sorted, n,
                      a->num, scratch, a->sort_bytes);
    if (st != TR_OK) return st;
    const pieces p = {ids, sorted, part, a->dtable, n, chunk_of(n), a->D, (int)a->accumulate};
    TR_BY_TYPE(type, T, {
        const int V = 16 / sizeof(T);
        if (a->D % V == 0 && tr_is_aligned(a->dtable, 4 * V) && tr_is_aligned(a->dy, 16))
            st = sum_chunks<T, V>(stream, a->dy, p);
        else
            st = sum_chunks<T, 1>(stream, a->dy, p);
    });
    if (st != TR_OK || chunks == 1) return st;
    const dim3 grid((unsigned)((a->D + TR_WARP - 1) / TR_WARP), (unsigned)(chunks - 1));
    return TR_LAUNCH(embedding_merge, grid, dim3(TR_WARP, MERGE_WAYS), 0, stream, p);
}
