/* What attention's kernels share: tiles of rows in shared memory, and products of them.
 *
 * A block has 256 threads, as 16 x 16. Of a tile of scores, 16 R rows by 16 C columns, thread (y,
 * x) has rows y R + r and columns x + 16 c; of rows of a head's D <= 16 E values, columns x + 16 e.
 * The 16 threads of a row are half of a warp. Rows in shared memory are as far apart as keeps 16
 * neighbouring ones in different banks; what lies beyond the last row or the last value is 0. */
#ifndef TR_CUDA_ATTENTION_CUH
#define TR_CUDA_ATTENTION_CUH

#include "kernels/cuda/loops/attention.h"
#include "kernels/cuda/loops/philox.cuh"

enum { TR_ATTENTION_THREADS = 256, TR_ATTENTION_SIDE = 16 };

/* Tiles by a head's values: R, C of forward and backward kernels. */
template <int E> struct tr_attention_sizes {
    enum {
        PITCH_EXTRA = 1,
        R = 4,
        C = E <= 4 ? 4 : 2,
        BACK_R = E <= 4 ? 4 : 2,
        BACK_C = E <= 4 ? 4 : 2,
        D = 16 * E
    };
};

/* Elements from one row in shared memory to the next: an odd number of words. */
template <typename T, int E> __host__ __device__ constexpr int tr_attention_pitch()
{
    return 16 * E + (int)(4 / sizeof(T));
}

template <typename T> struct tr_attention_of_type {
    tr_attention_shape s;
    tr_attention_attrs a;
    const T *q, *k, *v, *dy;
    T *y, *dq, *dk, *dv;
    const int32_t *lengths;
    float *lse, *delta;
    uint64_t key, ordinal;
    const tr_control *control;
    uint32_t least; /* of 24 bits: what is below it is dropped */
    float keep;
};

/* Keys of a sample. */
template <typename T>
__device__ inline int64_t tr_attention_length(const tr_attention_of_type<T> &a, size_t sample)
{
    const int64_t keys = (int64_t)a.s.keys;
    if (!a.lengths) return keys;
    const int64_t n = a.lengths[sample];
    return n < 0 ? 0 : n < keys ? n : keys;
}

/* One head of one sample. */
struct tr_attention_head {
    size_t sample, head; /* of queries */
    int64_t length;
    float slope;
    uint64_t row; /* dropout: index of its first query */
};

template <typename T>
__device__ inline tr_attention_head tr_attention_head_of(const tr_attention_of_type<T> &a,
                                                         size_t sample, size_t head)
{
    const uint64_t ordinal = a.control ? a.control->in.ordinal : a.ordinal;
    return {sample, head, tr_attention_length(a, sample),
            a.a.alibi ? exp2f(tr_attention_slope_power((int)head, (int)a.s.heads)) : 0.0f,
            tr_attention_draw(ordinal + sample, a.s.heads, head, 0)};
}

/* Of key j for query i: 0 or 1 / (1 - p). */
template <typename T>
__device__ inline float tr_attention_keeps(const tr_attention_of_type<T> &a,
                                           const tr_attention_head &h, int64_t i, int64_t j)
{
    const tr_philox r = tr_device_philox(a.key, h.row + (uint64_t)i, (uint32_t)(j / 4));
    const int w = (int)(j % 4);
    const uint32_t bits = w == 0 ? r.v[0] : w == 1 ? r.v[1] : w == 2 ? r.v[2] : r.v[3];
    return bits >> 8 >= a.least ? a.keep : 0.0f;
}

/* Of a product of query i and key j. */
template <typename T>
__device__ inline float tr_attention_score(const tr_attention_of_type<T> &a,
                                           const tr_attention_head &h, float product, int64_t i,
                                           int64_t j)
{
    const int64_t distance = i < j ? j - i : i - j;
    return product * a.s.scale - h.slope * (float)distance;
}

template <typename T>
__device__ inline tr_key_range tr_attention_sees(const tr_attention_of_type<T> &a,
                                                 const tr_attention_head &h, int64_t i)
{
    return tr_attention_keys(i, h.length, a.a.causal, a.a.window);
}

/* `rows` rows of D values to ROWS of shared memory. */
template <typename T, int E, int ROWS>
__device__ inline void tr_attention_load(T *to, const T *from, size_t pitch, size_t rows, size_t D)
{
    constexpr int P = tr_attention_pitch<T, E>();
    const int lane = (int)threadIdx.x % TR_WARP;
    for (int r = (int)threadIdx.x / TR_WARP; r < ROWS; r += TR_ATTENTION_THREADS / TR_WARP)
        for (int d = lane; d < 16 * E; d += TR_WARP)
            to[r * P + d] =
                (size_t)r < rows && (size_t)d < D ? from[(size_t)r * pitch + d] : tr_store<T>(0.0f);
}

/* of[r][c] = product of rows y R + r of a and x + 16 c of b. */
template <typename T, int E, int R, int C>
__device__ inline void tr_attention_product(const T *a, const T *b, int D, float (&of)[R][C])
{
    constexpr int P = tr_attention_pitch<T, E>();
    const T *row = a + (threadIdx.x / TR_ATTENTION_SIDE) * R * P;
    const T *column = b + (threadIdx.x % TR_ATTENTION_SIDE) * P;
    TR_UNROLL
    for (int r = 0; r < R; r++) {
        TR_UNROLL
        for (int c = 0; c < C; c++) of[r][c] = 0.0f;
    }
    TR_NO_UNROLL
    for (int d = 0; d < D; d++) {
        float x[R], y[C];
        TR_UNROLL
        for (int r = 0; r < R; r++) x[r] = tr_load<T>(row[r * P + d]);
        TR_UNROLL
        for (int c = 0; c < C; c++) y[c] = tr_load<T>(column[c * TR_ATTENTION_SIDE * P + d]);
        TR_UNROLL
        for (int r = 0; r < R; r++) {
            TR_UNROLL
            for (int c = 0; c < C; c++) of[r][c] += x[r] * y[c];
        }
    }
}

/* to[r][e] += sum over n columns j of w[y R + r][j] * rows[j][x + 16 e]; w's rows are 16 C + 1
 * apart. */
template <typename T, int E, int R, int C>
__device__ inline void tr_attention_gather(const float *w, const T *rows, int n, float (&to)[R][E])
{
    constexpr int P = tr_attention_pitch<T, E>(), W = 16 * C + 1;
    const float *mine = w + (threadIdx.x / TR_ATTENTION_SIDE) * R * W;
    const T *column = rows + threadIdx.x % TR_ATTENTION_SIDE;
    TR_NO_UNROLL
    for (int j = 0; j < n; j++) {
        float x[R];
        TR_UNROLL
        for (int r = 0; r < R; r++) x[r] = mine[r * W + j];
        TR_UNROLL
        for (int e = 0; e < E; e++) {
            const float v = tr_load<T>(column[j * P + e * TR_ATTENTION_SIDE]);
            TR_UNROLL
            for (int r = 0; r < R; r++) to[r][e] += x[r] * v;
        }
    }
}

/* Over the 16 threads of a row. */
__device__ inline float tr_attention_row_sum(float v)
{
    for (int offset = TR_ATTENTION_SIDE / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(TR_ALL_LANES, v, offset);
    return v;
}

__device__ inline float tr_attention_row_max(float v)
{
    for (int offset = TR_ATTENTION_SIDE / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(TR_ALL_LANES, v, offset);
        v = other > v ? other : v;
    }
    return v;
}

/* Rows y R + r below `rows`, of D values, times `scale`. */
template <typename T, int E, int R>
__device__ inline void tr_attention_write(T *to, size_t pitch, size_t rows, size_t D,
                                          const float (&v)[R][E], const float (&scale)[R])
{
    const size_t x = threadIdx.x % TR_ATTENTION_SIDE;
    TR_UNROLL
    for (int r = 0; r < R; r++) {
        const size_t row = threadIdx.x / TR_ATTENTION_SIDE * R + r;
        TR_UNROLL
        for (int e = 0; e < E; e++)
            if (row < rows && x + 16 * e < D)
                to[row * pitch + x + 16 * e] = tr_store<T>(v[r][e] * scale[r]);
    }
}

/* Runs `...` with E being what heads of D values need, up to 128 of them. */
#define TR_ATTENTION_BY_SIZE_TO_128(D, ...)                                                        \
    if ((D) <= 32) {                                                                               \
        constexpr int E = 2;                                                                       \
        __VA_ARGS__;                                                                               \
    } else if ((D) <= 64) {                                                                        \
        constexpr int E = 4;                                                                       \
        __VA_ARGS__;                                                                               \
    } else {                                                                                       \
        constexpr int E = 8;                                                                       \
        __VA_ARGS__;                                                                               \
    }

/* Of any. */
#define TR_ATTENTION_BY_SIZE(D, ...)                                                               \
    if ((D) > 128) {                                                                               \
        constexpr int E = 16;                                                                      \
        __VA_ARGS__;                                                                               \
    } else                                                                                         \
        TR_ATTENTION_BY_SIZE_TO_128(D, __VA_ARGS__)

template <typename T>
static inline tr_attention_of_type<T> tr_attention_typed(const tr_cuda_attention_args *a)
{
    return {a->s,
            a->a,
            static_cast<const T *>(a->q),
            static_cast<const T *>(a->k),
            static_cast<const T *>(a->v),
            static_cast<const T *>(a->dy),
            static_cast<T *>(a->y),
            static_cast<T *>(a->dq),
            static_cast<T *>(a->dk),
            static_cast<T *>(a->dv),
            a->lengths,
            a->lse,
            a->delta,
            a->key,
            a->ordinal,
            a->control,
            (uint32_t)ceil((double)(float)a->a.dropout * 0x1p24),
            (float)(1 / (1 - a->a.dropout))};
}

/* attention_grad.cu: */
size_t tr_attention_grad_shared(tr_dtype t, size_t D);
tr_status tr_attention_grad_allow(tr_dtype t, size_t D, size_t nbytes);

/* attention_matrix.cu, of 16-bit types: */
tr_status tr_attention_matrix_run(tr_dtype t, const tr_cuda_attention_args *a, cudaStream_t stream);
size_t tr_attention_matrix_shared(size_t D);
const void *tr_attention_matrix_kernel(tr_dtype t, size_t D);
/* attention_matrix_grad.cu; SIZE_MAX: not for so many values. */
tr_status tr_attention_matrix_grad_run(tr_dtype t, const tr_cuda_attention_args *a,
                                       cudaStream_t stream);
size_t tr_attention_matrix_grad_shared(size_t D);
tr_status tr_attention_matrix_grad_allow(tr_dtype t, size_t D);

#endif
