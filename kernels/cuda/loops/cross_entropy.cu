/* Cross entropy of a row of logits fused with its softmax: loss, rank of the true class, and the
 * gradient dz_i = scale * ((1-s) w_label (p_i - [i = label]) + s/C (p_i sum w - w_i)).
 *
 * Bytes: logits once, gradient once (evaluating: logits once): the minimum. Rows beyond 8192
 * classes (4096 where they are read one by one) that do not fit into shared memory are read twice.
 * Meaning and corner cases are those of kernels/cpu/loops/softmax.c: equal logits rank by index; a
 * row with a NaN or +inf has a loss that is not finite and is wrong. Confusion counts are integers,
 * so that their order does not matter. */
#include "kernels/cuda/loops/online.cuh"
#include "kernels/cuda/loops/tally.cuh"

namespace
{

enum { TOP = 5 };

template <typename T> struct pointers {
    const T *logits;
    T *dlogits;
    tr_cuda_cross_entropy_args a;
};

/* A row and what is known of it before it is read. */
struct target {
    int label;
    bool live, valid; /* there is such a row; its label is a class */
    float mine;       /* the true class's logit */
    float near;       /* what smoothing's sums are taken from: mine, where that is finite */
};

template <typename T> __device__ target target_of(const pointers<T> &p, size_t row)
{
    target t = {-1, row < p.a.rows, false, NAN, 0.0f};
    if (t.live) t.label = p.a.labels[row];
    t.valid = t.label >= 0 && (size_t)t.label < p.a.classes;
    if (t.valid) t.mine = tr_load<T>(p.logits[row * p.a.classes + t.label]);
    if (fabsf(t.mine) < INFINITY) t.near = t.mine;
    return t;
}

/* What a thread counts before the exponentials. */
struct counts {
    int ahead;  /* logits that rank before the true class's */
    double far; /* sum of w * (near - z) */
};

template <typename T, int V, int K>
__device__ void count(counts &c, tr_piece<T, V, K> &z, const target &t,
                      const tr_cuda_cross_entropy_args &a)
{
    z.each([&](float &v, int i) { c.ahead += v > t.mine || (v == t.mine && i < t.label); });
    if (!(a.smoothing > 0.0)) return;
    if (a.weights) {
        z.each([&](float &v, int i) { c.far += a.weights[i] * ((double)t.near - (double)v); });
    } else {
        float some = 0.0f;
        z.each([&](float &v, int) { some += t.near - v; });
        c.far += (double)some;
    }
}

/* First of the largest among a thread's; D: none. */
template <typename T, int V, int K>
__device__ void find(int &first, tr_piece<T, V, K> &z, float top)
{
    z.each([&](float &v, int i) { first = v == top && i < first ? i : first; });
}

/* The gradient's factors. */
struct factors {
    float gain, hit, each;
};

/* What is known when all sums are there: `total` = sum of exp(z - top). One thread of the team adds
 * it. */
__device__ inline factors finish(tr_loss_sums &sums, const target &t, const counts &c, float top,
                                 double total, int first, bool one,
                                 const tr_cuda_cross_entropy_args &a)
{
    const double spread = a.smoothing / (double)a.classes;
    const double weight = a.weights ? (t.valid ? a.weights[t.label] : 0.0) : 1.0;
    const double straight = (1.0 - a.smoothing) * weight;
    if (one && t.live) {
        const double lse = log(total) + (double)top;
        const bool right = t.valid && isfinite(lse);
        double loss = straight * (lse - (double)t.mine);
        if (a.smoothing > 0.0) loss += spread * (a.weight_sum * (lse - (double)t.near) + c.far);
        sums.loss += t.valid ? a.factor * loss : (double)NAN;
        sums.weight += weight;
        sums.correct += right && c.ahead == 0;
        if (!a.dlogits) sums.top5 += right && c.ahead < TOP;
        if (a.confusion && t.valid)
            atomicAdd(reinterpret_cast<unsigned long long *>(a.confusion) +
                          (size_t)t.label * a.classes + (first < (int)a.classes ? first : 0),
                      1ull);
    }
    const double scale = a.dlogits ? (double)tr_loss_scale(a.control, a.scale) * a.factor : 0.0;
    const float gain = (float)(scale * (straight + spread * a.weight_sum)) / (float)total;
    return factors{t.valid ? gain : NAN, (float)(scale * straight), (float)(scale * spread)};
}

/* From exp(z - top) to the gradient. */
template <typename T, int V, int K>
__device__ void gradient(tr_piece<T, V, K> &e, const target &t, const factors &f,
                         const tr_cuda_cross_entropy_args &a)
{
    const bool weighted = a.weights && a.smoothing > 0.0;
    e.each([&](float &v, int i) {
        const float off = weighted ? f.each * (float)a.weights[i] : f.each;
        v = v * f.gain - (i == t.label ? f.hit + off : off);
    });
}

// cost: read 1x write 1x min 2x flops 18 shape 8192x1000
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? TR_ROWS_BLOCK_THREADS : TR_ROWS_THREADS)
    cross_entropy_held(pointers<T> p, int some)
{
    TR_SHARED(double, part, TR_WARP);
    const int lanes = tr_rows_lanes<V, K, BLOCK>(some), D = (int)p.a.classes;
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes;
    /* A block's one thread that adds keeps its sums where they take no registers from the others. */
    TR_SHARED(tr_loss_sums, apart, 1);
    tr_loss_sums own = {0.0, 0.0, 0.0, 0.0}, &sums = BLOCK ? apart[0] : own;
    if (BLOCK && threadIdx.x == 0) apart[0] = own;
    for (size_t base = blockIdx.x * per_block; base < p.a.rows; base += gridDim.x * per_block) {
        const size_t row = base + (BLOCK ? 0 : threadIdx.x / lanes);
        const target t = target_of(p, row);
        tr_piece<T, V, K> z(t.live ? D : 0, 0, team.lane, lanes);
        counts c = {0, 0.0};
        float top = -INFINITY, sum = 0.0f;
        int first = D;
        z.read(p.logits + row * D);
        z.each([&](float &v, int) { top = v > top ? v : top; });
        top = team.most(top);
        count(c, z, t, p.a);
        c.ahead = (int)team.sum(c.ahead);
        if (p.a.smoothing > 0.0) c.far = team.sum(c.far);
        if (p.a.confusion) {
            find(first, z, top);
            first = -team.most(-first);
        }
        z.each([&](float &v, int) {
            v = expf(v - top);
            sum += v;
        });
        const factors f = finish(sums, t, c, top, team.sum(sum), first, team.lane == 0, p.a);
        if (!p.dlogits) continue;
        gradient(z, t, f, p.a);
        z.write(p.dlogits + row * D);
    }
    if (BLOCK && threadIdx.x == 0) own = apart[0];
    tr_loss_leave(own, p.a.partial, part);
}

// cost: read 1x write 1x min 2x flops 30 shape 4096x50304
template <typename T, int V, int K>
__global__ void __launch_bounds__(TR_ROWS_BLOCK_THREADS)
    cross_entropy_long(pointers<T> p, bool kept)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room);
    T *keep = kept ? reinterpret_cast<T *>(room) : nullptr;
    const int size = (int)blockDim.x, D = (int)p.a.classes;
    const tr_team<true> team(size, part);
    tr_loss_sums sums = {0.0, 0.0, 0.0, 0.0};
    for (size_t row = blockIdx.x; row < p.a.rows; row += gridDim.x) {
        const T *from_row = p.logits + row * D;
        const target t = target_of(p, row);
        counts c = {0, 0.0};
        tr_online o = tr_online_start();
        int first = D;
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(from_row, keep);
            tr_online_add(o, z);
            count(c, z, t, p.a);
        }
        o = tr_online_merge(o, team);
        c.ahead = (int)team.sum(c.ahead);
        if (p.a.smoothing > 0.0) c.far = team.sum(c.far);
        for (int from = 0; p.a.confusion && from < D; from += K * V * size) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(keep ? keep : from_row);
            find(first, z, o.top);
        }
        if (p.a.confusion) first = -team.most(-first);
        const factors f = finish(sums, t, c, o.top, o.sum, first, team.lane == 0, p.a);
        for (int from = 0; p.dlogits && from < D; from += K * V * size) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(keep ? keep : from_row);
            z.each([&](float &v, int) { v = expf(v - o.top); });
            gradient(z, t, f, p.a);
            z.write(p.dlogits + row * D);
        }
    }
    tr_loss_leave(sums, p.a.partial, part);
}

template <typename T, int V>
tr_status launch(const tr_cuda_cross_entropy_args *a, unsigned *grid, cudaStream_t stream)
{
    using packs = tr_rows_packs<V>;
    const pointers<T> p = {static_cast<const T *>(a->logits), static_cast<T *>(a->dlogits), *a};
    const tr_rows_plan plan = tr_rows_of<V>(a->classes);
    const size_t room = plan.kind == TR_ROWS_LONG ? tr_rows_keep<T>(a->classes, 1, a->keep) : 0;
    *grid = tr_blocks(a->rows, plan.rows, TR_LOSS_BLOCKS);
    switch (plan.kind) {
    case TR_ROWS_WARP8:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_held<T, V, packs::FEW, false>), *grid, plan.block,
                         0, stream, p, plan.lanes);
    case TR_ROWS_WARP32:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_held<T, V, packs::WARP, false>), *grid, plan.block,
                         0, stream, p, plan.lanes);
    case TR_ROWS_BLOCK:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_held<T, V, packs::BLOCK, true>), *grid, plan.block,
                         0, stream, p, plan.lanes);
    default:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_long<T, V, packs::BLOCK>), *grid, plan.block, room,
                         stream, p, room > 0);
    }
}

template <typename T, int V> struct long_kernels {
    const void *at[1] = {
        reinterpret_cast<const void *>(&cross_entropy_long<T, V, tr_rows_packs<V>::BLOCK>)};
};

} // namespace

tr_status tr_cuda_cross_entropy_ready(tr_dtype t, size_t keep)
{
    return tr_rows_allow<long_kernels>(t, keep,
                                       "cudaFuncSetAttribute(cross_entropy, shared memory)");
}

tr_status tr_cuda_cross_entropy_run(tr_dtype t, const tr_cuda_cross_entropy_args *a,
                                    cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(a->logits, 16) && tr_is_aligned(a->dlogits, 16);
    unsigned blocks = 0;
    tr_status st = TR_OK;
    if (a->rows == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        st = aligned && a->classes % V == 0 ? launch<T, V>(a, &blocks, stream)
                                            : launch<T, 1>(a, &blocks, stream);
    })
    if (st != TR_OK) return st;
    return tr_cuda_tally_add(a->partial, blocks, (double)a->rows, 1.0, 1.0, a->tally, stream);
}
