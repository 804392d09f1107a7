/* Layer normalization, backward: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy *
 * weight; dweight = sum over rows of dy * xhat, dbias = sum of dy. Of RMSNorm the mean of g does not count.
 *
 * Rows of up to 8192 values (4096 one by one): one kernel reads dy and x once and writes dx once
 * (the minimum); a thread stays with its columns over all rows that its block takes, sums dweight
 * and dbias in registers, and keeps its pieces of both rows as they were read. With 32 values a
 * thread a row of 1024 is a warp's, and what a row costs beside its values (two sums over its threads,
 * its statistics) is shared by many: with 8 values, that was half of all instructions. Each
 * block leaves one row of partial sums; a second kernel adds them in order. They are kept to some 17
 * MB by the number of blocks, and do not leave the second-level cache. Wider rows: one kernel for
 * the sums, one for dx, 5 instead of 3. Sums over columns are in float32 over a block's rows, then
 * in float64. */
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

/* All threads of a launch together, which bounds the partial sums: what an H100 holds of threads with
 * few values and of those with 32, which have 168 registers. COLUMNS, DEPTH: of layernorm_grad_sum. */
enum { THREADS = 131072, HEAVY_THREADS = 384 * 132, COLUMNS = 32, DEPTH = 32 };

/* Threads of a block at most, of the kernel for rows that fit: with K packs of V a thread. */
template <int V, int K, bool BLOCK> __host__ __device__ constexpr int threads_of()
{
    return V * K == 32 ? (BLOCK ? 256 : 128)
           : BLOCK     ? (int)TR_ROWS_BLOCK_THREADS
                       : (int)TR_ROWS_THREADS;
}

struct grad_plan {
    tr_rows_plan rows;
    unsigned blocks; /* rows of partial sums, 2 D each */
    bool heavy;      /* 32 values a thread, else 8 */
};

template <int V> grad_plan plan_of(size_t rows, size_t D)
{
    grad_plan p = {{TR_ROWS_LONG, TR_ROWS_BLOCK_THREADS, TR_ROWS_BLOCK_THREADS, 1}, 0, false};
    if (D <= TR_WARP * 8) {
        p.rows = tr_rows_of<V>(D);
    } else if (V > 1 && D <= 8192) {
        p.heavy = true;
        p.rows.kind = D <= 1024 ? TR_ROWS_WARP32 : TR_ROWS_BLOCK;
        p.rows.lanes = (int)((D + 1023) / 1024 * TR_WARP);
        p.rows.rows = D <= 1024 ? 4 : 1;
        p.rows.block = (unsigned)p.rows.rows * (unsigned)p.rows.lanes;
    } else if (V == 1 && D <= 4096) {
        p.rows.kind = TR_ROWS_BLOCK;
        p.rows.block = (unsigned)((D + 255) / 256 * TR_WARP);
        p.rows.lanes = (int)p.rows.block;
    }
    /* wide rows: a thread takes V columns */
    const size_t threads = p.rows.kind == TR_ROWS_LONG ? (D + V - 1) / V : p.rows.block;
    const size_t most = (p.heavy ? HEAVY_THREADS : THREADS) / threads;
    p.blocks = tr_blocks(rows, p.rows.kind == TR_ROWS_LONG ? 16 : p.rows.rows, most > 0 ? most : 1);
    return p;
}

template <typename T> struct pointers {
    const T *dy, *x;
    const float *weight, *stats;
    T *dx;
    float *partial;
    size_t rows;
    int D;
    double each; /* 1 / D */
    bool centered;
};

/* What is left to be known of a row when its sums are there. */
struct line {
    float mean, rstd, mean_g, slope;
};

template <typename T, int V, int K>
__device__ void input_gradient(tr_piece<T, V, K> &g, tr_piece<T, V, K> &x, const line &l)
{
    g.each(x,
           [&](float &v, float &u, int) { v = l.rstd * (v - l.mean_g - (u - l.mean) * l.slope); });
}

template <typename T, int V, int K>
__device__ void times_weight(tr_piece<T, V, K> &dy, const float *weight)
{
    dy.packs([&](float(&v)[V], int at) {
        const tr_pack<float, V> w = *reinterpret_cast<const tr_pack<float, V> *>(weight + at);
        TR_UNROLL
        for (int j = 0; j < V; j++) v[j] *= w.v[j];
    });
}

template <int V> __device__ inline void put_floats(float *to, const float (&v)[V])
{
    tr_pack<float, V> pack;
    TR_UNROLL
    for (int j = 0; j < V; j++) pack.v[j] = v[j];
    tr_put(to, pack);
}

/* A thread's sums over rows to its block's row of partial sums: where a row is a block's, as they
 * are. */
template <typename T, int V, int K>
__device__ void leave_block(float (&dw)[K][V], float (&db)[K][V], const pointers<T> &p, int lanes)
{
    float *to = p.partial + (size_t)blockIdx.x * 2 * p.D;
    TR_UNROLL
    for (int k = 0; k < K; k++) {
        const int at = ((int)threadIdx.x + k * lanes) * V;
        if (at >= p.D) continue;
        put_floats(to + at, dw[k]);
        put_floats(to + p.D + at, db[k]);
    }
}

/* Where the block has several rows at a time: added over them, in a fixed order. */
template <typename T, int V, int K>
__device__ void leave_lanes(float (&dw)[K][V], float (&db)[K][V], const pointers<T> &p, int lanes)
{
    float *to = p.partial + (size_t)blockIdx.x * 2 * p.D;
    const int lane = threadIdx.x % lanes, warp = threadIdx.x / TR_WARP;
    constexpr int room = 2 * K * V * threads_of<V, K, false>();
    TR_SHARED(float, gather, room);
    TR_UNROLL
    for (int k = 0; k < K; k++) {
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const int at = (lane + k * lanes) * V + j;
            for (int offset = TR_WARP / 2; offset >= lanes; offset /= 2) {
                dw[k][j] += __shfl_xor_sync(TR_ALL_LANES, dw[k][j], offset);
                db[k][j] += __shfl_xor_sync(TR_ALL_LANES, db[k][j], offset);
            }
            if (at >= p.D || threadIdx.x % TR_WARP >= (unsigned)lanes) continue;
            float *mine = gather + warp * 2 * p.D;
            mine[at] = dw[k][j];
            mine[p.D + at] = db[k][j];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * p.D; i += blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < (int)blockDim.x / TR_WARP; w++) sum += gather[w * 2 * p.D + i];
        to[i] = sum;
    }
}

/* V values of a row as they were read. */
template <typename T, int V> __device__ inline void unpack(const tr_pack<T, V> &pack, float (&v)[V])
{
    TR_UNROLL
    for (int j = 0; j < V; j++) v[j] = tr_load<T>(pack.v[j]);
}

/* Where a block keeps the weights, so that a warp reads 16 bytes a lane side by side: first halves of packs,
 * then second ones. From global memory a pack of 8 floats a lane would take twice as many accesses. */
template <int V> __device__ inline int place(int D, int at)
{
    constexpr int half = V == 8 ? 4 : V;
    return (at % V / half) * (D / 2) + at / V * half + at % half;
}

/* V weights from `at` on: of rows that are warps', from shared memory; of blocks', as they are (shared memory
 * would have to wait for the block's barriers). */
template <int V, bool BLOCK>
__device__ inline tr_pack<float, V> weights_at(const float *weight, const float *held, int D,
                                               int at)
{
    constexpr int half = V == 8 ? 4 : V;
    tr_pack<float, V> w;
    if constexpr (BLOCK) {
        w = *reinterpret_cast<const tr_pack<float, V> *>(weight + at);
    } else {
        TR_UNROLL
        for (int h = 0; h < V; h += half) {
            const tr_pack<float, half> pack =
                *reinterpret_cast<const tr_pack<float, half> *>(held + place<V>(D, at + h));
            TR_UNROLL
            for (int j = 0; j < half; j++) w.v[h + j] = pack.v[j];
        }
    }
    return w;
}

/* The sums over a row that dx needs, of g = dy * weight. */
template <typename T, int V, int K, bool BLOCK>
__device__ void row_sums(line &l, const tr_piece<T, V, K> &at, const tr_raw<T, V, K> &raw_dy,
                         const tr_raw<T, V, K> &raw_x, const float *held, const pointers<T> &p,
                         const tr_team<BLOCK> &team)
{
    float sum = 0.0f, sum_x = 0.0f;
    TR_UNROLL
    for (int k = 0; k < K; k++) {
        float dy[V], x[V];
        if (at.first + k * at.step >= at.D) continue;
        const tr_pack<float, V> w =
            weights_at<V, BLOCK>(p.weight, held, p.D, at.first + k * at.step);
        unpack(raw_dy.p[k], dy);
        unpack(raw_x.p[k], x);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float g = dy[j] * w.v[j];
            sum += g;
            sum_x += g * (x[j] - l.mean);
        }
    }
    l.mean_g = p.centered ? (float)(team.sum(sum) * p.each) : 0.0f;
    l.slope = (float)(team.sum(sum_x) * p.each) * l.rstd * l.rstd;
}

// cost: read 2x write 1x min 3x flops 18 shape 8192x1024
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(threads_of<V, K, BLOCK>(), V *K == 32 && !BLOCK ? 3 : 1)
    layernorm_grad_held(pointers<T> p, int lanes)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room); /* D floats where rows are warps' and there is a dx */
    float *held = reinterpret_cast<float *>(room);
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes, step = gridDim.x * per_block;
    float dw[K][V], db[K][V];
    for (int i = (int)threadIdx.x; !BLOCK && p.dx && i < p.D; i += (int)blockDim.x)
        held[place<V>(p.D, i)] = p.weight[i];
    if (!BLOCK) __syncthreads();
    TR_UNROLL
    for (int k = 0; k < K; k++) TR_UNROLL
    for (int j = 0; j < V; j++) dw[k][j] = db[k][j] = 0.0f;
    for (size_t base = blockIdx.x * per_block; base < p.rows; base += step) {
        const size_t row = base + (BLOCK ? 0 : threadIdx.x / lanes);
        const bool live = row < p.rows;
        const tr_piece<T, V, K> at(live ? p.D : 0, 0, team.lane, lanes);
        tr_raw<T, V, K> raw_dy = {}, raw_x = {};
        line l = {live ? p.stats[2 * row] : 0.0f, live ? p.stats[2 * row + 1] : 0.0f, 0.0f, 0.0f};
        at.fetch(p.dy + row * p.D, raw_dy);
        at.fetch(p.x + row * p.D, raw_x);
        if (p.dx) row_sums(l, at, raw_dy, raw_x, held, p, team);
        TR_UNROLL
        for (int k = 0; k < K; k++) {
            float dy[V], x[V];
            const int first = at.first + k * at.step;
            if (first >= at.D) continue;
            unpack(raw_dy.p[k], dy);
            unpack(raw_x.p[k], x);
            TR_UNROLL
            for (int j = 0; j < V; j++) {
                x[j] -= l.mean;
                dw[k][j] += dy[j] * (x[j] * l.rstd);
                db[k][j] += dy[j];
            }
            if (!p.dx) continue;
            const tr_pack<float, V> w = weights_at<V, BLOCK>(p.weight, held, p.D, first);
            tr_pack<T, V> out;
            TR_UNROLL
            for (int j = 0; j < V; j++)
                out.v[j] = tr_store<T>(l.rstd * (dy[j] * w.v[j] - l.mean_g - x[j] * l.slope));
            tr_put(p.dx + row * p.D + first, out);
        }
    }
    if constexpr (BLOCK)
        leave_block<T, V, K>(dw, db, p, lanes);
    else
        leave_lanes<T, V, K>(dw, db, p, lanes);
}

// cost: read 2x write 0x min 2x flops 6 shape 1024x32768
template <typename T, int V>
__global__ void __launch_bounds__(TR_ROWS_THREADS) layernorm_grad_columns(pointers<T> p)
{
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V;
    float dw[V] = {}, db[V] = {};
    if (at >= p.D) return;
    for (size_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
        const float mean = p.stats[2 * row], rstd = p.stats[2 * row + 1];
        const tr_pack<T, V> dy = *reinterpret_cast<const tr_pack<T, V> *>(p.dy + row * p.D + at);
        const tr_pack<T, V> x = *reinterpret_cast<const tr_pack<T, V> *>(p.x + row * p.D + at);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float d = tr_load<T>(dy.v[j]);
            dw[j] += d * ((tr_load<T>(x.v[j]) - mean) * rstd);
            db[j] += d;
        }
    }
    float *to = p.partial + (size_t)blockIdx.y * 2 * p.D + at;
    put_floats(to, dw);
    put_floats(to + p.D, db);
}

// cost: read 2x write 1x min 3x flops 12 shape 1024x32768
template <typename T, int V, int K>
__global__ void __launch_bounds__(TR_ROWS_BLOCK_THREADS)
    layernorm_grad_long(pointers<T> p, bool kept)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room);
    T *keep = kept ? reinterpret_cast<T *>(room) : nullptr, *keep_x = kept ? keep + p.D : nullptr;
    const int size = (int)blockDim.x;
    const tr_team<true> team(size, part);
    for (size_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *dyr = p.dy + row * p.D, *xr = p.x + row * p.D;
        line l = {p.stats[2 * row], p.stats[2 * row + 1], 0.0f, 0.0f};
        double sum = 0.0, sum_x = 0.0;
        for (int from = 0; from < p.D; from += K * V * size) {
            tr_piece<T, V, K> dy(p.D, from, team.lane, size), x(dy);
            float some = 0.0f, some_x = 0.0f;
            dy.read(dyr, keep);
            x.read(xr, keep_x);
            times_weight(dy, p.weight);
            dy.each(x, [&](float &g, float &v, int) {
                some += g;
                some_x += g * (v - l.mean);
            });
            sum += some;
            sum_x += some_x;
        }
        l.mean_g = p.centered ? (float)(team.sum(sum) / p.D) : 0.0f;
        l.slope = (float)(team.sum(sum_x) / p.D) * l.rstd * l.rstd;
        for (int from = 0; from < p.D; from += K * V * size) {
            tr_piece<T, V, K> dy(p.D, from, team.lane, size), x(dy);
            dy.read(kept ? keep : dyr);
            x.read(kept ? keep_x : xr);
            times_weight(dy, p.weight);
            input_gradient(dy, x, l);
            dy.write(p.dx + row * p.D);
        }
    }
}

/* Columns of the partial sums, in the order of the blocks: each of DEPTH threads takes every
 * DEPTH-th. */
// cost: fixed
__global__ void __launch_bounds__(COLUMNS *DEPTH)
    layernorm_grad_sum(const float *partial, unsigned blocks, int D, float *dweight, float *dbias,
                       bool accumulate)
{
    TR_SHARED(double, part, COLUMNS *DEPTH);
    const int column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    const int depth = threadIdx.x / COLUMNS;
    double sum = 0.0;
    if (column < 2 * D)
        for (unsigned b = depth; b < blocks; b += DEPTH) sum += partial[(size_t)b * 2 * D + column];
    part[threadIdx.x] = sum;
    __syncthreads();
    float *to = column < D ? dweight : dbias;
    if (depth > 0 || column >= 2 * D || !to) return;
    to += column < D ? column : column - D;
    for (int i = 1; i < DEPTH; i++) sum += part[i * COLUMNS + threadIdx.x];
    *to = (accumulate ? *to : 0.0f) + (float)sum;
}

/* Packs of a thread at a time: what 64 registers hold. */
template <int V> constexpr int long_packs = V == 1 ? 4 : 8 / V;

template <typename T, int V>
tr_status launch_long(const pointers<T> &p, unsigned blocks, size_t keep, cudaStream_t stream)
{
    const size_t columns = (size_t)p.D / V, room = tr_rows_keep<T>((size_t)p.D, 2, keep);
    /* in x, which holds more than 65535 */
    const dim3 grid((unsigned)((columns + TR_ROWS_THREADS - 1) / TR_ROWS_THREADS), blocks);
    tr_status st = TR_OK;
    /* first, because dx may lie where dy does */
    TR_TRY(TR_LAUNCH(TR_KERNEL(layernorm_grad_columns<T, V>), grid, TR_ROWS_THREADS, 0, stream, p));
    if (p.dx)
        TR_TRY(TR_LAUNCH(TR_KERNEL(layernorm_grad_long<T, V, long_packs<V>>), tr_rounds(p.rows, 1),
                         TR_ROWS_BLOCK_THREADS, room, stream, p, room > 0));
out:
    return st;
}

template <typename T, int V>
tr_status launch(const tr_cuda_layernorm_grad_args *a, cudaStream_t stream)
{
    const grad_plan plan = plan_of<V>(a->rows, a->D);
    const pointers<T> p = {static_cast<const T *>(a->dy),
                           static_cast<const T *>(a->x),
                           a->weight,
                           a->stats,
                           static_cast<T *>(a->dx),
                           a->partial,
                           a->rows,
                           (int)a->D,
                           1.0 / (int)a->D,
                           !a->rms};
    const unsigned block = plan.rows.block;
    tr_status st = TR_OK;
    const size_t room = p.dx ? a->D * sizeof(float) : 0;
    constexpr int FEW = 8 / V, MANY = V == 1 ? 8 : 32 / V;
    if (plan.rows.kind == TR_ROWS_LONG)
        st = launch_long<T, V>(p, plan.blocks, a->keep, stream);
    else if (plan.rows.kind == TR_ROWS_WARP8)
        st = TR_LAUNCH(TR_KERNEL(layernorm_grad_held<T, V, FEW, false>), plan.blocks, block, room,
                       stream, p, plan.rows.lanes);
    else if (plan.rows.kind == TR_ROWS_WARP32) /* of packs only */
        st = TR_LAUNCH(TR_KERNEL(layernorm_grad_held<T, V, MANY, false>), plan.blocks, block, room,
                       stream, p, plan.rows.lanes);
    else
        st = TR_LAUNCH(TR_KERNEL(layernorm_grad_held<T, V, MANY, true>), plan.blocks, block, 0,
                       stream, p, plan.rows.lanes);
    if (st != TR_OK || !(a->dweight || a->dbias)) return st;
    return tr_cuda_layernorm_grad_sum(a->partial, plan.blocks, a->D, a->dweight, a->dbias,
                                      a->accumulate, stream);
}

template <typename T, int V> struct long_kernels {
    const void *at[1] = {reinterpret_cast<const void *>(&layernorm_grad_long<T, V, long_packs<V>>)};
};

} // namespace

tr_status tr_cuda_layernorm_grad_ready(tr_dtype t, size_t keep)
{
    return tr_rows_allow<long_kernels>(t, keep,
                                       "cudaFuncSetAttribute(layernorm.grad, shared memory)");
}

tr_status tr_cuda_layernorm_grad_sum(const float *partial, unsigned blocks, size_t D,
                                     float *dweight, float *dbias, bool accumulate,
                                     cudaStream_t stream)
{
    return TR_LAUNCH(layernorm_grad_sum, (unsigned)((2 * D + COLUMNS - 1) / COLUMNS),
                     COLUMNS * DEPTH, 0, stream, partial, blocks, (int)D, dweight, dbias,
                     accumulate);
}

size_t tr_cuda_layernorm_grad_workspace(tr_dtype t, size_t rows, size_t D)
{
    size_t blocks = plan_of<1>(rows, D).blocks, wide = 0;
    TR_BY_TYPE(t, T, wide = plan_of<tr_wide<T>::V>(rows, D).blocks)
    return (blocks > wide ? blocks : wide) * 2 * D * sizeof(float);
}

tr_status tr_cuda_layernorm_grad_run(tr_dtype t, const tr_cuda_layernorm_grad_args *a,
                                     cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(a->dy, 16) && tr_is_aligned(a->x, 16) &&
                         tr_is_aligned(a->dx, 16) && tr_is_aligned(a->weight, 32);
    if (a->rows == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        return aligned && a->D % V == 0 ? launch<T, V>(a, stream) : launch<T, 1>(a, stream);
    })
    return TR_OK;
}
