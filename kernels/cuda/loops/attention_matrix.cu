/* Attention forward of 16-bit types by matrix instructions (FlashAttention-2, Dao 2023): a block a
 * tile of queries of one head, a warp 16 or 32 of its rows. Scores, the rows' maxima and sums, and
 * the weighted values stay in registers in float32; the probabilities, rounded to 16 bits, are the
 * next product's operand as they stand (mma.cuh). The next tile of keys and values comes to the
 * other side of their place while one is worked on: one barrier a tile. Fixed order: the same bits
 * in every run.
 *
 * The floor for GPT-2 (T 1024, D 64, 12 heads, batch 8, causal): 96 x 2 x 2 x 64 x 1024 x 1025 / 2
 * = 12.9 GFLOP, 13 us at an H100's 989 TFLOP/s, which is one m16n8k16 a clock and multiprocessor.
 * mma.sync reaches about 0.62 of that (wgmma alone has all): 21 us. Shared memory gives 128 bytes a
 * clock: b is 256 bytes a product of one tile of 16 queries, so that two tiles a warp are needed
 * for one product a clock; with a of the queries' scores read again for each tile of keys, 160
 * bytes: 0.8 a clock. 2^x of a score, 16 a clock, takes as long as its products at the peak (256
 * flops), the rest of its arithmetic 5 instructions, 0.6 of that; warps that do not wait for each
 * other do both beside products: 25 to 40 us are in reach. Two blocks a multiprocessor, as
 * registers have it (up to 255 of a thread) and 55 KB of shared memory. */
#include "kernels/cuda/loops/attention_matrix.cuh"

namespace
{

/* Tiles by a head's values: of 16 queries, M a warp; C keys a tile. */
template <int E> struct sizes {
    enum { M = E <= 8 ? 2 : 1, C = E <= 4 ? 64 : 32, N = C / 8, ROWS = 16 * M * TR_MATRIX_WARPS };
};

/* Queries, and keys and values twice. */
template <typename T, int E> size_t shared_bytes()
{
    return (size_t)(sizes<E>::ROWS + 4 * sizes<E>::C) * tr_matrix_pitch<E>() * sizeof(T);
}

/* A lane's rows so far: the largest score, before the scale, and its own part of the sum. */
template <int M> struct row_state {
    float top[M][2], sum[M][2];
};

/* Scores become probabilities, unscaled; what was added up before fades. */
template <typename T, int E, int M, int N>
__device__ inline void soften(float scale, float (&s)[M][N][4], row_state<M> *rows,
                              float (&o)[M][2 * E][4])
{
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int side = 0; side < 2; side++) {
            float top = rows->top[m][side], part = 0.0f;
            TR_UNROLL
            for (int n = 0; n < N; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * side], s[m][n][2 * side + 1]));
            top = tr_matrix_row_max(top);
            const float base = top == -INFINITY ? 0.0f : top * scale;
            const float fade = tr_exp2_below(rows->top[m][side] * scale - base);
            TR_UNROLL
            for (int n = 0; n < N; n++) {
                TR_UNROLL
                for (int r = 2 * side; r < 2 * side + 2; r++)
                    part += s[m][n][r] = tr_exp2_below(s[m][n][r] * scale - base);
            }
            rows->top[m][side] = top;
            rows->sum[m][side] = rows->sum[m][side] * fade + part;
            TR_UNROLL
            for (int e = 0; e < 2 * E; e++) {
                o[m][e][2 * side] *= fade;
                o[m][e][2 * side + 1] *= fade;
            }
        }
    }
}

/* Probabilities that are dropped become 0. */
template <int M, int N> __device__ inline void drop(const unsigned (&kept)[M], float (&s)[M][N][4])
{
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int n = 0; n < N; n++) {
            TR_UNROLL
            for (int r = 0; r < 4; r++)
                if (!tr_matrix_kept<N>(kept[m], n, r)) s[m][n][r] = 0.0f;
        }
    }
}

/* y and the rows' log-sum-exp. */
template <typename T, int E, int M>
__device__ inline void finish(const tr_attention_of_type<T> &a, const tr_attention_head &h,
                              const tr_matrix_part &part, bool aligned, const row_state<M> &state,
                              const float (&o)[M][2 * E][4], T *room)
{
    const int l = tr_matrix_lane();
    float factor[M][2];
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int side = 0; side < 2; side++) {
            const float sum = tr_matrix_row_sum(state.sum[m][side]);
            const int r = 16 * m + 8 * side + l / 4;
            if (a.lse && l % 4 == 0 && r < part.rows)
                a.lse[(h.sample * a.s.heads + h.head) * a.s.queries + (size_t)(part.first + r)] =
                    state.top[m][side] * a.s.scale + logf(sum);
            factor[m][side] = sum == 0.0f ? 0.0f : (a.least > 0 ? a.keep : 1.0f) / sum;
        }
    }
    const size_t width = a.s.heads * a.s.D;
    const size_t at = (h.sample * a.s.queries + (size_t)part.first) * width + h.head * a.s.D;
    tr_matrix_write<T, E, M>(a.y + at, width, part.rows, a.s.D, aligned, o, factor, room);
}
// cost: read 3x write 1x min 4x flops 2048 on tensor cores shape 8x1024x768 per y of 512 keys
template <typename T, int E>
__global__ void __launch_bounds__(TR_MATRIX_THREADS, 2)
    attention_matrix(tr_attention_of_type<T> a, size_t tiles, bool aligned)
{
#if TR_MATRIX_UNITS
    enum {
        M = sizes<E>::M,
        C = sizes<E>::C,
        N = sizes<E>::N,
        ROWS = sizes<E>::ROWS,
        P = tr_matrix_pitch<E>()
    };
    TR_SHARED_BYTES(space);
    T *q = reinterpret_cast<T *>(space), *k = q + ROWS * P, *v = k + 2 * C * P;
    const size_t D = a.s.D, head = blockIdx.x / tiles % a.s.heads;
    /* the last queries of a causal head see most keys: they come first */
    const int row = (int)(tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int rows = min((int)a.s.queries - row, (int)ROWS);
    const tr_attention_head h = tr_attention_head_of(a, blockIdx.x / tiles / a.s.heads, head);
    const size_t from = h.sample * a.s.queries + (size_t)row;
    const size_t kv = h.sample * a.s.keys * a.s.kv_pitch + head / (a.s.heads / a.s.kv_heads) * D;
    const auto sees = [&](int i) { return tr_matrix_sees(a, h, i); };
    const tr_matrix_part part = tr_matrix_part_of<M>(row, rows, sees);
    const int first = sees(row).begin / C * C, end = sees(row + rows - 1).end;
    const int l = tr_matrix_lane();
    float o[M][2 * E][4] = {};
    row_state<M> state;
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int side = 0; side < 2; side++)
            state.top[m][side] = -INFINITY, state.sum[m][side] = 0.0f;
    }
    tr_matrix_fetch<T, E, ROWS>(q, a.q + from * a.s.q_pitch + head * D, a.s.q_pitch, rows, D,
                                aligned);
    const auto fetch = [&](int tile, int to) {
        const int column = first + tile * C, n = min(end - column, (int)C); /* no more is read */
        const size_t at = kv + (size_t)column * a.s.kv_pitch;
        tr_matrix_fetch<T, E, C>(k + to * C * P, a.k + at, a.s.kv_pitch, n, D, aligned);
        tr_matrix_fetch<T, E, C>(v + to * C * P, a.v + at, a.s.kv_pitch, n, D, aligned);
    };
    const int n = (end - first + C - 1) / C;
    for (int tile = 0; tile < n; tile++) {
        const int at = tr_matrix_next_tile<2>(tile, n, fetch) * C * P, column = first + tile * C;
        if (part.misses(column, C)) continue;
        float s[M][N][4];
        const int i = part.first + l / 4, j = column + l % 4 * 2;
        unsigned kept[M] = {};
        if (a.least > 0) tr_matrix_draw<N>(a, h, i, j, kept);
        tr_matrix_product<T, E, M, N>(q + (part.first - row) * P, k + at, s);
        if (a.a.alibi) tr_matrix_distance(h.slope / a.s.scale, i, j, s);
        if (!part.sees_all(column, C))
            tr_matrix_unseen<M, N>(sees, i, j,
                                   [&](int m, int c, int r) { s[m][c][r] = -INFINITY; });
        soften<T, E>(a.s.scale * TR_LOG2_E, s, &state, o);
        if (a.least > 0) drop(kept, s);
        tr_matrix_gather<T, E, M, N>(s, v + at, o);
    }
    tr_async_wait();
    __syncthreads();
    finish<T, E, M>(a, h, part, aligned, state, o, q + (part.first - row) * P);
#endif
}

template <typename T, int E>
tr_status launch(const tr_cuda_attention_args *args, cudaStream_t stream)
{
    const tr_attention_of_type<T> a = tr_attention_typed<T>(args);
    const size_t tiles = (args->s.queries + sizes<E>::ROWS - 1) / sizes<E>::ROWS;
    return TR_LAUNCH(TR_KERNEL(attention_matrix<T, E>),
                     (unsigned)(args->s.samples * args->s.heads * tiles), TR_MATRIX_THREADS,
                     (shared_bytes<T, E>()), stream, a, tiles, tr_matrix_aligned(a));
}

} // namespace

tr_status tr_attention_matrix_run(tr_dtype t, const tr_cuda_attention_args *a, cudaStream_t stream)
{
    TR_MATRIX_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE(a->s.D, return (launch<T, E>(a, stream))))
    return TR_OK;
}

size_t tr_attention_matrix_shared(size_t D)
{
    TR_ATTENTION_BY_SIZE(D, return (shared_bytes<__half, E>()))
    return 0;
}

const void *tr_attention_matrix_kernel(tr_dtype t, size_t D)
{
    TR_MATRIX_BY_TYPE(
        t, T,
        TR_ATTENTION_BY_SIZE(D, return reinterpret_cast<const void *>(&attention_matrix<T, E>)))
    return nullptr;
}
