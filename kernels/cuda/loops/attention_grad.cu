/* The gradient of attention (Dao 2023): delta = sum(dy * y) of each row, then one kernel for dq, a
 * block a tile of queries, and one for dk and dv, a block a tile of keys of one head of keys; each
 * makes the probabilities again from the scores and the rows' log-sum-exp. Two kernels compute the
 * scores twice, and add nothing up between blocks, so that results have the same bits in every run.
 * Plain multiply-adds; of 16-bit types attention_matrix_grad.cu has the two kernels for heads of up
 * to 128 values, where the device has what it needs. */
#include "kernels/cuda/loops/attention.cuh"

namespace
{

template <int E> using sizes = tr_attention_sizes<E>;

/* Four tiles of rows, and one or two of scores; both kernels have tiles with as many rows as
 * columns. */
template <typename T, int E> size_t shared_bytes()
{
    using z = sizes<E>;
    static_assert((int)z::BACK_R == (int)z::BACK_C, "tiles of the kernels alike");
    const size_t side = 16 * z::BACK_R;
    return 4 * side * tr_attention_pitch<T, E>() * sizeof(T) +
           2 * side * (side + 1) * sizeof(float);
}

// cost: read 2x write 0x min 2x flops 2 shape 8x1024x768
template <typename T>
__global__ void __launch_bounds__(TR_ATTENTION_THREADS)
    attention_delta(tr_attention_of_type<T> a, size_t rows)
{
    const size_t row =
        (size_t)blockIdx.x * (TR_ATTENTION_THREADS / TR_WARP) + threadIdx.x / TR_WARP;
    if (row >= rows) return;
    const size_t D = a.s.D, head = row % a.s.heads, i = row / a.s.heads % a.s.queries;
    float sum = 0.0f;
    for (size_t d = threadIdx.x % TR_WARP; d < D; d += TR_WARP)
        sum += tr_load<T>(a.dy[row * D + d]) * tr_load<T>(a.y[row * D + d]);
    sum = tr_warp_sum(sum);
    if (threadIdx.x % TR_WARP == 0)
        a.delta[(row / a.s.heads / a.s.queries * a.s.heads + head) * a.s.queries + i] = sum;
}

/* A pair's probability after dropout, and the gradient of its score. */
template <typename T>
__device__ inline void slopes(const tr_attention_of_type<T> &a, const tr_attention_head &h,
                              int64_t i, int64_t j, bool sees, float lse, float delta,
                              float product, float dp, float *p, float *ds)
{
    *p = *ds = 0.0f;
    if (!sees) return;
    const float e = tr_exp_below<T>(tr_attention_score(a, h, product, i, j) - lse);
    const float keep = a.least > 0 ? tr_attention_keeps(a, h, i, j) : 1.0f;
    *p = e * keep;
    *ds = e * (dp * keep - delta) * a.s.scale;
}

// cost: read 4x write 1x min 5x flops 3072 shape 8x1024x768 per dq of 512 keys
template <typename T, int E>
__global__ void __launch_bounds__(TR_ATTENTION_THREADS)
    attention_grad_queries(tr_attention_of_type<T> a, size_t tiles)
{
    enum {
        R = sizes<E>::BACK_R,
        C = sizes<E>::BACK_C,
        P = tr_attention_pitch<T, E>(),
        W = 16 * C + 1
    };
    TR_SHARED_BYTES(room);
    float *w = reinterpret_cast<float *>(room);
    T *q = reinterpret_cast<T *>(w + 16 * R * W), *dy = q + 16 * R * P;
    T *k = dy + 16 * R * P, *v = k + 16 * C * P;
    const size_t D = a.s.D, head = blockIdx.x / tiles % a.s.heads;
    const size_t row = (tiles - 1 - blockIdx.x % tiles) * 16 * R;
    const tr_attention_head h = tr_attention_head_of(a, blockIdx.x / tiles / a.s.heads, head);
    const size_t left = a.s.queries - row, rows = left < 16 * R ? left : 16 * R;
    const size_t kv = head / (a.s.heads / a.s.kv_heads), width = a.s.heads * D;
    const int x = (int)threadIdx.x % TR_ATTENTION_SIDE, y = (int)threadIdx.x / TR_ATTENTION_SIDE;
    const T *keys = a.k + h.sample * a.s.keys * a.s.kv_pitch + kv * D;
    const T *values = a.v + h.sample * a.s.keys * a.s.kv_pitch + kv * D;
    float to[R][E] = {}, one[R], lse[R], delta[R];
    TR_UNROLL
    for (int r = 0; r < R; r++) {
        const size_t i = row + y * R + r < a.s.queries ? row + y * R + r : row;
        one[r] = 1.0f;
        lse[r] = a.lse[(h.sample * a.s.heads + head) * a.s.queries + i];
        delta[r] = a.delta[(h.sample * a.s.heads + head) * a.s.queries + i];
    }
    tr_attention_load<T, E, 16 * R>(
        q, a.q + (h.sample * a.s.queries + row) * a.s.q_pitch + head * D, a.s.q_pitch, rows, D);
    tr_attention_load<T, E, 16 * R>(dy, a.dy + (h.sample * a.s.queries + row) * width + head * D,
                                    width, rows, D);
    const int64_t first = tr_attention_sees(a, h, (int64_t)row).begin;
    const int64_t end = tr_attention_sees(a, h, (int64_t)(row + rows - 1)).end;
    for (int64_t column = first / (16 * C) * (16 * C); column < end; column += 16 * C) {
        const int64_t some = end - column; /* nothing is read behind what is seen */
        const size_t n = some < 16 * C ? (size_t)some : 16 * C;
        float s[R][C], dp[R][C];
        __syncthreads();
        tr_attention_load<T, E, 16 * C>(k, keys + (size_t)column * a.s.kv_pitch, a.s.kv_pitch, n,
                                        D);
        tr_attention_load<T, E, 16 * C>(v, values + (size_t)column * a.s.kv_pitch, a.s.kv_pitch, n,
                                        D);
        __syncthreads();
        tr_attention_product<T, E, R, C>(q, k, (int)D, s);
        tr_attention_product<T, E, R, C>(dy, v, (int)D, dp);
        TR_UNROLL
        for (int r = 0; r < R; r++) {
            const int64_t i = (int64_t)row + y * R + r;
            const tr_key_range seen = tr_attention_sees(a, h, i);
            TR_UNROLL
            for (int c = 0; c < C; c++) {
                const int64_t j = column + x + 16 * c;
                float p;
                slopes(a, h, i, j, j >= seen.begin && j < seen.end, lse[r], delta[r], s[r][c],
                       dp[r][c], &p, &w[(y * R + r) * W + x + 16 * c]);
            }
        }
        __syncthreads();
        tr_attention_gather<T, E, R, C>(w, k, (int)n, to);
    }
    tr_attention_write<T, E, R>(a.dq + (h.sample * a.s.queries + row) * a.s.q_pitch + head * D,
                                a.s.q_pitch, rows, D, to, one);
}

/* Rows are keys here, columns queries. */
// cost: read 4x write 2x min 6x flops 4096 shape 8x1024x768 per dk of 512 queries
template <typename T, int E>
__global__ void __launch_bounds__(TR_ATTENTION_THREADS)
    attention_grad_keys(tr_attention_of_type<T> a, size_t tiles)
{
    enum {
        R = sizes<E>::BACK_R,
        C = sizes<E>::BACK_C,
        P = tr_attention_pitch<T, E>(),
        W = 16 * C + 1
    };
    TR_SHARED_BYTES(room);
    float *w = reinterpret_cast<float *>(room), *dw = w + 16 * R * W;
    T *q = reinterpret_cast<T *>(dw + 16 * R * W), *dy = q + 16 * C * P;
    T *k = dy + 16 * C * P, *v = k + 16 * R * P;
    const size_t D = a.s.D, kv = blockIdx.x / tiles % a.s.kv_heads,
                 group = a.s.heads / a.s.kv_heads;
    const size_t sample = blockIdx.x / tiles / a.s.kv_heads, width = a.s.heads * D;
    const size_t row = blockIdx.x % tiles * 16 * R;
    const size_t left = a.s.keys - row, rows = left < 16 * R ? left : 16 * R;
    const int x = (int)threadIdx.x % TR_ATTENTION_SIDE, y = (int)threadIdx.x / TR_ATTENTION_SIDE;
    const size_t at = (sample * a.s.keys + row) * a.s.kv_pitch + kv * D;
    float dk[R][E] = {}, dv[R][E] = {}, one[R];
    TR_UNROLL
    for (int r = 0; r < R; r++) one[r] = 1.0f;
    tr_attention_load<T, E, 16 * R>(k, a.k + at, a.s.kv_pitch, rows, D);
    tr_attention_load<T, E, 16 * R>(v, a.v + at, a.s.kv_pitch, rows, D);
    for (size_t item = 0; item < group * ((a.s.queries + 16 * C - 1) / (16 * C)); item++) {
        const size_t column = item / group * 16 * C, head = kv * group + item % group;
        const tr_attention_head h = tr_attention_head_of(a, sample, head);
        const size_t some = a.s.queries - column, n = some < 16 * C ? some : 16 * C;
        float s[R][C], dp[R][C];
        /* the same for all threads of the block */
        if (tr_attention_sees(a, h, (int64_t)column).begin >= (int64_t)(row + rows) ||
            tr_attention_sees(a, h, (int64_t)(column + n - 1)).end <= (int64_t)row)
            continue;
        __syncthreads();
        tr_attention_load<T, E, 16 * C>(
            q, a.q + (sample * a.s.queries + column) * a.s.q_pitch + head * D, a.s.q_pitch, n, D);
        tr_attention_load<T, E, 16 * C>(
            dy, a.dy + (sample * a.s.queries + column) * width + head * D, width, n, D);
        __syncthreads();
        tr_attention_product<T, E, R, C>(k, q, (int)D, s);
        tr_attention_product<T, E, R, C>(v, dy, (int)D, dp);
        TR_UNROLL
        for (int c = 0; c < C; c++) {
            const size_t in = column + x + 16 * c, i = in < a.s.queries ? in : column;
            const size_t stat = (sample * a.s.heads + head) * a.s.queries + i;
            const tr_key_range seen = tr_attention_sees(a, h, (int64_t)i);
            const float lse = a.lse[stat], delta = a.delta[stat];
            TR_UNROLL
            for (int r = 0; r < R; r++) {
                const int64_t j = (int64_t)row + y * R + r;
                const int place = (y * R + r) * W + x + 16 * c;
                slopes(a, h, (int64_t)i, j, in == i && j >= seen.begin && j < seen.end, lse, delta,
                       s[r][c], dp[r][c], &w[place], &dw[place]);
            }
        }
        __syncthreads();
        tr_attention_gather<T, E, R, C>(w, dy, (int)n, dv);
        tr_attention_gather<T, E, R, C>(dw, q, (int)n, dk);
    }
    if (a.dk) tr_attention_write<T, E, R>(a.dk + at, a.s.kv_pitch, rows, D, dk, one);
    if (a.dv) tr_attention_write<T, E, R>(a.dv + at, a.s.kv_pitch, rows, D, dv, one);
}

template <typename T>
tr_status launch_delta(const tr_cuda_attention_args *args, cudaStream_t stream)
{
    const size_t rows = args->s.samples * args->s.queries * args->s.heads;
    return TR_LAUNCH(attention_delta<T>, tr_blocks(rows, TR_ATTENTION_THREADS / TR_WARP, INT32_MAX),
                     TR_ATTENTION_THREADS, 0, stream, tr_attention_typed<T>(args), rows);
}

template <typename T, int E>
tr_status launch(const tr_cuda_attention_args *args, cudaStream_t stream)
{
    enum { ROWS = 16 * sizes<E>::BACK_R };
    const tr_attention_of_type<T> a = tr_attention_typed<T>(args);
    const tr_attention_shape &s = args->s;
    const size_t shared = shared_bytes<T, E>();
    const size_t queries = (s.queries + ROWS - 1) / ROWS, keys = (s.keys + ROWS - 1) / ROWS;
    tr_status st = TR_OK;
    if (a.dq)
        TR_TRY(TR_LAUNCH(TR_KERNEL(attention_grad_queries<T, E>),
                         (unsigned)(s.samples * s.heads * queries), TR_ATTENTION_THREADS, shared,
                         stream, a, queries));
    if (a.dk || a.dv)
        TR_TRY(TR_LAUNCH(TR_KERNEL(attention_grad_keys<T, E>),
                         (unsigned)(s.samples * s.kv_heads * keys), TR_ATTENTION_THREADS, shared,
                         stream, a, keys));
out:
    return st;
}

template <typename T, int E> tr_status allow(size_t nbytes)
{
    const void *const kernels[] = {reinterpret_cast<const void *>(&attention_grad_queries<T, E>),
                                   reinterpret_cast<const void *>(&attention_grad_keys<T, E>)};
    tr_status st = TR_OK;
    for (const void *kernel : kernels)
        if (st == TR_OK)
            st =
                tr_cuda_check(cudaFuncSetAttribute(
                                  kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes),
                              "cudaFuncSetAttribute(attention.grad, shared memory)");
    return st;
}

} // namespace

tr_status tr_cuda_attention_grad_run(tr_dtype t, const tr_cuda_attention_args *a,
                                     cudaStream_t stream)
{
    tr_status st = TR_OK;
    if (a->s.samples == 0) return TR_OK;
    TR_BY_TYPE(t, T, TR_TRY(launch_delta<T>(a, stream)))
    if (a->matrix) return tr_attention_matrix_grad_run(t, a, stream);
    TR_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE(a->s.D, st = (launch<T, E>(a, stream))))
out:
    return st;
}

size_t tr_attention_grad_shared(tr_dtype t, size_t D)
{
    TR_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE(D, return (shared_bytes<T, E>())))
    return 0;
}

tr_status tr_attention_grad_allow(tr_dtype t, size_t D, size_t nbytes)
{
    TR_BY_TYPE(t, T, TR_ATTENTION_BY_SIZE(D, return (allow<T, E>(nbytes))))
    return TR_OK;
}
