/* Attention of 16-bit types by matrix instructions: tiles of rows in shared memory, and a warp's
 * products of them.
 *
 * A block has four warps, each 16 M of the block's rows. Of a tile of scores lane (g, t) of mma.cuh
 * has, in s[m][n][r], row 16 m + g + 8 (r / 2) of its warp's and column 8 n + 2t + r % 2; of rows
 * of a head's D <= 16 E values, in o[m][e][r], the same with value 8 e + 2t + r % 2. Rows in shared
 * memory are 16 bytes longer than their values, so that the 8 rows of one 8 x 8 matrix lie in
 * different banks; what lies beyond the last row or the last value is 0. */
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

/* All rows of all operands begin at a multiple of 16 bytes: they are copied and written by so
 * many. */
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

/* Begins to bring `rows` rows of D values, of ROWS in shared memory. They are there after
 * tr_async_wait and a barrier. */
template <typename T, int E, int ROWS>
__device__ inline void tr_matrix_fetch(T *to, const T *from, size_t pitch, int rows, size_t D,
                                       bool aligned)
{
    constexpr int P = tr_matrix_pitch<E>(), EACH = 8, CHUNKS = 16 * E / EACH;
    TR_UNROLL
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += TR_MATRIX_THREADS) {
        const int r = i / CHUNKS;
        const size_t d = (size_t)(i % CHUNKS * EACH);
        const T *row = from + (size_t)(r < rows ? r : 0) * pitch;
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

/* Columns that a row sees. There are less than 2^31 of either. */
struct tr_matrix_range {
    int begin, end;
};

template <typename T>
__device__ inline tr_matrix_range tr_matrix_sees(const tr_attention_of_type<T> &a,
                                                 const tr_attention_head &h, int i)
{
    const tr_key_range r = tr_attention_sees(a, h, i);
    return {(int)r.begin, (int)r.end};
}

/* A warp's part of a block's rows, and what its first and its last row see: both ends grow from row
 * to row. */
struct tr_matrix_part {
    int first, rows; /* those that count */
    tr_matrix_range low, high;
    __device__ bool misses(int column, int n) const
    {
        return column >= high.end || column + n <= low.begin;
    }
    __device__ bool sees_all(int column, int n) const
    {
        return column >= high.begin && column + n <= low.end;
    }
};

/* Of a block's `rows` rows from `row` on; sees(row): a tr_matrix_range. A part without a row that
 * counts misses all, one with a row that does not sees nothing as a whole. */
template <int M, typename F>
__device__ inline tr_matrix_part tr_matrix_part_of(int row, int rows, const F &sees)
{
    const int first = (int)threadIdx.x / TR_WARP * 16 * M, mine = min(rows - first, 16 * M);
    if (mine <= 0) return {row + first, 0, {0, 0}, {0, 0}};
    tr_matrix_part part = {row + first, mine, sees(row + first), sees(row + first + mine - 1)};
    if (mine < 16 * M) part.low.end = 0;
    return part;
}

/* Brings tile i of n to one of PLACES places, and begins with the one after it where there are two:
 * `fetch(tile, place)`. All threads of the block come here, once they are done with the tile
 * before. Returns the place. */
template <int PLACES, typename F>
__device__ inline int tr_matrix_next_tile(int i, int n, const F &fetch)
{
    static_assert(PLACES == 1 || PLACES == 2, "one place, or two in turns");
    if (PLACES == 1) __syncthreads(); /* the tile before is read */
    if (PLACES == 1 || i == 0) fetch(i, 0);
    tr_async_wait();
    __syncthreads(); /* this tile is there, and the one before is read */
    if (PLACES == 2 && i + 1 < n) fetch(i + 1, (i + 1) % 2);
    return PLACES == 2 ? i % 2 : 0;
}

/* Off each score `slope` times the distance. `row`, `column`: of the lane's first one. */
template <int M, int N>
__device__ inline void tr_matrix_distance(float slope, int row, int column, float (&s)[M][N][4])
{
    const int at = row - column;
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int n = 0; n < N; n++) {
            TR_UNROLL
            for (int r = 0; r < 4; r++)
                s[m][n][r] -= slope * fabsf((float)(at + 16 * m + r / 2 * 8 - 8 * n - r % 2));
        }
    }
}

/* unseen(m, n, r) for each of a lane's scores that its row does not see. */
template <int M, int N, typename F, typename U>
__device__ inline void tr_matrix_unseen(const F &sees, int row, int column, const U &unseen)
{
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        TR_UNROLL
        for (int side = 0; side < 2; side++) {
            const tr_matrix_range seen = sees(row + 16 * m + 8 * side);
            const int begin = seen.begin - column, end = seen.end - column;
            TR_UNROLL
            for (int n = 0; n < N; n++) {
                TR_UNROLL
                for (int c = 0; c < 2; c++)
                    if (8 * n + c < begin || 8 * n + c >= end) unseen(m, n, 2 * side + c);
            }
        }
    }
}

/* Whether a lane's score is kept: bit 4 n + r of word m. They are drawn before the products, whose
 * registers they would want. */
template <int N> __device__ inline bool tr_matrix_kept(unsigned bits, int n, int r)
{
    static_assert(4 * N <= 32, "one word");
    return bits >> (4 * n + r) & 1;
}

/* Bit w: whether key j / 4 * 4 + w of query i is kept. */
template <typename T>
__device__ inline unsigned tr_matrix_draw_four(const tr_attention_of_type<T> &a,
                                               const tr_attention_head &h, int i, int j)
{
    const tr_philox r = tr_device_philox(a.key, h.row + (uint64_t)i, (uint32_t)(j / 4));
    unsigned four = 0;
    TR_UNROLL
    for (int w = 0; w < 4; w++) four |= (unsigned)(r.v[w] >> 8 >= a.least) << w;
    return four;
}

/* Which probabilities are kept, where rows are queries. A draw is for four neighbouring keys of a
 * query, which two lanes have: each draws for one of their two rows. */
template <int N, typename T, int M>
__device__ inline void tr_matrix_draw(const tr_attention_of_type<T> &a, const tr_attention_head &h,
                                      int query, int key, unsigned (&bits)[M])
{
    const int odd = tr_matrix_lane() % 2;
    TR_UNROLL
    for (int m = 0; m < M; m++) {
        bits[m] = 0;
        TR_NO_UNROLL
        for (int n = 0; n < N; n++) {
            unsigned some = tr_matrix_draw_four(a, h, query + 16 * m + 8 * odd, key + 8 * n)
                            << 4 * odd;
            some |= __shfl_xor_sync(TR_ALL_LANES, some, 1);
            some >>= 2 * odd;
            bits[m] |= ((some & 3) | (some >> 2 & 12)) << 4 * n;
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

/* The warp's `rows` rows of D values, times `scale` of each, by way of `room` for its 16 M rows
 * that no other warp looks at. */
template <typename T, int E, int M>
__device__ inline void tr_matrix_write(T *to, size_t pitch, int rows, size_t D, bool aligned,
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
        const int r = i / CHUNKS;
        const size_t d = (size_t)(i % CHUNKS * EACH), at = (size_t)r * pitch + d;
        if (r >= rows || d >= D) continue;
        const auto some = *reinterpret_cast<const tr_pack<T, EACH> *>(room + r * P + d);
        if (aligned) {
            tr_put(to + at, some);
        } else {
            for (size_t e = 0; e < EACH && d + e < D; e++) to[at + e] = some.v[e];
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
