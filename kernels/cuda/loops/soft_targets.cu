/* Cross entropy of rows of logits and probabilities, fused with the softmax: with shares q_c = w_c
 * ((1-s) t_c + s/C) the loss is the sum of q_c * -log p_c, and dz_c = scale * (p_c sum q - q_c).
 *
 * Bytes: both rows twice (sums first, then the gradient), which the caches hold up to some ten
 * thousand classes, and the gradient once. Meaning and corner cases are those of
 * kernels/cpu/loops/softmax.c: the true class is the first of the greatest, equal logits rank by
 * index, what has no share counts nothing. */
#include "kernels/cuda/loops/online.cuh"
#include "kernels/cuda/loops/tally.cuh"

namespace
{

enum { THREADS = 256, MIN_BLOCKS = 2, TOP = 5, PACKS = 4 };

template <typename T> struct pointers {
    const T *logits;
    const float *target;
    T *dlogits;
    tr_cuda_cross_entropy_args a;
};

/* The share of class c with probability t. */
__device__ inline float share_of(const tr_cuda_cross_entropy_args &a, float straight, float spread,
                                 float t, int c)
{
    const float q = straight * t + spread;
    return a.weights ? q * (float)a.weights[c] : q;
}

/* The first of a row's greatest. */
template <typename T, bool BLOCK>
__device__ int greatest(const T *row, int D, float top, const tr_team<BLOCK> &team)
{
    int first = D;
    for (int c = team.lane; c < D; c += team.size)
        first = tr_load<T>(row[c]) == top && c < first ? c : first;
    return -team.most(-first);
}

/* What the second look at a row brings. */
struct second {
    double shares, loss; /* sums of q, and of q * (top - z) */
    int ahead;           /* logits that rank before the true class's */
};

template <typename T, bool BLOCK>
__device__ second look(const T *z, const float *t, int D, int label, float top,
                       const tr_cuda_cross_entropy_args &a, const tr_team<BLOCK> &team)
{
    const float straight = (float)(1.0 - a.smoothing), spread = (float)(a.smoothing / D);
    const float mine = label < D ? tr_load<T>(z[label]) : NAN;
    second s = {0.0, 0.0, 0};
    for (int c = team.lane; c < D; c += team.size) {
        const float v = tr_load<T>(z[c]), q = share_of(a, straight, spread, t[c], c);
        s.shares += (double)q;
        if (q != 0.0f) s.loss += (double)q * ((double)top - (double)v);
        s.ahead += v > mine || (v == mine && c < label);
    }
    return {team.sum(s.shares), team.sum(s.loss), (int)team.sum(s.ahead)};
}

// cost: read 3x+2f write 1x min 2x+1f flops 40 shape 8192x1000
template <typename T, bool BLOCK>
__global__ void __launch_bounds__(THREADS, MIN_BLOCKS) soft_targets(pointers<T> p)
{
    TR_SHARED(double, part, TR_WARP);
    const tr_team<BLOCK> team(BLOCK ? (int)blockDim.x : (int)TR_WARP, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / TR_WARP;
    const float scale =
        p.dlogits ? (float)((double)tr_loss_scale(p.a.control, p.a.scale) * p.a.factor) : 0.0f;
    const float straight = scale * (float)(1.0 - p.a.smoothing);
    tr_loss_sums sums = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (size_t base = blockIdx.x * per_block; base < p.a.rows; base += gridDim.x * per_block) {
        const size_t row = base + (BLOCK ? 0 : threadIdx.x / TR_WARP);
        const bool live = row < p.a.rows;
        const float counts = live && p.a.samples ? p.a.samples[row / p.a.each] : 1.0f;
        const int D = live ? (int)p.a.classes : 0;
        const T *z = p.logits + row * p.a.classes;
        const float *t = p.target + row * p.a.classes;
        tr_online o = tr_online_start();
        float most = -1.0f;
        for (int from = 0; from < D; from += PACKS * team.size) {
            tr_piece<T, 1, PACKS> v(D, from, team.lane, team.size);
            v.read(z);
            tr_online_add(o, v);
        }
        for (int c = team.lane; c < D; c += team.size) most = t[c] > most ? t[c] : most;
        o = tr_online_merge<T>(o, team);
        const int label = greatest(t, D, team.most(most), team);
        const second s = look(z, t, D, label, o.top, p.a, team);
        const int first = p.a.confusion ? greatest(z, D, o.top, team) : D;
        const bool right = isfinite(log(o.sum) + (double)o.top);
        if (live && team.lane == 0) {
            sums.loss += right ? (double)counts * p.a.factor * (s.shares * log(o.sum) + s.loss)
                               : (double)NAN;
            sums.weight += (double)counts;
            sums.targets += 1.0;
            sums.correct += right && s.ahead == 0;
            if (!p.dlogits) sums.top5 += right && s.ahead < TOP;
            if (p.a.confusion && label < D)
                atomicAdd(reinterpret_cast<unsigned long long *>(p.a.confusion) +
                              (size_t)label * p.a.classes + (first < D ? first : 0),
                          1ull);
        }
        const float gain = counts * (float)((double)scale * s.shares / o.sum);
        const float spread = scale * (float)(p.a.smoothing / (double)p.a.classes);
        for (int c = team.lane; p.dlogits && c < D; c += team.size)
            p.dlogits[row * p.a.classes + c] =
                tr_store<T>(tr_exp_below<T>(tr_load<T>(z[c]) - o.top) * gain -
                            counts * share_of(p.a, straight, spread, t[c], c));
    }
    tr_loss_leave(sums, p.a.partial, part);
}

template <typename T>
tr_status launch(const tr_cuda_cross_entropy_args *a, const float *target, unsigned *grid,
                 cudaStream_t stream)
{
    const pointers<T> p = {static_cast<const T *>(a->logits), target, static_cast<T *>(a->dlogits),
                           *a};
    const bool narrow = a->classes <= (size_t)TR_WARP * PACKS;
    *grid = tr_blocks(a->rows, narrow ? THREADS / TR_WARP : 1, TR_LOSS_BLOCKS);
    if (narrow) return TR_LAUNCH(TR_KERNEL(soft_targets<T, false>), *grid, THREADS, 0, stream, p);
    return TR_LAUNCH(TR_KERNEL(soft_targets<T, true>), *grid, THREADS, 0, stream, p);
}

} // namespace

tr_status tr_cuda_soft_targets_run(tr_dtype t, const tr_cuda_cross_entropy_args *a,
                                   const float *target, cudaStream_t stream)
{
    unsigned blocks = 0;
    tr_status st = TR_OK;
    if (a->rows == 0) return TR_OK;
    TR_BY_TYPE(t, T, { st = launch<T>(a, target, &blocks, stream); })
    if (st != TR_OK) return st;
    const tr_cuda_counted counted = tr_cuda_rows_counted(a);
    return tr_cuda_tally_add(a->partial, blocks, &counted, a->tally, stream);
}
