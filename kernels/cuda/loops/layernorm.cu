/* Layer normalization, forward (Ba, Kiros, Hinton 2016), and RMSNorm (Zhang and Sennrich 2019),
 * which is the same with 0 in the mean's place.
 *
 * Bytes: x once, y once, and 8 bytes of statistics a row: the minimum. Weight and bias come from
 * the caches. Rows beyond 8192 values that do not fit into shared memory (about 110,000 bf16 values
 * on an H100) are read twice, mostly from the second-level cache.
 *
 * Statistics: a first mean, then the deviations from it, which also tell how far off it was; wide
 * rows do that by chunk and merge means and squared deviations (Chan, Golub, LeVeque 1979) in
 * float64. */
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

struct affine {
    const float *weight, *bias; /* bias NULL: none */
    bool centered;
};

/* v -> (v - mean) * rstd * weight + bias, for a pack at `at`. */
template <int V>
__device__ inline void normalize(float (&v)[V], int at, float mean, float rstd, const affine &a)
{
    const tr_pack<float, V> w = *reinterpret_cast<const tr_pack<float, V> *>(a.weight + at);
    tr_pack<float, V> b = {};
    if (a.bias) b = *reinterpret_cast<const tr_pack<float, V> *>(a.bias + at);
    TR_UNROLL
    for (int j = 0; j < V; j++) v[j] = (v[j] - mean) * rstd * w.v[j] + b.v[j];
}

/* Rows of more than 1024 values (512 of float32) have WIDE packs a thread, and so twice as many
 * loads under way at a time and half as many warps at a block's barriers; they need not fetch the
 * next row ahead. */
enum { WIDE = 8 };

template <int V, int K, bool BLOCK> __host__ __device__ constexpr int threads_of()
{
    return K == (int)WIDE && V == 8 ? 128 : tr_rows_threads<V, BLOCK>();
}
template <int V, int K> __host__ __device__ constexpr int blocks_of()
{
    return V == 1 ? 1 : K < (int)WIDE ? 3 : V == 8 ? 4 : 2;
}

// cost: read 1x write 1x min 2x flops 9 shape 8192x1024
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(threads_of<V, K, BLOCK>(), blocks_of<V, K>())
    layernorm_held(const T *x, affine a, double eps, T *y, float *stats, size_t rows, int D,
                   double each, int some)
{
    const int lanes = tr_rows_lanes<V, K, BLOCK>(some);
    TR_SHARED(double, part, TR_WARP);
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes, step = gridDim.x * per_block;
    const size_t first_row = blockIdx.x * per_block, mine = BLOCK ? 0 : threadIdx.x / lanes;
    constexpr bool ahead = !BLOCK && V * K <= 32; /* a thread's piece is small */
    tr_raw<T, V, K> next = {}; /* on its way while the row before it is reduced and written */
    if (ahead)
        tr_piece<T, V, K>(first_row + mine < rows ? D : 0, 0, team.lane, lanes)
            .fetch(x + (first_row + mine) * D, next);
    for (size_t base = first_row; base < rows; base += step) {
        const size_t row = base + mine, later = row + step;
        const bool live = row < rows;
        const tr_piece<T, V, K> at(live ? D : 0, 0, team.lane, lanes);
        tr_raw<T, V, K> held = next;
        float sum = 0.0f, off = 0.0f, squares = 0.0f;
        if (ahead)
            tr_piece<T, V, K>(later < rows ? D : 0, 0, team.lane, lanes).fetch(x + later * D, next);
        else
            at.fetch(x + row * D, held);
        at.packs_of(held, [&](float(&v)[V], int) {
            TR_UNROLL
            for (int j = 0; j < V; j++) sum += v[j];
        });
        const float first = a.centered ? (float)(team.sum(sum) * each) : 0.0f;
        at.packs_of(held, [&](float(&v)[V], int) {
            TR_UNROLL
            for (int j = 0; j < V; j++) {
                const float d = v[j] - first;
                off += d;
                squares += d * d;
            }
        });
        const double shift = a.centered ? team.sum(off) * each : 0.0;
        const double variance = team.sum(squares) * each - shift * shift;
        const float mean = (float)(first + shift);
        const float rstd = 1.0f / sqrtf((float)((variance < 0.0 ? 0.0 : variance) + eps));
        at.packs_of(held, [&](float(&v)[V], int i) {
            normalize<V>(v, i, mean, rstd, a);
            tr_put_as(y + row * D + i, v);
        });
        if (!live || team.lane != 0 || !stats) continue;
        stats[2 * row] = mean;
        stats[2 * row + 1] = rstd;
    }
}

/* Count, mean and sum of squared deviations of what a thread has seen. */
struct moments {
    double n, mean, m2;
};

template <typename T, int V, int K>
__device__ void merge(moments &m, tr_piece<T, V, K> &piece, bool centered)
{
    float sum = 0.0f, off = 0.0f, squares = 0.0f;
    int count = 0;
    piece.each([&](float &v, int) {
        sum += v;
        count++;
    });
    if (count == 0) return;
    const float first = centered ? sum / (float)count : 0.0f;
    piece.each([&](float &v, int) {
        const float d = v - first;
        off += d;
        squares += d * d;
    });
    const double shift = centered ? (double)off / count : 0.0, mean = first + shift;
    const double delta = mean - m.mean, n = m.n + count, share = count / n;
    m.m2 += (double)squares - (double)off * shift + delta * delta * m.n * share;
    m.mean += delta * share;
    m.n = n;
}

// cost: read 1x write 1x min 2x flops 12 shape 1024x32768
template <typename T, int V, int K>
__global__ void __launch_bounds__(TR_ROWS_LONG_THREADS, 2)
    layernorm_long(const T *x, affine a, double eps, T *y, float *stats, size_t rows, int D,
                   bool kept)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room);
    T *keep = kept ? reinterpret_cast<T *>(room) : nullptr;
    const int size = (int)blockDim.x;
    const tr_team<true> team(size, part);
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *xr = x + row * D;
        moments m = {0.0, 0.0, 0.0};
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> piece(D, from, team.lane, size);
            piece.read(xr, keep);
            merge(m, piece, a.centered);
        }
        const double mean = team.sum(m.n * m.mean) / D, off = m.mean - mean;
        const double variance = team.sum(m.m2 + m.n * off * off) / D;
        const float rstd = 1.0f / sqrtf((float)(variance + eps));
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> piece(D, from, team.lane, size);
            piece.read(keep ? keep : xr);
            piece.packs([&](float(&v)[V], int at) { normalize<V>(v, at, (float)mean, rstd, a); });
            piece.write(y + row * D);
        }
        if (team.lane != 0 || !stats) continue;
        stats[2 * row] = (float)mean;
        stats[2 * row + 1] = rstd;
    }
}

template <typename T, int V>
tr_status launch(const T *x, const affine &a, double eps, T *y, float *stats, size_t rows, size_t D,
                 size_t keep, cudaStream_t stream)
{
    const tr_rows_plan p = tr_rows_of<V>(D);
    const unsigned grid = tr_rounds(rows, p.rows);
    const size_t room = p.kind == TR_ROWS_LONG ? tr_rows_keep<T>(D, 1, keep) : 0;
    constexpr int many = V == 1 ? (int)tr_rows_packs<V>::BLOCK : (int)WIDE;
    const size_t warp = TR_WARP * V * many; /* values of a warp of a block */
    const unsigned block = (unsigned)((D + warp - 1) / warp * TR_WARP);
    switch (p.kind) {
    case TR_ROWS_WARP8:
        return TR_LAUNCH(TR_KERNEL(layernorm_held<T, V, tr_rows_packs<V>::FEW, false>), grid,
                         p.block, 0, stream, x, a, eps, y, stats, rows, (int)D, 1.0 / (int)D,
                         p.lanes);
    case TR_ROWS_WARP32:
        return TR_LAUNCH(TR_KERNEL(layernorm_held<T, V, tr_rows_packs<V>::WARP, false>), grid,
                         p.block, 0, stream, x, a, eps, y, stats, rows, (int)D, 1.0 / (int)D,
                         p.lanes);
    case TR_ROWS_BLOCK:
        return TR_LAUNCH(TR_KERNEL(layernorm_held<T, V, many, true>), grid, block, 0, stream, x, a,
                         eps, y, stats, rows, (int)D, 1.0 / (int)D, (int)block);
    default:
        return TR_LAUNCH(TR_KERNEL(layernorm_long<T, V, tr_rows_packs<V>::LONG>), grid, p.block,
                         room, stream, x, a, eps, y, stats, rows, (int)D, room > 0);
    }
}

template <typename T, int V> struct long_kernels {
    const void *at[1] = {
        reinterpret_cast<const void *>(&layernorm_long<T, V, tr_rows_packs<V>::LONG>)};
};

} // namespace

tr_status tr_cuda_layernorm_ready(tr_dtype t, size_t keep)
{
    return tr_rows_allow<long_kernels>(t, keep, "cudaFuncSetAttribute(layernorm, shared memory)");
}

tr_status tr_cuda_layernorm_run(tr_dtype t, const void *x, const float *weight, const float *bias,
                                double eps, bool centered, void *y, float *stats, size_t rows,
                                size_t D, size_t keep, cudaStream_t stream)
{
    const affine a = {weight, bias, centered};
    const bool aligned = tr_is_aligned(x, 16) && tr_is_aligned(y, 16) &&
                         tr_is_aligned(weight, 32) && tr_is_aligned(bias, 32);
    if (rows == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        const T *from = static_cast<const T *>(x);
        T *to = static_cast<T *>(y);
        return aligned && D % V == 0 ? launch<T, V>(from, a, eps, to, stats, rows, D, keep, stream)
                                     : launch<T, 1>(from, a, eps, to, stats, rows, D, keep, stream);
    })
    return TR_OK;
}
