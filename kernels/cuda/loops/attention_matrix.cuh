/* Attention of 16-bit types by matrix instructions: tiles of rows in shared memory, and a warp's products of them.
 *
 * A block has four warps, each 16 M of the block's rows. Of a tile of scores lane (g, t) of mma.cuh has, in s[m][n][r], row
 * 16 m + g + 8 (r / 2) of its warp's and column 8 n + 2t + r % 2; of rows of a head's D <= 16 E values, in o[m][e][r], the
 * same with value 8 e + 2t + r % 2. Rows in shared memory are 16 bytes longer than their values, so that the 8 rows of one
 * 8 x 8 matrix lie in different banks; what lies beyond the last row or the last value is 0. */
#ifndef TR_CUDA_ATTENTION_MATRIX_CUH
#define TR_CUDA_ATTENTION_MATRIX_CUH

#include "kernels/cuda/loops/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum { TR_MATRIX_WARPS = 4, TR_MATRIX_THREADS = TR_MATRIX_WARPS * TR_WARP };

/* Elements from one row in shared memory to the next. */
template <int E> __host__ __device__ constexpr int tr_matrix_pitch()
{
    return 16 * E + 8;
}

/* All rows of all operands begin at a multiple of 16 bytes: they are copied and written by so many. */
template <typename T> static inline bool tr_matrix_aligned(const tr_attention_of_type<T> &a)
{
    const size_t each = 16 / sizeof(T);
    const void *const all[] = {a.q, a.k, a.v, a.y, a.dy, a.dq, a.dk, a.dv};
    bool aligned = a.s.D % each == 0 && a.s.q_pitch % each == 0 && a.s.kv_pitch % each == 0;
    for (const void *p : all) aligned = aligned && tr_is_aligned(p, 16);
    return aligned;
}

__device__ inline int tr_matrix_lane()
{
    return (int)threadIdx.x % TR_WARP;
}

/* Begins to bring `rows` rows of D values, of ROWS in shared memory. They are there after tr_async_wait and a barrier. */
template <typename T, int E, int ROWS>
__device__ inline void tr_matrix_fetch(T *to, const T *from, size_t pitch, size_t rows, size_t D,
                                       bool aligned)
{
    constexpr int P = tr_matrix_pitch<E>(), EACH = 8, CHUNKS = 16 * E / EACH;
    TR_UNROLL
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += TR_MATRIX_THREADS) {
        const size_t r = (size_t)(i / CHUNKS), d = (size_t)(i % CHUNKS * EACH);
        const T *row = from + (r < rows ? r : 0) * pitch;
        T *place = to + r * P + d;
        if (aligned) {
            tr_async_copy(place, row + (d < D ? d : 0), r < rows && d < D);
        } else {
            tr_pack<T, EACH> some;
            for (size_t e = 0; e < EACH; e++)
                some.v[e] = r < rows && d + e < D ? row[d + e] : tr_store<T>(0.0f);
            *reinterpret_cast<tr_pack<T, EACH> *>(place) = some;
        }
    }
}

/* s = products of the warp's rows and of 8 N columns' rows. */
template <typename T, int E, int M, int N>
__device__ inline void tr_matrix_product(const T *rows, const T *columns, float (&s)[M][N][4])
{
    constexpr int P = tr_matrix_pitch<E>();
    const int l = tr_matrix_lane();
    const T *row = rows + l % 16 * P + l / 16 * 8;
    const T *column = columns + (l % 8 + l / 16 * 8) * P + l / 8 % 2 * 8;
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int n = 0; n < N; n++) {
            TR_UNROLL
            for (int r = 0; r < 4; r++) s[m][n][r] = 0.0f;
        }
    }
    TR_UNROLL
    for (int k = 0; k < E; k++) {
        unsigned x[M][4], y[4];
        TR_UNROLL
        for (int m = 0; m < M; m++) tr_ldmatrix(x[m], row + 16 * m * P + 16 * k);
        TR_UNROLL
        for (int n = 0; n < N; n += 2) {
            tr_ldmatrix(y, column + 8 * n * P + 16 * k);
            TR_UNROLL
            for (int m = 0; m < M; m++) {
                tr_mma<T>(s[m][n], x[m], y[0], y[1]);
                tr_mma<T>(s[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* o += w, rounded, times the rows of its 8 N columns. */
template <typename T, int E, int M, int N>
__device__ inline void tr_matrix_gather(const float (&w)[M][N][4], const T *rows,
                                        float (&o)[M][2 * E][4])
{
    constexpr int P = tr_matrix_pitch<E>();
    const int l = tr_matrix_lane();
    const T *row = rows + l % 16 * P + l / 16 * 8;
    TR_UNROLL
    for (int n = 0; n < N; n += 2) {
        unsigned x[M][4], y[4];
        TR_UNROLL
        for (int m = 0; m < M; m++) {
            TR_UNROLL
            for (int r = 0; r < 4; r++)
                x[m][r] = tr_pair<T>(w[m][n + r / 2][r % 2 * 2], w[m][n + r / 2][r % 2 * 2 + 1]);
        }
        TR_UNROLL
        for (int e = 0; e < 2 * E; e += 2) {
            tr_ldmatrix_transposed(y, row + 8 * n * P + 8 * e);
            TR_UNROLL
            for (int m = 0; m < M; m++) {
                tr_mma<T>(o[m][e], x[m], y[0], y[1]);
                tr_mma<T>(o[m][e + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Over the four lanes that share rows. */
__device__ inline float tr_matrix_row_sum(float v)
{
    v += __shfl_xor_sync(TR_ALL_LANES, v, 1);
    return v + __shfl_xor_sync(TR_ALL_LANES, v, 2);
}

__device__ inline float tr_matrix_row_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(TR_ALL_LANES, v, 1));
    return fmaxf(v, __shfl_xor_sync(TR_ALL_LANES, v, 2));
}

/* The warp's `rows` rows of D values, times `scale` of each, by way of `room` for its 16 M rows that no other warp looks at. */
template <typename T, int E, int M>
__device__ inline void tr_matrix_write(T *to, size_t pitch, size_t rows, size_t D, bool aligned,
                                       const float (&o)[M][2 * E][4], const float (&scale)[M][2],
                                       T *room)
{
    constexpr int P = tr_matrix_pitch<E>(), EACH = 8, CHUNKS = 16 * E / EACH;
    const int l = tr_matrix_lane();
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int e = 0; e < 2 * E; e++) {
            TR_UNROLL
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<unsigned *>(room + (16 * m + 8 * h + l / 4) * P + 8 * e +
                                              l % 4 * 2) =
                    tr_pair<T>(o[m][e][2 * h] * scale[m][h], o[m][e][2 * h + 1] * scale[m][h]);
        }
    }
    __syncwarp();
    for (int i = l; i < 16 * M * CHUNKS; i += TR_WARP) {
        const size_t r = (size_t)(i / CHUNKS), d = (size_t)(i % CHUNKS * EACH);
        if (r >= rows || d >= D) continue;
        const auto some = *reinterpret_cast<const tr_pack<T, EACH> *>(room + r * P + d);
        if (aligned) {
            tr_put(to + r * pitch + d, some);
        } else {
            for (size_t e = 0; e < EACH && d + e < D; e++) to[r * pitch + d + e] = some.v[e];
        }
    }
}

/* Runs `...` with T being the 16-bit type. */
#define TR_MATRIX_BY_TYPE(dtype, T, ...)                                                           \
    if ((dtype) == TR_BF16) {                                                                      \
        using T = __nv_bfloat16;                                                                   \
        __VA_ARGS__;                                                                               \
    } else {                                                                                       \
        using T = __half;                                                                          \
        __VA_ARGS__;                                                                               \
    }

#endif
