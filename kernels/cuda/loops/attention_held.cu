/* Attention in a graph that decodes. First the run's keys and values are written behind those that
 * are held, a thread an element. Then a block a query and head: its warps take keys in turn, lanes
 * across a head's values, for a tile of scores in shared memory; then a thread a value of y adds up
 * the tile's values, with the largest score and the sum so far (Milakov and Gimelshein 2018).
 *
 * Bytes: what is held is read once for each head of queries, from memory by the first of those that
 * share it. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/attention.h"

namespace
{

enum {
    THREADS = 128,
    WARPS = THREADS / TR_WARP,
    TILE = 128,
    EACH = TR_CUDA_ATTENTION_HEAD / THREADS
};

template <typename T> struct held {
    tr_attention_shape s;
    const T *q, *k, *v;
    T *keys, *values, *y;
    const int32_t *past, *count;
    size_t cache;
    int64_t window;
    bool alibi;
};

/* Of a sequence: rows that came before, and those of this run that count and fit. */
struct span {
    size_t past, count;
};

template <typename T> __device__ inline span span_of(const held<T> &a, size_t sample)
{
    const int32_t before = a.past[sample], rows = a.count[sample];
    const size_t past = before < 0 ? 0 : (size_t)before < a.cache ? (size_t)before : a.cache;
    const size_t most = rows < 0 ? 0 : (size_t)rows < a.s.queries ? (size_t)rows : a.s.queries;
    return {past, most < a.cache - past ? most : a.cache - past};
}

// cost: read 2x write 2x min 4x flops 0 shape 8x1x768
template <typename T> __global__ void __launch_bounds__(THREADS) hold_rows(held<T> a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, width = a.s.kv_heads * a.s.D;
    if (i >= a.s.samples * a.s.queries * width) return;
    const size_t row = i / width, column = i - row * width, sample = row / a.s.queries;
    const size_t r = row - sample * a.s.queries, head = column / a.s.D;
    const span rows = span_of(a, sample);
    if (r >= rows.count) return;
    const size_t to =
        ((sample * a.s.kv_heads + head) * a.cache + rows.past + r) * a.s.D + column - head * a.s.D;
    a.keys[to] = a.k[row * a.s.kv_pitch + column];
    a.values[to] = a.v[row * a.s.kv_pitch + column];
}

// cost: read 1024x write 1x min 1025x flops 2048 shape 8x1x768 per y of 512 keys
template <typename T> __global__ void __launch_bounds__(THREADS) attention_held(held<T> a)
{
    TR_SHARED(float, q, TR_CUDA_ATTENTION_HEAD);
    TR_SHARED(float, p, TILE);
    TR_SHARED(float, part, TR_WARP);
    const size_t D = a.s.D, head = blockIdx.x % a.s.heads, row = blockIdx.x / a.s.heads;
    const size_t sample = row / a.s.queries, r = row - sample * a.s.queries;
    const int lane = (int)threadIdx.x % TR_WARP, warp = (int)threadIdx.x / TR_WARP;
    const span rows = span_of(a, sample);
    T *y = a.y + (row * a.s.heads + head) * D;
    const bool live = r < rows.count;
    const int64_t i = (int64_t)(rows.past + r);
    tr_key_range seen = tr_attention_keys(i, i + 1, true, a.window);
    if (!live) seen.begin = seen.end = 0; /* y is 0 */
    const size_t kv = (sample * a.s.kv_heads + head / (a.s.heads / a.s.kv_heads)) * a.cache * D;
    const float slope = a.alibi ? exp2f(tr_attention_slope_power((int)head, (int)a.s.heads)) : 0.0f;
    float acc[EACH] = {}, top = -INFINITY, sum = 0.0f;
    for (size_t d = threadIdx.x; d < D; d += THREADS)
        q[d] = tr_load<T>(a.q[row * a.s.q_pitch + head * D + d]);
    for (int64_t at = seen.begin; at < seen.end; at += TILE) {
        const int n = (int)(seen.end - at < TILE ? seen.end - at : (int64_t)TILE);
        __syncthreads(); /* q is there, and the last tile is read */
        for (int j = warp; j < n; j += WARPS) {
            const T *key = a.keys + kv + (size_t)(at + j) * D;
            float dot = 0.0f;
            for (size_t d = (size_t)lane; d < D; d += TR_WARP) dot += q[d] * tr_load<T>(key[d]);
            dot = tr_warp_sum(dot);
            if (lane == 0) p[j] = dot * a.s.scale - slope * (float)(i - at - j);
        }
        __syncthreads();
        const float mine = (int)threadIdx.x < n ? p[threadIdx.x] : -INFINITY;
        float most = tr_block_max(mine, part);
        most = most > top ? most : top;
        const float fade = top == most ? 1.0f : tr_exp_below<T>(top - most);
        const float weight = (int)threadIdx.x < n ? tr_exp_below<T>(mine - most) : 0.0f;
        p[threadIdx.x] = weight;
        sum = sum * fade + tr_block_sum(weight, part);
        top = most;
        TR_UNROLL
        for (int e = 0; e < EACH; e++) {
            const size_t d = threadIdx.x + (size_t)e * THREADS;
            if (d >= D) continue;
            const T *value = a.values + kv + (size_t)at * D + d;
            float add = 0.0f;
            for (int j = 0; j < n; j++) add += p[j] * tr_load<T>(value[(size_t)j * D]);
            acc[e] = acc[e] * fade + add;
        }
    }
    const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
    TR_UNROLL
    for (int e = 0; e < EACH; e++) {
        const size_t d = threadIdx.x + (size_t)e * THREADS;
        if (d < D) y[d] = tr_store<T>(acc[e] * scale);
    }
}

template <typename T> tr_status launch(const tr_cuda_attention_held_args *args, cudaStream_t stream)
{
    const tr_attention_shape &s = args->s;
    const held<T> a = {s,
                       static_cast<const T *>(args->q),
                       static_cast<const T *>(args->k),
                       static_cast<const T *>(args->v),
                       static_cast<T *>(args->keys),
                       static_cast<T *>(args->values),
                       static_cast<T *>(args->y),
                       args->past,
                       args->count,
                       args->cache,
                       args->a.window,
                       args->a.alibi};
    const size_t rows = s.samples * s.queries;
    const tr_status st =
        TR_LAUNCH(hold_rows<T>, tr_blocks(rows * s.kv_heads * s.D, THREADS, INT32_MAX), THREADS, 0,
                  stream, a);
    if (st != TR_OK) return st;
    return TR_LAUNCH(attention_held<T>, (unsigned)(rows * s.heads), THREADS, 0, stream, a);
}

} // namespace

tr_status tr_cuda_attention_held_run(tr_dtype t, const tr_cuda_attention_held_args *a,
                                     cudaStream_t stream)
{
    if (a->s.samples * a->s.queries == 0) return TR_OK;
    TR_BY_TYPE(t, T, return (launch<T>(a, stream)))
    return TR_OK;
}
