/* The gradient of attention of 16-bit types by matrix instructions (FlashAttention-2, Dao 2023), in
 * two kernels as that of attention_grad.cu, which adds nothing up between blocks: the same bits in
 * every run. One goes over the keys of a tile of queries, for dq; the other over the queries of a
 * tile of keys, with scores that have keys for rows, for dk and dv. Either way the products of a
 * tile are the next products' operands as they stand, rounded to 16 bits (mma.cuh).
 *
 * The floor for GPT-2 (T 1024, D 64, 12 heads, batch 8, causal): 7 products of which the gradient
 * needs 5, the scores and their gradients twice: 45 GFLOP, 46 us at an H100's 989 TFLOP/s, 74 us at
 * the 0.62 of it that mma.sync reaches. Shared memory gives 128 bytes a clock; with 32 rows a warp
 * and 32 columns a tile a product of scores takes 256 (one operand is 128, the other is read again
 * for each tile), the others 128: 213 of the first kernel, 192 of the second, 0.6 and 0.67 products
 * a clock, no less than mma.sync does. 2^x twice a score takes 27 us beside. With heads of 128
 * values the second kernel has registers for 16 rows a warp alone: 320 bytes, 0.4 a clock. Of more
 * than 128 values the sums for dk and dv take more registers than there are: attention_grad.cu. */
#include "kernels/cuda/loops/attention_matrix.cuh"

namespace
{

/* Tiles by a head's values: of 16 rows, M a warp; C columns a tile, PLACES of them in shared
 * memory. */
template <int E> struct query_sizes {
    enum { M = 2, C = 32, N = C / 8, PLACES = E <= 4 ? 2 : 1, ROWS = 16 * M * TR_MATRIX_WARPS };
};
template <int E> struct key_sizes {
    enum { M = E <= 4 ? 2 : 1, C = 32, N = C / 8, PLACES = 2, ROWS = 16 * M * TR_MATRIX_WARPS };
};

/* Two operands' rows and columns. */
template <int E, typename Z> size_t tile_bytes()
{
    return (size_t)(2 * Z::ROWS + 2 * Z::PLACES * Z::C) * tr_matrix_pitch<E>() * 2;
}

/* With log-sum-exp and delta of the queries. */
template <int E> size_t query_bytes()
{
    using z = query_sizes<E>;
    return tile_bytes<E, z>() + 2 * z::ROWS * sizeof(float);
}

template <int E> size_t key_bytes()
{
    using z = key_sizes<E>;
    return tile_bytes<E, z>() + 2 * z::PLACES * z::C * sizeof(float);
}

/* Begins to bring those of `rows` queries, of ROWS in shared memory; at: of the first one. */
template <int ROWS, typename T>
__device__ inline void fetch_stats(const tr_attention_of_type<T> &a, float *lse, float *delta,
                                   size_t at, int rows)
{
    static_assert(ROWS <= TR_MATRIX_THREADS, "one of each a thread");
    const int r = (int)threadIdx.x;
    if (r >= ROWS) return;
    at += (size_t)(r < rows ? r : 0);
    tr_async_copy_word(lse + r, a.lse + at, r < rows);
    tr_async_copy_word(delta + r, a.delta + at, r < rows);
}

/* Of a query. */
struct row_stats {
    float lse, delta; /* lse in powers of 2 */
};

/* A score becomes the probability that counts, before 1 / (1 - p); dp, the gradient of that,
 * becomes the score's gradient, before the scale. keep: 0 or 1 / (1 - p). */
__device__ inline void slope(float scale, const row_stats &row, float keep, float *s, float *dp)
{
    const float p = tr_exp2_below(*s * scale - row.lse);
    *dp = p * (*dp * keep - row.delta);
    *s = keep > 0.0f ? p : 0.0f;
}

/* All of a tile. `kept`: bits, where some are dropped. */
template <int M, int N, typename R>
__device__ inline void slopes(float scale, bool drops, float keep, const R &row,
                              const unsigned (&kept)[M], float (&s)[M][N][4], float (&dp)[M][N][4])
{
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int n = 0; n < N; n++) {
            TR_UNROLL
            for (int r = 0; r < 4; r++)
                slope(scale, row(m, n, r),
                      !drops                             ? 1.0f
                      : tr_matrix_kept<N>(kept[m], n, r) ? keep
                                                         : 0.0f,
                      &s[m][n][r], &dp[m][n][r]);
        }
    }
}

/* For dq: rows are queries. */
// cost: read 4x write 1x min 5x flops 3072 on tensor cores shape 8x1024x768 per dq of 512 keys
template <typename T, int E>
__global__ void __launch_bounds__(TR_MATRIX_THREADS, 2)
    attention_matrix_grad_queries(tr_attention_of_type<T> a, size_t tiles, bool aligned)
{
#if TR_MATRIX_UNITS
    using z = query_sizes<E>;
    enum { M = z::M, C = z::C, N = z::N, ROWS = z::ROWS, P = tr_matrix_pitch<E>() };
    TR_SHARED_BYTES(space);
    T *q = reinterpret_cast<T *>(space), *dy = q + ROWS * P;
    T *k = dy + ROWS * P, *v = k + z::PLACES * C * P;
    float *lse = reinterpret_cast<float *>(v + z::PLACES * C * P), *delta = lse + ROWS;
    const size_t D = a.s.D, head = blockIdx.x / tiles % a.s.heads, width = a.s.heads * D;
    const int row = (int)(tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int rows = min((int)a.s.queries - row, (int)ROWS);
    const tr_attention_head h = tr_attention_head_of(a, blockIdx.x / tiles / a.s.heads, head);
    const size_t from = h.sample * a.s.queries + (size_t)row;
    const size_t kv = h.sample * a.s.keys * a.s.kv_pitch + head / (a.s.heads / a.s.kv_heads) * D;
    const auto sees = [&](int i) { return tr_matrix_sees(a, h, i); };
    const tr_matrix_part part = tr_matrix_part_of<M>(row, rows, sees);
    const int first = sees(row).begin / C * C, end = sees(row + rows - 1).end;
    const int l = tr_matrix_lane();
    float dq[M][2 * E][4] = {}, factor[M][2];
    TR_UNROLL
    for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = a.s.scale;
    fetch_stats<ROWS>(a, lse, delta, (h.sample * a.s.heads + head) * a.s.queries + (size_t)row,
                      rows);
    tr_matrix_fetch<T, E, ROWS>(q, a.q + from * a.s.q_pitch + head * D, a.s.q_pitch, rows, D,
                                aligned);
    tr_matrix_fetch<T, E, ROWS>(dy, a.dy + from * width + head * D, width, rows, D, aligned);
    const auto fetch = [&](int tile, int to) {
        const int column = first + tile * C, n = min(end - column, (int)C); /* no more is read */
        const size_t at = kv + (size_t)column * a.s.kv_pitch;
        tr_matrix_fetch<T, E, C>(k + to * C * P, a.k + at, a.s.kv_pitch, n, D, aligned);
        tr_matrix_fetch<T, E, C>(v + to * C * P, a.v + at, a.s.kv_pitch, n, D, aligned);
    };
    const int n = (end - first + C - 1) / C;
    for (int tile = 0; tile < n; tile++) {
        const int at = tr_matrix_next_tile<z::PLACES>(tile, n, fetch) * C * P;
        const int column = first + tile * C;
        if (part.misses(column, C)) continue;
        float s[M][N][4], dp[M][N][4];
        const int i = part.first + l / 4, j = column + l % 4 * 2;
        unsigned kept[M] = {};
        if (a.least > 0) tr_matrix_draw<N>(a, h, i, j, kept);
        tr_matrix_product<T, E, M, N>(q + (part.first - row) * P, k + at, s);
        tr_matrix_product<T, E, M, N>(dy + (part.first - row) * P, v + at, dp);
        if (a.a.alibi) tr_matrix_distance(h.slope / a.s.scale, i, j, s);
        const int mine = part.first - row + l / 4;
        const auto stats_of = [&](int m, int, int r) {
            const int place = mine + 16 * m + r / 2 * 8;
            return row_stats{lse[place] * TR_LOG2_E, delta[place]};
        };
        if (a.least > 0)
            slopes(a.s.scale * TR_LOG2_E, true, a.keep, stats_of, kept, s, dp);
        else
            slopes(a.s.scale * TR_LOG2_E, false, 1.0f, stats_of, kept, s, dp);
        if (!part.sees_all(column, C))
            tr_matrix_unseen<M, N>(sees, i, j, [&](int m, int c, int r) { dp[m][c][r] = 0.0f; });
        tr_matrix_gather<T, E, M, N>(dp, k + at, dq);
    }
    tr_async_wait();
    __syncthreads();
    tr_matrix_write<T, E, M>(
        a.dq + (h.sample * a.s.queries + (size_t)part.first) * a.s.q_pitch + head * D, a.s.q_pitch,
        part.rows, D, aligned, dq, factor, q + (part.first - row) * P);
#endif
}

/* Queries that see key j: tr_attention_keys the other way round. Both ends grow with j, up to the
 * last key that any sees. */
template <typename T>
__device__ inline tr_matrix_range seen_by(const tr_attention_of_type<T> &a, int length, int j)
{
    const int window = (int)a.a.window;
    tr_matrix_range r = {a.a.causal ? j : 0, (int)a.s.queries};
    if (j >= length) return {0, 0};
    if (window > 0) r.begin = max(r.begin, j - window + 1);
    if (window > 0 && window < r.end - j) r.end = j + window;
    return {min(r.begin, r.end), r.end};
}

/* tr_matrix_draw where rows are keys: four neighbours are rows of four lanes, which have four
 * scores of each product, and each draws for one of them. */
template <int N, typename T, int M>
__device__ inline void draw_keys(const tr_attention_of_type<T> &a, const tr_attention_head &h,
                                 int query, int key, unsigned (&bits)[M])
{
    const int which = tr_matrix_lane() / 4 % 4;
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        bits[m] = 0;
        TR_NO_UNROLL
        for (int n = 0; n < N; n++) {
            unsigned some =
                tr_matrix_draw_four(a, h, query + 8 * n + which % 2, key + 16 * m + which / 2 * 8)
                << 4 * which;
            some |= __shfl_xor_sync(TR_ALL_LANES, some, 4);
            some |= __shfl_xor_sync(TR_ALL_LANES, some, 8);
            TR_UNROLL
            for (int r = 0; r < 4; r++) bits[m] |= (some >> (4 * r + which) & 1) << (4 * n + r);
        }
    }
}

/* For dk and dv: rows are keys. */
// cost: read 4x write 2x min 6x flops 4096 on tensor cores shape 8x1024x768 per dk of 512 queries
template <typename T, int E>
__global__ void __launch_bounds__(TR_MATRIX_THREADS, 2)
    attention_matrix_grad_keys(tr_attention_of_type<T> a, size_t tiles, bool aligned)
{
#if TR_MATRIX_UNITS
    using z = key_sizes<E>;
    enum { M = z::M, C = z::C, N = z::N, ROWS = z::ROWS, P = tr_matrix_pitch<E>() };
    TR_SHARED_BYTES(space);
    T *k = reinterpret_cast<T *>(space), *v = k + ROWS * P;
    T *q = v + ROWS * P, *dy = q + z::PLACES * C * P;
    float *lse = reinterpret_cast<float *>(dy + z::PLACES * C * P), *delta = lse + z::PLACES * C;
    const size_t D = a.s.D, kv = blockIdx.x / tiles % a.s.kv_heads, width = a.s.heads * D;
    const size_t sample = blockIdx.x / tiles / a.s.kv_heads;
    const int row = (int)(blockIdx.x % tiles) * ROWS, rows = min((int)a.s.keys - row, (int)ROWS);
    const int length = (int)tr_attention_length(a, sample), seen = max(0, min(length - row, rows));
    const size_t from = (sample * a.s.keys + (size_t)row) * a.s.kv_pitch + kv * D;
    const int group = (int)(a.s.heads / a.s.kv_heads), l = tr_matrix_lane();
    const auto sees = [&](int j) { return seen_by(a, length, j); };
    const tr_matrix_part part = tr_matrix_part_of<M>(row, seen, sees);
    const int first = sees(row).begin / C * C, end = seen > 0 ? sees(row + seen - 1).end : first;
    float dk[M][2 * E][4] = {}, dv[M][2 * E][4] = {};
    tr_matrix_fetch<T, E, ROWS>(k, a.k + from, a.s.kv_pitch, seen, D, aligned);
    tr_matrix_fetch<T, E, ROWS>(v, a.v + from, a.s.kv_pitch, seen, D, aligned);
    const auto fetch = [&](int item, int to) {
        const int column = first + item / group * C, n = min((int)a.s.queries - column, (int)C);
        const size_t head = kv * (size_t)group + (size_t)(item % group);
        const size_t at = sample * a.s.queries + (size_t)column;
        tr_matrix_fetch<T, E, C>(q + to * C * P, a.q + at * a.s.q_pitch + head * D, a.s.q_pitch, n,
                                 D, aligned);
        tr_matrix_fetch<T, E, C>(dy + to * C * P, a.dy + at * width + head * D, width, n, D,
                                 aligned);
        fetch_stats<C>(a, lse + to * C, delta + to * C,
                       (sample * a.s.heads + head) * a.s.queries + (size_t)column, n);
    };
    const int items = group * ((end - first + C - 1) / C);
    for (int item = 0; item < items; item++) {
        const int at = tr_matrix_next_tile<z::PLACES>(item, items, fetch) * C;
        const int column = first + item / group * C;
        if (part.misses(column, C)) continue;
        const tr_attention_head h =
            tr_attention_head_of(a, sample, kv * (size_t)group + (size_t)(item % group));
        float s[M][N][4], dp[M][N][4];
        const int j = part.first + l / 4, i = column + l % 4 * 2;
        unsigned kept[M] = {};
        if (a.least > 0) draw_keys<N>(a, h, i, j, kept);
        tr_matrix_product<T, E, M, N>(k + (part.first - row) * P, q + at * P, s);
        tr_matrix_product<T, E, M, N>(v + (part.first - row) * P, dy + at * P, dp);
        if (a.a.alibi) tr_matrix_distance(h.slope / a.s.scale, j, i, s);
        const float *lses = lse + at + l % 4 * 2, *deltas = delta + at + l % 4 * 2;
        const auto stats_of = [&](int, int n, int r) {
            return row_stats{lses[8 * n + r % 2] * TR_LOG2_E, deltas[8 * n + r % 2]};
        };
        if (a.least > 0)
            slopes(a.s.scale * TR_LOG2_E, true, a.keep, stats_of, kept, s, dp);
        else
            slopes(a.s.scale * TR_LOG2_E, false, 1.0f, stats_of, kept, s, dp);
        if (!part.sees_all(column, C))
            tr_matrix_unseen<M, N>(sees, j, i,
                                   [&](int m, int c, int r) { s[m][c][r] = dp[m][c][r] = 0.0f; });
        tr_matrix_gather<T, E, M, N>(s, dy + at * P, dv);
        tr_matrix_gather<T, E, M, N>(dp, q + at * P, dk);
    }
    tr_async_wait();
    __syncthreads();
    const int place = part.first - row, mine = max(0, rows - place); /* zeros behind the length */
    const size_t to = from + (size_t)place * a.s.kv_pitch;
    float factor[M][2];
    TR_UNROLL
    for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = a.s.scale;
    if (a.dk)
        tr_matrix_write<T, E, M>(a.dk + to, a.s.kv_pitch, mine, D, aligned, dk, factor,
                                 k + place * P);
    TR_UNROLL
    for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = a.least > 0 ? a.keep : 1.0f;
    if (a.dv)
        tr_matrix_write<T, E, M>(a.dv + to, a.s.kv_pitch, mine, D, aligned, dv, factor,
                                 v + place * P);
#endif
}

template <typename T, int E>
tr_status launch(const tr_cuda_attention_args *args, cudaStream_t stream)
{
    enum { QUERIES = query_sizes<E>::ROWS, KEYS = key_sizes<E>::ROWS };
    const tr_attention_of_type<T> a = tr_attention_typed<T>(args);
    const tr_attention_shape &s = args->s;
    const size_t queries = (s.queries + QUERIES - 1) / QUERIES, keys = (s.keys + KEYS - 1) / KEYS;
    const bool aligned = tr_matrix_aligned(a);
    tr_status st = TR_OK;
    if (a.dq)
        TR_TRY(TR_LAUNCH(TR_KERNEL(attention_matrix_grad_queries<T, E>),
                         (unsigned)(s.samples * s.heads * queries), TR_MATRIX_THREADS,
                         query_bytes<E>(), stream, a, queries, aligned));
    if (a.dk || a.dv)
        TR_TRY(TR_LAUNCH(TR_KERNEL(attention_matrix_grad_keys<T, E>),
                         (unsigned)(s.samples * s.kv_heads * keys), TR_MATRIX_THREADS,
                         key_bytes<E>(), stream, a, keys, aligned));
out:
    return st;
}

template <typename T, int E> tr_status allow()
{
    const auto let = [](const void *kernel, size_t nbytes) {
        return tr_cuda_check(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes),
            "cudaFuncSetAttribute(attention.grad, shared memory)");
    };
    tr_status st = TR_OK;
    TR_TRY(let(reinterpret_cast<const void *>(&attention_matrix_grad_queries<T, E>),
               query_bytes<E>()));
    TR_TRY(let(reinterpret_cast<const void *>(&attention_matrix_grad_keys<T, E>), key_bytes<E>()));
out:
    return st;
}

} // namespace

tr_status tr_attention_matrix_grad_run(tr_dtype t, const tr_cuda_attention_args *a,
                                       cudaStream_t stream)
{
    TR_MATRIX_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE_TO_128(a->s.D, return (launch<T, E>(a, stream))))
    return TR_OK;
}

size_t tr_attention_matrix_grad_shared(size_t D)
{
    if (D > 128) return SIZE_MAX;
    TR_ATTENTION_BY_SIZE_TO_128(D, return query_bytes<E>() > key_bytes<E>() ? query_bytes<E>()
                                                                            : key_bytes<E>())
    return 0;
}

tr_status tr_attention_matrix_grad_allow(tr_dtype t, size_t D)
{
    TR_MATRIX_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE_TO_128(D, return (allow<T, E>())))
    return TR_OK;
}
