/* Layer normalization, backward: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy *
 * weight; dweight = sum over rows of dy * xhat, dbias = sum of dy. Of RMSNorm the mean of g does
 * not count.
 *
 * Rows of up to 8192 values (4096 one by one): one kernel reads dy and x once and writes dx once
 * (the minimum); a thread stays with its columns over all rows that its block takes, sums dweight
 * and dbias in registers, and keeps its pieces of both rows as they were read. With 16 to 32 values
 * a thread a row of up to 1024 is a warp's, and what a row costs beside its values (two sums over
 * its threads, its statistics) is shared by many: with 8 values, that was half of all instructions.
 * Wider rows are blocks' of 16 values a thread, whose weights stay in registers and whose next row
 * is under way while they wait for each other: of 4096 columns 209 us on an H200 where 32 values,
 * their weights read anew and no row ahead took 304. Each
 * block leaves one row of partial sums; a second kernel adds them in order (layernorm_sum.cu). They
 * are kept to some 17 MB by the number of blocks, and do not leave the second-level cache. Wider
 * rows: one kernel for the sums, one for dx, 5 instead of 3. Sums over columns are in float32 over
 * a block's rows, then in float64. */
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

/* All threads of a launch together, which bounds the partial sums: what an H100 holds of threads
 * with few values, of those with 16 or 24 (128 registers) and of those with 32 (168). */
enum { THREADS = 131072, HEAVY_THREADS = 512 * 132, HEAVIEST_THREADS = 384 * 132 };

/* Values of a row of D that a thread has, of the kernel for rows that fit. */
static inline int values_of(int V, size_t D)
{
    if (D <= TR_WARP * 8 || V == 1) return 8;
    return D <= 512 || D > 1024 ? 16 : D <= 768 ? 24 : 32;
}

/* Threads of a block at most, of the kernel for rows that fit: with K packs of V a thread. */
template <int V, int K, bool BLOCK> __host__ __device__ constexpr int threads_of()
{
    return BLOCK ? (int)TR_ROWS_BLOCK_THREADS : V * K > 8 ? 128 : (int)TR_ROWS_THREADS;
}

/* And how many of them a multiprocessor is to hold. */
template <int V, int K, bool BLOCK> __host__ __device__ constexpr int blocks_of()
{
    return BLOCK || V * K <= 8 ? 1 : V * K == 32 ? 3 : 4;
}

struct grad_plan {
    tr_rows_plan rows;
    unsigned blocks; /* rows of partial sums, 2 D each */
    int values;      /* a thread */
};

template <int V> grad_plan plan_of(size_t rows, size_t D)
{
    grad_plan p = {
        {TR_ROWS_LONG, TR_ROWS_BLOCK_THREADS, TR_ROWS_BLOCK_THREADS, 1}, 0, values_of(V, D)};
    const size_t warp = TR_WARP * (size_t)p.values; /* values of a warp of a block */
    if (D <= TR_WARP * 8) {
        p.rows = tr_rows_of<V>(D);
    } else if (V > 1 && D <= 1024) {
        p.rows = {TR_ROWS_WARP32, TR_WARP, 128, 4};
    } else if (D <= (V > 1 ? 8192 : 4096)) {
        p.rows.kind = TR_ROWS_BLOCK;
        p.rows.block = (unsigned)((D + warp - 1) / warp * TR_WARP);
        p.rows.lanes = (int)p.rows.block;
    }
    /* wide rows: a thread takes V columns */
    const size_t threads = p.rows.kind == TR_ROWS_LONG ? (D + V - 1) / V : p.rows.block;
    const size_t all = p.rows.kind == TR_ROWS_LONG || p.values == 8 ? THREADS
                       : p.values == 32                             ? HEAVIEST_THREADS
                                                                    : HEAVY_THREADS;
    const size_t most = all / threads;
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

/* v = g: to dx at x - mean = d. */
__device__ inline float input_gradient(const line &l, float g, float d)
{
    return fmaf(d, -l.slope * l.rstd, fmaf(g, l.rstd, -l.mean_g * l.rstd));
}

template <typename T, int V, int K>
__device__ void input_gradient(tr_piece<T, V, K> &g, tr_piece<T, V, K> &x, const line &l)
{
    g.each(x, [&](float &v, float &u, int) { v = input_gradient(l, v, u - l.mean); });
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

/* Where a block keeps the weights, so that a warp reads 16 bytes a lane side by side: first halves
 * of packs, then second ones. From global memory a pack of 8 floats a lane would take twice as many
 * accesses. */
template <int V> __device__ inline int place(int D, int at)
{
    constexpr int half = V == 8 ? 4 : V;
    return (at % V / half) * (D / 2) + at / V * half + at % half;
}

/* A thread's weights: of rows that are warps', in the block's shared memory; of blocks', in
 * registers (shared memory would have to wait for the block's barriers). */
template <int V, int K, bool BLOCK> struct weights {
    float own[BLOCK ? K : 1][V];
    const float *held;
    int D;

    /* `room`: D floats, unless BLOCK. All threads of the block. */
    __device__ weights(const float *weight, int width, float *room, int lanes)
        : held(room), D(width)
    {
        TR_UNROLL
        for (int k = 0; BLOCK && k < K; k++) {
            const int at = ((int)threadIdx.x + k * lanes) * V;
            TR_UNROLL
            for (int j = 0; j < V; j++) own[BLOCK ? k : 0][j] = at < D ? weight[at + j] : 0.0f;
        }
        for (int i = (int)threadIdx.x; !BLOCK && i < D; i += (int)blockDim.x)
            room[place<V>(D, i)] = weight[i];
        if (!BLOCK) __syncthreads();
    }

    /* Of its pack k, at `at` of the row. */
    __device__ void get(int k, int at, float (&w)[V]) const
    {
        constexpr int half = V == 8 ? 4 : V;
        TR_UNROLL
        for (int h = 0; h < V; h += half) {
            tr_pack<float, half> pack = {};
            if (!BLOCK)
                pack = *reinterpret_cast<const tr_pack<float, half> *>(held + place<V>(D, at + h));
            TR_UNROLL
            for (int j = 0; j < half; j++) w[h + j] = BLOCK ? own[BLOCK ? k : 0][h + j] : pack.v[j];
        }
    }
};

/* The sums over a row that dx needs, of g = dy * weight. */
template <typename T, int V, int K, bool BLOCK>
__device__ void row_sums(line &l, const tr_piece<T, V, K> &at, const tr_raw<T, V, K> &raw_dy,
                         const tr_raw<T, V, K> &raw_x, const weights<V, K, BLOCK> &weight,
                         const pointers<T> &p, const tr_team<BLOCK> &team)
{
    float sum = 0.0f, sum_x = 0.0f;
    TR_UNROLL
    for (int k = 0; k < K; k++) {
        float dy[V], x[V], w[V];
        if (at.first + k * at.step >= at.D) continue;
        weight.get(k, at.first + k * at.step, w);
        tr_unpack<T, V>(raw_dy.p[k], dy);
        tr_unpack<T, V>(raw_x.p[k], x);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float g = dy[j] * w[j];
            sum += g;
            sum_x += g * (x[j] - l.mean);
        }
    }
    l.mean_g = p.centered ? (float)(team.sum(sum) * p.each) : 0.0f;
    l.slope = (float)(team.sum(sum_x) * p.each) * l.rstd * l.rstd;
}

/* What is read of a row: of blocks' rows of 16 bits a row ahead, which the others' many warps need
 * not. */
template <typename T, int V, int K> struct inputs {
    tr_raw<T, V, K> dy, x;
    float mean, rstd;
};

template <typename T, int V, int K>
__device__ inline void fetch(inputs<T, V, K> &in, const tr_piece<T, V, K> &at, const pointers<T> &p,
                             size_t row)
{
    in.mean = at.D > 0 ? p.stats[2 * row] : 0.0f;
    in.rstd = at.D > 0 ? p.stats[2 * row + 1] : 0.0f;
    at.fetch(p.dy + row * p.D, in.dy);
    at.fetch(p.x + row * p.D, in.x);
}

// cost: read 2x write 1x min 3x flops 18 shape 8192x1024
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(threads_of<V, K, BLOCK>(), blocks_of<V, K, BLOCK>())
    layernorm_grad_held(pointers<T> p, int some)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room); /* D floats where rows are warps' and there is a dx */
    const int lanes = !BLOCK && V * K > 8 ? (int)TR_WARP : some;
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes, step = gridDim.x * per_block;
    const size_t mine = BLOCK ? 0 : threadIdx.x / lanes;
    const auto place_in = [&](size_t row) {
        return tr_piece<T, V, K>(row < p.rows ? p.D : 0, 0, team.lane, lanes);
    };
    const weights<V, K, BLOCK> weight(p.weight, p.dx ? p.D : 0, reinterpret_cast<float *>(room),
                                      lanes);
    constexpr bool ahead = BLOCK && sizeof(T) < sizeof(float);
    inputs<T, V, K> next = {};
    float dw[K][V], db[K][V];
    TR_UNROLL
    for (int k = 0; k < K; k++) TR_UNROLL
    for (int j = 0; j < V; j++) dw[k][j] = db[k][j] = 0.0f;
    if (ahead) fetch(next, place_in(blockIdx.x), p, blockIdx.x);
    for (size_t base = blockIdx.x * per_block; base < p.rows; base += step) {
        const size_t row = base + mine;
        const tr_piece<T, V, K> at = place_in(row);
        inputs<T, V, K> in = next;
        if (ahead)
            fetch(next, place_in(row + step), p, row + step);
        else
            fetch(in, at, p, row);
        line l = {in.mean, in.rstd, 0.0f, 0.0f};
        if (p.dx) row_sums(l, at, in.dy, in.x, weight, p, team);
        TR_UNROLL
        for (int k = 0; k < K; k++) {
            float dy[V], x[V], w[V];
            const int first = at.first + k * at.step;
            if (first >= at.D) continue;
            tr_unpack<T, V>(in.dy.p[k], dy);
            tr_unpack<T, V>(in.x.p[k], x);
            TR_UNROLL
            for (int j = 0; j < V; j++) {
                x[j] -= l.mean;
                dw[k][j] += dy[j] * (x[j] * l.rstd);
                db[k][j] += dy[j];
            }
            if (!p.dx) continue;
            weight.get(k, first, w);
            TR_UNROLL
            for (int j = 0; j < V; j++) dy[j] = input_gradient(l, dy[j] * w[j], x[j]);
            tr_put_as(p.dx + row * p.D + first, dy);
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

/* Rows that fit, VALUES of one a thread. */
template <typename T, int V, int VALUES>
tr_status launch_held(const pointers<T> &p, const grad_plan &plan, size_t room, cudaStream_t stream)
{
    constexpr bool blocks = V == 1 || VALUES == 16; /* a row may be a block's */
    if constexpr (blocks)
        if (plan.rows.kind == TR_ROWS_BLOCK)
            return TR_LAUNCH(TR_KERNEL(layernorm_grad_held<T, V, VALUES / V, true>), plan.blocks,
                             plan.rows.block, 0, stream, p, plan.rows.lanes);
    return TR_LAUNCH(TR_KERNEL(layernorm_grad_held<T, V, VALUES / V, false>), plan.blocks,
                     plan.rows.block, room, stream, p, plan.rows.lanes);
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
    tr_status st = TR_OK;
    const size_t room = p.dx ? a->D * sizeof(float) : 0;
    if (plan.rows.kind == TR_ROWS_LONG)
        st = launch_long<T, V>(p, plan.blocks, a->keep, stream);
    else if (plan.values == 8)
        st = launch_held<T, V, 8>(p, plan, room, stream);
    else if constexpr (V > 1)
        st = plan.values == 16   ? launch_held<T, V, 16>(p, plan, room, stream)
             : plan.values == 24 ? launch_held<T, V, 24>(p, plan, room, stream)
                                 : launch_held<T, V, 32>(p, plan, room, stream);
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
