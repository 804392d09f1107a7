/* What kernels over rows of D values share: the team of threads that has a row, the piece of it
 * that each thread holds in registers, and the choice between four layouts by D:
 *
 *   WARP8, WARP32   up to 256 and 1024 values: 1 to 32 lanes a row, at most 8 or 32 values a lane;
 *                   narrow rows share a warp, so that no more than half of the lanes idle
 *   BLOCK           up to 8192: a block a row, at most 32 values a thread: what a block's sums and
 *                   barriers cost is shared by many values
 *   LONG            beyond: a block of 256 goes over the row in chunks, and keeps it in shared
 * memory where that has room; else reads it again (rows in flight stay in the second-level cache of
 * an H100 up to some 150 KB)
 *
 * The first three read a row once, with all of a thread's loads in flight at a time. Loads are 16
 * bytes where D and the pointers allow, else single elements (fewer a thread, as each has an
 * address of its own in registers: WARP32 up to 512, BLOCK up to 4096). The layout, and with it the
 * order of sums, depends on the shape (and on alignment, which a plan fixes) alone. */
#ifndef TR_CUDA_ROWS_CUH
#define TR_CUDA_ROWS_CUH

#include "kernels/cuda/device.cuh"

enum tr_rows_kind { TR_ROWS_WARP8, TR_ROWS_WARP32, TR_ROWS_BLOCK, TR_ROWS_LONG };

enum { TR_ROWS_THREADS = 256, TR_ROWS_BLOCK_THREADS = 512, TR_ROWS_LONG_THREADS = 256 };

/* Packs of V that a thread holds, of LONG rows in a chunk; threads of a block at most. */
template <int V> struct tr_rows_packs {
    enum {
        FEW = 8 / V,
        WARP = V == 1 ? 16 : 32 / V,
        BLOCK = V == 1 ? 8 : 32 / V,
        LONG = V == 1 ? 8 : 16 / V,
        BLOCK_THREADS = V == 1 ? 512 : 256
    };
};

/* Threads of a kernel that holds rows, for __launch_bounds__. */
template <int V, bool BLOCK> __host__ __device__ constexpr int tr_rows_threads()
{
    return BLOCK ? (int)tr_rows_packs<V>::BLOCK_THREADS : (int)TR_ROWS_THREADS;
}

struct tr_rows_plan {
    tr_rows_kind kind;
    int lanes;      /* threads a row */
    unsigned block; /* threads a block */
    size_t rows;    /* that a block has at a time */
};

/* Of rows of D values, read V at a time. */
template <int V> static inline tr_rows_plan tr_rows_of(size_t D)
{
    tr_rows_plan p = {TR_ROWS_LONG, TR_ROWS_LONG_THREADS, TR_ROWS_LONG_THREADS, 1};
    const size_t warp = TR_WARP * V * tr_rows_packs<V>::BLOCK; /* values of a warp of a block */
    if (D <= TR_WARP * V * tr_rows_packs<V>::WARP) {
        p.kind = D <= TR_WARP * V * tr_rows_packs<V>::FEW ? TR_ROWS_WARP8 : TR_ROWS_WARP32;
        for (p.lanes = 1; p.lanes < TR_WARP && (size_t)p.lanes * V < D;) p.lanes *= 2;
        p.block = TR_ROWS_THREADS;
        p.rows = p.block / (unsigned)p.lanes;
    } else if (D <= tr_rows_packs<V>::BLOCK_THREADS / TR_WARP * warp) {
        p.kind = TR_ROWS_BLOCK;
        p.block = (unsigned)((D + warp - 1) / warp * TR_WARP);
        p.lanes = (int)p.block;
    }
    return p;
}

/* A row of a WARP32 layout has a whole warp: a constant there. */
template <int V, int K, bool BLOCK> __device__ inline int tr_rows_lanes(int lanes)
{
    return !BLOCK && K > (int)tr_rows_packs<V>::FEW ? (int)TR_WARP : lanes;
}

/* The threads of one row: a group of lanes of a warp, or the block. Sums are in V over a warp, then
 * in double over the warps, and come to all threads. Every thread of the block must take part. */
template <bool BLOCK> struct tr_team {
    int lane, size;
    double *part; /* BLOCK: 32 of shared memory */

    __device__ tr_team(int lanes, double *shared)
        : lane(BLOCK ? (int)threadIdx.x : (int)threadIdx.x % lanes), size(lanes), part(shared)
    {
    }

    /* Of the warp's values to part, when all have read what was there. */
    template <typename V> __device__ void share(V v) const
    {
        __syncthreads();
        if (threadIdx.x % TR_WARP == 0) part[threadIdx.x / TR_WARP] = (double)v;
        __syncthreads();
    }

    template <typename V> __device__ double sum(V v) const
    {
        for (int offset = (BLOCK ? (int)TR_WARP : size) / 2; offset > 0; offset /= 2)
            v += __shfl_xor_sync(TR_ALL_LANES, v, offset);
        if (!BLOCK) return (double)v;
        share(v);
        double all = part[0];
        for (int w = 1; w < size / TR_WARP; w++) all += part[w];
        return all;
    }

    /* Of float or int. A NaN of a lane may win or be passed over: have none. */
    template <typename V> __device__ V most(V v) const
    {
        for (int offset = (BLOCK ? (int)TR_WARP : size) / 2; offset > 0; offset /= 2) {
            const V other = __shfl_xor_sync(TR_ALL_LANES, v, offset);
            v = other > v ? other : v;
        }
        if (!BLOCK) return v;
        share(v);
        double all = part[0];
        for (int w = 1; w < size / TR_WARP; w++) all = part[w] > all ? part[w] : all;
        return (V)all;
    }
};

/* V values, rounded to T. */
template <typename T, int V> __device__ inline void tr_put_as(T *to, const float (&v)[V])
{
    tr_pack<T, V> p;
    TR_UNROLL
    for (int j = 0; j < V; j++) p.v[j] = tr_store<T>(v[j]);
    tr_put(to, p);
}

/* As read: what a piece is made of, to be fetched ahead of its use. */
template <typename T, int V, int K> struct tr_raw {
    tr_words_t<T, V> p[K];
};

/* K packs of V values of a row, in registers as float32: from the thread's first on, every `step`.
 */
template <typename T, int V, int K> struct tr_piece {
    float v[K][V];
    int D, first, step; /* in values */

    __device__ tr_piece(int width, int from, int lane, int size)
        : D(width), first(from + lane * V), step(size * V)
    {
    }

    __device__ void fetch(const T *row, tr_raw<T, V, K> &raw) const
    {
        TR_UNROLL
        for (int k = 0; k < K; k++)
            if (first + k * step < D) raw.p[k] = tr_read_words<T, V>(row + first + k * step);
    }

    __device__ void take(const tr_raw<T, V, K> &raw)
    {
        TR_UNROLL
        for (int k = 0; k < K; k++)
            if (first + k * step < D) tr_unpack<T, V>(raw.p[k], v[k]);
    }

    /* All loads before the first use. `keep`: also put there as they are; NULL: not. */
    __device__ void read(const T *row, T *keep = nullptr)
    {
        tr_raw<T, V, K> raw = {};
        fetch(row, raw);
        if (keep) hold(raw, keep);
        take(raw);
    }

    /* As it was read, to shared memory. */
    __device__ void hold(const tr_raw<T, V, K> &raw, T *keep) const
    {
        TR_UNROLL
        for (int k = 0; k < K; k++)
            if (first + k * step < D)
                *reinterpret_cast<tr_words_t<T, V> *>(keep + first + k * step) = raw.p[k];
    }

    /* f(value, index in the row); the value may be changed. */
    template <typename F> __device__ void each(F f)
    {
        TR_UNROLL
        for (int k = 0; k < K; k++) {
            if (first + k * step >= D) continue;
            TR_UNROLL
            for (int j = 0; j < V; j++) f(v[k][j], first + k * step + j);
        }
    }

    /* f(value, value of other, index): over two pieces of the same place. */
    template <typename F> __device__ void each(tr_piece &other, F f)
    {
        TR_UNROLL
        for (int k = 0; k < K; k++) {
            if (first + k * step >= D) continue;
            TR_UNROLL
            for (int j = 0; j < V; j++) f(v[k][j], other.v[k][j], first + k * step + j);
        }
    }

    /* f(values, index of the first) of what was fetched, V of them at a time: where the values as
     * float32 would need twice the registers. */
    template <typename F> __device__ void packs_of(const tr_raw<T, V, K> &raw, F f) const
    {
        TR_UNROLL
        for (int k = 0; k < K; k++) {
            float some[V];
            if (first + k * step >= D) continue;
            tr_unpack<T, V>(raw.p[k], some);
            f(some, first + k * step);
        }
    }

    /* f(values, index of the first): V of them at a time. */
    template <typename F> __device__ void packs(F f)
    {
        TR_UNROLL
        for (int k = 0; k < K; k++)
            if (first + k * step < D) f(v[k], first + k * step);
    }

    __device__ void write(T *row) const
    {
        TR_UNROLL
        for (int k = 0; k < K; k++)
            if (first + k * step < D) tr_put_as(row + first + k * step, v[k]);
    }
};

/* Elements that a 16-byte load brings. */
template <typename T> struct tr_wide {
    enum { V = 16 / sizeof(T) };
};

/* Shared memory for `rows` rows of D values of T, or 0 where there is less than that. */
template <typename T> static inline size_t tr_rows_keep(size_t D, size_t rows, size_t most)
{
    const size_t nbytes = D * sizeof(T) * rows;
    return nbytes <= most ? nbytes : 0;
}

/* Lets the kernels of an op, which Kernels<T, V>::at lists, have `keep` bytes of shared memory for
 * rows of LONG layout: those that read rows of type `t` by 16 bytes and by single elements. */
template <template <typename, int> class Kernels>
static inline tr_status tr_rows_allow(tr_dtype t, size_t keep, const char *call)
{
    tr_status st = TR_OK;
    const auto allow = [&](const auto &kernels) {
        for (const void *kernel : kernels.at)
            if (st == TR_OK)
                st = tr_cuda_check(cudaFuncSetAttribute(kernel,
                                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        (int)keep),
                                   call);
    };
    TR_BY_TYPE(t, T, {
        allow(Kernels<T, tr_wide<T>::V>{});
        allow(Kernels<T, 1>{});
    })
    return st;
}

#endif
