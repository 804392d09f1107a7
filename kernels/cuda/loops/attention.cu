/* Attention forward (Dao et al. 2022): a block a tile of queries of one head. It goes over the
 * tiles of keys that any of its queries sees and keeps each row's maximum, sum and weighted values
 * so far (Milakov and Gimelshein 2018); products and sums in float32. Nothing of the size queries x
 * keys is written.
 *
 * Bytes: queries once, keys and values once for each tile of queries, from the second-level cache
 * mostly; y once. Plain float32 multiply-adds: for float32, and for devices without the
 * instructions that attention_matrix.cu takes. */
#include "kernels/cuda/loops/attention.cuh"

namespace
{

template <typename T, int E> size_t shared_bytes()
{
    using z = tr_attention_sizes<E>;
    const size_t rows =
        (size_t)(16 * z::R + 2 * 16 * z::C) * tr_attention_pitch<T, E>() * sizeof(T);
    return rows + 16 * z::R * (16 * z::C + 1) * sizeof(float);
}

/* The row's probabilities of a tile, unscaled, to w; what was added up before is times fade. */
template <typename T, int R, int C>
__device__ inline void soften(const tr_attention_of_type<T> &a, const tr_attention_head &h,
                              int64_t row, int64_t column, float (&s)[R][C], float (&top)[R],
                              float (&sum)[R], float (&fade)[R], float *w)
{
    const int x = (int)threadIdx.x % TR_ATTENTION_SIDE, y = (int)threadIdx.x / TR_ATTENTION_SIDE;
    TR_UNROLL
    for (int r = 0; r < R; r++) {
        const int64_t i = row + y * R + r;
        const tr_key_range seen = tr_attention_sees(a, h, i);
        float most = -INFINITY, part = 0.0f;
        TR_UNROLL
        for (int c = 0; c < C; c++) {
            const int64_t j = column + x + 16 * c;
            s[r][c] = tr_attention_score(a, h, s[r][c], i, j);
            if (j >= seen.begin && j < seen.end && s[r][c] > most) most = s[r][c];
        }
        most = tr_attention_row_max(most);
        most = most > top[r] ? most : top[r];
        fade[r] = top[r] == most ? 1.0f : tr_exp_below<T>(top[r] - most);
        top[r] = most;
        TR_UNROLL
        for (int c = 0; c < C; c++) {
            const int64_t j = column + x + 16 * c;
            const bool sees = j >= seen.begin && j < seen.end;
            const float p = sees ? tr_exp_below<T>(s[r][c] - most) : 0.0f;
            part += p;
            w[(y * R + r) * (16 * C + 1) + x + 16 * c] =
                sees && a.least > 0 ? p * tr_attention_keeps(a, h, i, j) : p;
        }
        sum[r] = sum[r] * fade[r] + tr_attention_row_sum(part);
    }
}

// cost: read 3x write 1x min 4x flops 2048 shape 8x1024x768 per y of 512 keys
template <typename T, int E>
__global__ void __launch_bounds__(TR_ATTENTION_THREADS)
    attention(tr_attention_of_type<T> a, size_t tiles)
{
    enum {
        R = tr_attention_sizes<E>::R,
        C = tr_attention_sizes<E>::C,
        P = tr_attention_pitch<T, E>()
    };
    TR_SHARED_BYTES(room);
    float *w = reinterpret_cast<float *>(room);
    T *q = reinterpret_cast<T *>(w + 16 * R * (16 * C + 1));
    T *k = q + 16 * R * P, *v = k + 16 * C * P;
    const size_t D = a.s.D, head = blockIdx.x / tiles % a.s.heads;
    /* the last queries of a causal head see most keys: they come first */
    const size_t tile = tiles - 1 - blockIdx.x % tiles, row = tile * 16 * R;
    const tr_attention_head h = tr_attention_head_of(a, blockIdx.x / tiles / a.s.heads, head);
    const size_t left = a.s.queries - row, rows = left < 16 * R ? left : 16 * R;
    const size_t kv = head / (a.s.heads / a.s.kv_heads);
    const size_t y = threadIdx.x / TR_ATTENTION_SIDE;
    const T *keys = a.k + h.sample * a.s.keys * a.s.kv_pitch + kv * D;
    const T *values = a.v + h.sample * a.s.keys * a.s.kv_pitch + kv * D;
    float o[R][E] = {}, top[R], sum[R], fade[R];
    TR_UNROLL
    for (int r = 0; r < R; r++) top[r] = -INFINITY, sum[r] = 0.0f;
    tr_attention_load<T, E, 16 * R>(
        q, a.q + (h.sample * a.s.queries + row) * a.s.q_pitch + head * D, a.s.q_pitch, rows, D);
    const int64_t first = tr_attention_sees(a, h, (int64_t)row).begin;
    const int64_t end = tr_attention_sees(a, h, (int64_t)(row + rows - 1)).end;
    for (int64_t column = first / (16 * C) * (16 * C); column < end; column += 16 * C) {
        const int64_t some = end - column; /* nothing is read behind what is seen */
        const size_t n = some < 16 * C ? (size_t)some : 16 * C;
        float s[R][C];
        __syncthreads(); /* the last tile is read */
        tr_attention_load<T, E, 16 * C>(k, keys + (size_t)column * a.s.kv_pitch, a.s.kv_pitch, n,
                                        D);
        tr_attention_load<T, E, 16 * C>(v, values + (size_t)column * a.s.kv_pitch, a.s.kv_pitch, n,
                                        D);
        __syncthreads();
        tr_attention_product<T, E, R, C>(q, k, (int)D, s);
        soften(a, h, (int64_t)row, column, s, top, sum, fade, w);
        TR_UNROLL
        for (int r = 0; r < R; r++) {
            TR_UNROLL
            for (int e = 0; e < E; e++) o[r][e] *= fade[r];
        }
        __syncthreads();
        tr_attention_gather<T, E, R, C>(w, v, (int)n, o);
    }
    TR_UNROLL
    for (int r = 0; r < R; r++) {
        const size_t i = row + y * R + r;
        if (a.lse && threadIdx.x % TR_ATTENTION_SIDE == 0 && i < a.s.queries)
            a.lse[(h.sample * a.s.heads + head) * a.s.queries + i] = top[r] + logf(sum[r]);
        fade[r] = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
    }
    const size_t width = a.s.heads * D;
    tr_attention_write<T, E, R>(a.y + (h.sample * a.s.queries + row) * width + head * D, width,
                                rows, D, o, fade);
}

template <typename T, int E>
tr_status launch(const tr_cuda_attention_args *args, cudaStream_t stream)
{
    const size_t tiles =
        (args->s.queries + 16 * tr_attention_sizes<E>::R - 1) / (16 * tr_attention_sizes<E>::R);
    return TR_LAUNCH(TR_KERNEL(attention<T, E>),
                     (unsigned)(args->s.samples * args->s.heads * tiles), TR_ATTENTION_THREADS,
                     (shared_bytes<T, E>()), stream, tr_attention_typed<T>(args), tiles);
}

const void *plain_kernel(tr_dtype t, size_t D)
{
    TR_BY_TYPE(t, T,
               TR_ATTENTION_BY_SIZE(D, return reinterpret_cast<const void *>(&attention<T, E>)))
    return nullptr;
}

} // namespace

tr_status tr_cuda_attention_run(tr_dtype t, const tr_cuda_attention_args *a, cudaStream_t stream)
{
    if (a->s.samples == 0) return TR_OK;
    if (a->matrix) return tr_attention_matrix_run(t, a, stream);
    TR_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE(a->s.D, return (launch<T, E>(a, stream))))
    return TR_OK;
}

size_t tr_cuda_attention_shared(tr_dtype t, size_t D, bool backward, bool matrix)
{
    if (backward)
        return matrix ? tr_attention_matrix_grad_shared(D) : tr_attention_grad_shared(t, D);
    if (matrix) return tr_attention_matrix_shared(D);
    TR_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE(D, return (shared_bytes<T, E>())))
    return 0;
}

tr_status tr_cuda_attention_ready(tr_dtype t, size_t D, bool backward, bool *matrix)
{
    tr_status st = TR_OK;
    if (*matrix) {
        cudaFuncAttributes code;
        TR_TRY(tr_cuda_check(cudaFuncGetAttributes(&code, tr_attention_matrix_kernel(t, D)),
                             "cudaFuncGetAttributes(attention)"));
        *matrix = code.ptxVersion >= 80;
    }
    if (backward)
        return *matrix ? tr_attention_matrix_grad_allow(t, D)
                       : tr_attention_grad_allow(t, D, tr_attention_grad_shared(t, D));
    TR_TRY(tr_cuda_check(
        cudaFuncSetAttribute(*matrix ? tr_attention_matrix_kernel(t, D) : plain_kernel(t, D),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)tr_cuda_attention_shared(t, D, false, *matrix)),
        "cudaFuncSetAttribute(attention, shared memory)"));
out:
    return st;
}
