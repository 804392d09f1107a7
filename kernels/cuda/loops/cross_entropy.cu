/* Cross entropy of a row of logits fused with its softmax: loss, rank of the true class, and the
 * gradient dz_i = scale * ((1-s) w_label (p_i - [i = label]) + s/C (p_i sum w - w_i)).
 *
 * Bytes: logits once, gradient once (evaluating: logits once): the minimum. Rows beyond 8192
 * classes (4096 where they are read one by one) that do not fit into shared memory are read twice.
 * Bound by instructions at first (41 a logit on an H200, ncu): so exponentials take two, values are
 * taken out of whole words, the true class is written by itself, and losses of wide rows wait for
 * nobody: while a row's gradient is written, the next row comes into the shared memory that it
 * leaves. Forms by themselves on an H200, 8192 x 50304 bfloat16 (650 us before): that one 444 us;
 * the next row by way of registers 453 to 464; one row after the other 471. Meaning and corner
 * cases are those of kernels/cpu/loops/softmax.c: equal logits rank by index; a row with a NaN or
 * +inf has a loss that is not finite and is wrong. Confusion counts are integers, so that their
 * order does not matter. A row with the label ignore_index adds nothing, and its gradient is 0. */
#include "kernels/cuda/loops/online.cuh"
#include "kernels/cuda/loops/tally.cuh"
#include "kernels/cuda/mma.cuh"

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
    bool live, valid; /* there is such a row, which counts; its label is a class */
    bool ignored;     /* there is, and it does not */
    float counts;     /* the sample's weight */
    float mine;       /* the true class's logit */
    float near;       /* what smoothing's sums are taken from: mine, where that is finite */
};

/* Fetched a row ahead of its use: the logit that it points to would else wait for it. */
template <typename T> __device__ inline int label_of(const pointers<T> &p, size_t row)
{
    return row < p.a.rows ? p.a.labels[row] : -1;
}

/* MORE: with what few ask for: labels that do not count, weights of samples, gamma. Its instances
 * have registers for it. */
template <bool MORE, typename T>
__device__ target target_of(const pointers<T> &p, size_t row, int label)
{
    target t = {label, row < p.a.rows, false, false, 1.0f, NAN, 0.0f};
    if (MORE && t.live && p.a.samples) t.counts = p.a.samples[row / p.a.each];
    t.ignored = MORE && t.live && p.a.ignores && t.label == p.a.ignore_index;
    if (t.ignored) {
        t.live = false;
        t.label = -1;
    }
    t.valid = t.label >= 0 && (size_t)t.label < p.a.classes;
    if (t.valid) t.mine = tr_load<T>(p.logits[row * p.a.pitch + t.label]);
    if (fabsf(t.mine) < INFINITY) t.near = t.mine;
    return t;
}

/* What a pack that reaches beyond the row has behind its end, as if it were not there. */
template <typename T, int V, int K> __device__ void cut(tr_piece<T, V, K> &z)
{
    if constexpr (V > 1)
        z.packs([&](float(&v)[V], int at) {
            if (at + V <= z.D) return;
            for (int j = 0; j < V; j++)
                if (at + j >= z.D) v[j] = -INFINITY;
        });
}

/* Logits of the thread that rank before the true class's. Whether there is one at all is what
 * training asks: that is so where another is larger, and is looked for only where none is. */
template <typename T, int V, int K>
__device__ int count_ahead(tr_piece<T, V, K> &z, const target &t, float top, bool all)
{
    int ahead = 0;
    if (all)
        z.each([&](float &v, int i) { ahead += v > t.mine || (v == t.mine && i < t.label); });
    else if (t.mine == top)
        z.each([&](float &v, int i) { ahead += v == top && i < t.label; });
    else
        ahead = t.mine < top;
    return ahead;
}

/* Smoothing: the thread's sum of w * (near - z). */
template <typename T, int V, int K>
__device__ double distance(tr_piece<T, V, K> &z, const target &t,
                           const tr_cuda_cross_entropy_args &a)
{
    double far = 0.0;
    float some = 0.0f;
    if (a.weights)
        z.each([&](float &v, int i) {
            if (i < z.D) far += a.weights[i] * ((double)t.near - (double)v);
        });
    else
        z.each([&](float &v, int i) { some += i < z.D ? t.near - v : 0.0f; });
    return far + (double)some;
}

/* First of the largest among a thread's; D: none. */
template <typename T, int V, int K>
__device__ void find(int &first, tr_piece<T, V, K> &z, float top)
{
    z.each([&](float &v, int i) { first = v == top && i < first ? i : first; });
}

/* The gradient's factors: v = exp(z - top) * gain / sum - each, and less `hit` at the true
 * class. */
struct factors {
    float gain, hit, each;
};

/* Where the true class has this weight. */
__device__ inline factors factors_of(const tr_cuda_cross_entropy_args &a, double weight)
{
    const double spread = a.smoothing / (double)a.classes;
    const double straight = (1.0 - a.smoothing) * weight;
    const double scale = a.dlogits ? (double)tr_loss_scale(a.control, a.scale) * a.factor : 0.0;
    return {(float)(scale * (straight + spread * a.weight_sum)), (float)(scale * straight),
            (float)(scale * spread)};
}

/* log of a sum of exponentials whose largest is 1, to 2^-24; NaN stays. */
__device__ inline double log_of(double total)
{
    int e;
    float m = frexpf((float)total, &e);
    if (m < 0.70710678f) {
        m *= 2.0f;
        e--;
    }
    return (double)logf(m) + (double)e * 0.69314718055994530942;
}

/* What (1 - p)^gamma makes of a row's loss and gradient, `far` = -log p:
 * kernels/cpu/loops/softmax.c. */
struct focus {
    double loss, gradient;
};

__device__ inline focus focus_of(const tr_cuda_cross_entropy_args &a, double far)
{
    const double wrong = -expm1(-far), power = pow(wrong, a.gamma);
    return {power, wrong > 0.0 ? power * (1.0 + a.gamma * (1.0 - wrong) * far / wrong) : power};
}

/* The gradient's factors of a row with weights, or gamma. */
template <bool MORE>
__device__ inline factors row_factors(const target &t, double weight, float top, double total,
                                      const tr_cuda_cross_entropy_args &a)
{
    if (MORE && a.gamma > 0.0)
        weight *= focus_of(a, log_of(total) + (double)top - (double)t.mine).gradient;
    factors f = factors_of(a, weight);
    if (MORE && a.samples) {
        f.gain *= t.counts;
        f.hit *= t.counts;
        f.each *= t.counts;
    }
    return f;
}

/* What one thread of the team adds when all sums are there: `total` = sum of exp(z - top), `far` of
 * distance(). */
template <bool MORE>
__device__ inline void add_row(tr_loss_sums &sums, const target &t, double weight, int ahead,
                               double far, float top, double total, int first,
                               const tr_cuda_cross_entropy_args &a)
{
    if (!t.live) return;
    const double lse = log_of(total) + (double)top;
    const bool right = t.valid && isfinite(lse);
    double loss = (1.0 - a.smoothing) * weight * (lse - (double)t.mine);
    if (a.smoothing > 0.0)
        loss += a.smoothing / (double)a.classes * (a.weight_sum * (lse - (double)t.near) + far);
    if (MORE && a.samples) loss *= (double)t.counts;
    if (MORE && a.gamma > 0.0) loss *= focus_of(a, lse - (double)t.mine).loss;
    sums.loss += t.valid ? a.factor * loss : (double)NAN;
    sums.weight += MORE && a.samples ? weight * (double)t.counts : weight;
    sums.targets += 1.0;
    sums.correct += right && ahead == 0;
    if (!a.dlogits) sums.top5 += right && ahead < TOP;
    if (a.confusion && t.valid)
        atomicAdd(reinterpret_cast<unsigned long long *>(a.confusion) +
                      (size_t)t.label * a.classes + (first < (int)a.classes ? first : 0),
                  1ull);
}

/* The true class's weight in the loss. */
__device__ inline double weight_of(const target &t, const tr_cuda_cross_entropy_args &a)
{
    return a.weights ? (t.valid ? a.weights[t.label] : 0.0) : 1.0;
}

/* What classes of a row have in common: p_i = exp(z_i - top) * gain, and its true class's place in
 * the team. */
struct slope {
    float gain;
    bool weighted; /* smoothing takes from each class by its weight */
};

__device__ inline slope slope_of(const target &t, const factors &f, double total,
                                 const tr_cuda_cross_entropy_args &a)
{
    return {t.valid ? f.gain / (float)total : NAN, a.weights && a.smoothing > 0.0};
}

/* What class i loses to smoothing. */
__device__ inline float spread_of(const slope &s, const factors &f, int i,
                                  const tr_cuda_cross_entropy_args &a)
{
    return s.weighted ? f.each * (float)a.weights[i] : f.each;
}

/* From exp(z - top) to the gradient, but for the true class. */
template <bool MORE, typename T, int V, int K>
__device__ void gradient(tr_piece<T, V, K> &e, const target &t, const factors &f, const slope &s,
                         const tr_cuda_cross_entropy_args &a)
{
    e.packs([&](float(&v)[V], int at) {
        if (MORE && t.ignored) {
            for (int j = 0; j < V; j++) v[j] = 0.0f;
        } else if (s.weighted || at + V > e.D) {
            for (int j = 0; j < V; j++)
                v[j] = at + j < e.D ? v[j] * s.gain - spread_of(s, f, at + j, a) : 0.0f;
        } else {
            TR_UNROLL
            for (int j = 0; j < V; j++) v[j] = v[j] * s.gain - f.each;
        }
    });
}

/* The true class's gradient, by the thread of the team that has written the others around it: once
 * a row, where to look for it in each pack would cost as much as an exponential. */
template <typename T, int V, bool BLOCK>
__device__ inline void write_hit(T *row, const target &t, const factors &f, const slope &s,
                                 float top, const tr_team<BLOCK> &team,
                                 const tr_cuda_cross_entropy_args &a)
{
    if (!t.valid || t.label / V % team.size != team.lane) return;
    const float off = f.hit + spread_of(s, f, t.label, a);
    row[t.label] = tr_store<T>(tr_exp_below<T>(t.mine - top) * s.gain - off);
}

/* Blocks that a multiprocessor is to hold: what registers leave. */
template <typename T, int V> __host__ __device__ constexpr int blocks_of(bool more)
{
    return V == 1 ? 1 : more || sizeof(T) == sizeof(float) ? 2 : 3;
}

// cost: read 1x write 1x min 2x flops 18 shape 8192x1000
template <typename T, int V, int K, bool BLOCK, bool MORE>
__global__ void __launch_bounds__(tr_rows_threads<V, BLOCK>(), blocks_of<T, V>(MORE))
    cross_entropy_held(pointers<T> p, int some)
{
    TR_SHARED(double, part, TR_WARP);
    const int lanes = tr_rows_lanes<V, K, BLOCK>(some), D = (int)p.a.classes;
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes;
    /* Sums of the threads that add, where they take no registers from the others. */
    TR_SHARED(tr_loss_sums, apart, BLOCK ? 1 : TR_ROWS_THREADS);
    tr_loss_sums &sums = apart[BLOCK ? 0 : threadIdx.x];
    if (!BLOCK || threadIdx.x == 0) sums = tr_loss_sums{0.0, 0.0, 0.0, 0.0, 0.0};
    factors f = factors_of(p.a, 1.0);
    const size_t first_row = blockIdx.x * per_block, mine = BLOCK ? 0 : threadIdx.x / lanes;
    const size_t step = gridDim.x * per_block;
    int label = label_of(p, first_row + mine);
    for (size_t base = first_row; base < p.a.rows; base += step) {
        const size_t row = base + mine;
        tr_piece<T, V, K> z(row < p.a.rows ? D : 0, 0, team.lane, lanes);
        tr_raw<T, V, K> raw = {};
        z.fetch(p.logits + row * p.a.pitch, raw);
        const target t = target_of<MORE>(p, row, label);
        label = label_of(p, row + step);
        const double weight = weight_of(t, p.a);
        float top = -INFINITY, sum = 0.0f;
        double far = 0.0;
        int first = D;
        z.take(raw);
        cut(z);
        z.each([&](float &v, int) { top = fmaxf(v, top); });
        top = team.most(top);
        int before = t.mine < top; /* is all that training asks, unless another is as large */
        if (!p.dlogits || __any_sync(TR_ALL_LANES, t.mine == top))
            before = (int)team.sum(count_ahead(z, t, top, !p.dlogits));
        if (p.a.smoothing > 0.0) far = team.sum(distance(z, t, p.a));
        if (p.a.confusion) {
            find(first, z, top);
            first = -team.most(-first);
        }
        z.each([&](float &v, int) {
            v = tr_exp_below<T>(v - top);
            sum += v;
        });
        const double total = team.sum(sum);
        if (team.lane == 0) add_row<MORE>(sums, t, weight, before, far, top, total, first, p.a);
        if (!p.dlogits) continue;
        if (p.a.weights || (MORE && (p.a.samples || p.a.gamma > 0.0)))
            f = row_factors<MORE>(t, weight, top, total, p.a);
        const slope s = slope_of(t, f, total, p.a);
        gradient<MORE>(z, t, f, s, p.a);
        z.write(p.dlogits + row * p.a.pitch);
        write_hit<T, V>(p.dlogits + row * p.a.pitch, t, f, s, top, team, p.a);
    }
    tr_loss_sums own = {0.0, 0.0, 0.0, 0.0, 0.0};
    if (!BLOCK || threadIdx.x == 0) own = sums;
    tr_loss_leave(own, p.a.partial, part);
}

/* Begins to copy the piece's packs of a row to where the row before it was kept: a thread's own
 * ones, which it has read. */
template <typename T, int V, int K>
__device__ inline void copy_ahead(const tr_piece<T, V, K> &z, const T *row, T *keep)
{
    TR_UNROLL
    for (int k = 0; V > 1 && k < K; k++)
        if (z.first + k * z.step < z.D)
            tr_async_copy(keep + z.first + k * z.step, row + z.first + k * z.step, true);
}

// cost: read 1x write 1x min 2x flops 30 shape 4096x50304
template <typename T, int V, int K, bool MORE>
__global__ void __launch_bounds__(TR_ROWS_LONG_THREADS, 2)
    cross_entropy_long(pointers<T> p, bool kept)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED(tr_loss_sums, apart, 1); /* of thread 0, as above */
    TR_SHARED_BYTES(room);
    T *keep = kept ? reinterpret_cast<T *>(room) : nullptr;
    const int size = (int)blockDim.x, D = (int)p.a.classes, chunk = K * V * size;
    const tr_team<true> team(size, part);
    if (threadIdx.x == 0) apart[0] = tr_loss_sums{0.0, 0.0, 0.0, 0.0, 0.0};
    factors f = factors_of(p.a, 1.0);
    int label = label_of(p, blockIdx.x);
    const bool early = V > 1 && keep; /* the next row comes while this one's gradient is written */
    const size_t next = gridDim.x * p.a.pitch;
    for (int from = 0; early && from < D; from += chunk)
        copy_ahead(tr_piece<T, V, K>(D, from, team.lane, size), p.logits + blockIdx.x * p.a.pitch,
                   keep);
    for (size_t row = blockIdx.x; row < p.a.rows; row += gridDim.x) {
        const T *from_row = p.logits + row * p.a.pitch;
        tr_online o = tr_online_start();
        double far = 0.0;
        int first = D, ahead = 0;
        const target t = target_of<MORE>(p, row, label);
        label = label_of(p, row + gridDim.x);
        if (early) tr_async_wait();
        TR_NO_UNROLL
        for (int from = 0; from < D; from += chunk) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            if (early)
                z.read(keep);
            else
                z.read(from_row, keep);
            cut(z);
            tr_online_add(o, z);
            if (!p.dlogits) ahead += count_ahead(z, t, 0.0f, true);
            if (p.a.smoothing > 0.0) far += distance(z, t, p.a);
        }
        o = tr_online_merge<T>(o, team);
        /* Only rows whose true class is as large as any are looked through once more. */
        if (p.dlogits && t.mine < o.top) ahead = 1;
        TR_NO_UNROLL
        for (int from = 0; p.dlogits && t.mine == o.top && from < t.label; from += chunk) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(keep ? keep : from_row);
            cut(z);
            ahead += count_ahead(z, t, o.top, false);
        }
        ahead = (int)team.sum(ahead);
        if (p.a.smoothing > 0.0) far = team.sum(far);
        TR_NO_UNROLL
        for (int from = 0; p.a.confusion && from < D; from += chunk) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(keep ? keep : from_row);
            cut(z);
            find(first, z, o.top);
        }
        if (p.a.confusion) first = -team.most(-first);
        const double weight = weight_of(t, p.a);
        if (team.lane == 0)
            add_row<MORE>(apart[0], t, weight, ahead, far, o.top, o.sum, first, p.a);
        if (p.a.weights || (MORE && (p.a.samples || p.a.gamma > 0.0)))
            f = row_factors<MORE>(t, weight, o.top, o.sum, p.a);
        const slope s = slope_of(t, f, o.sum, p.a);
        const T *later = early && row + gridDim.x < p.a.rows ? from_row + next : nullptr;
        TR_NO_UNROLL
        for (int from = 0; (p.dlogits || later) && from < D; from += chunk) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            if (p.dlogits) z.read(keep ? keep : from_row);
            if (later) copy_ahead(z, later, keep);
            if (!p.dlogits) continue;
            cut(z);
            z.each([&](float &v, int) { v = tr_exp_below<T>(v - o.top); });
            gradient<MORE>(z, t, f, s, p.a);
            z.write(p.dlogits + row * p.a.pitch);
        }
        if (p.dlogits) write_hit<T, V>(p.dlogits + row * p.a.pitch, t, f, s, o.top, team, p.a);
    }
    tr_loss_sums own = {0.0, 0.0, 0.0, 0.0, 0.0};
    if (threadIdx.x == 0) own = apart[0];
    tr_loss_leave(own, p.a.partial, part);
}

template <typename T, int V, bool MORE>
tr_status launch(const tr_cuda_cross_entropy_args *a, unsigned *grid, cudaStream_t stream)
{
    using packs = tr_rows_packs<V>;
    const pointers<T> p = {static_cast<const T *>(a->logits), static_cast<T *>(a->dlogits), *a};
    const tr_rows_plan plan = tr_rows_of<V>(a->classes);
    const size_t room = plan.kind == TR_ROWS_LONG ? tr_rows_keep<T>(a->pitch, 1, a->keep) : 0;
    *grid = tr_blocks(a->rows, plan.rows, TR_LOSS_BLOCKS);
    switch (plan.kind) {
    case TR_ROWS_WARP8:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_held<T, V, packs::FEW, false, MORE>), *grid,
                         plan.block, 0, stream, p, plan.lanes);
    case TR_ROWS_WARP32:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_held<T, V, packs::WARP, false, MORE>), *grid,
                         plan.block, 0, stream, p, plan.lanes);
    case TR_ROWS_BLOCK:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_held<T, V, packs::BLOCK, true, MORE>), *grid,
                         plan.block, 0, stream, p, plan.lanes);
    default:
        return TR_LAUNCH(TR_KERNEL(cross_entropy_long<T, V, packs::LONG, MORE>), *grid, plan.block,
                         room, stream, p, room > 0);
    }
}

template <typename T, int V> struct long_kernels {
    const void *at[2] = {
        reinterpret_cast<const void *>(&cross_entropy_long<T, V, tr_rows_packs<V>::LONG, false>),
        reinterpret_cast<const void *>(&cross_entropy_long<T, V, tr_rows_packs<V>::LONG, true>)};
};

template <typename T, int V>
tr_status choose(const tr_cuda_cross_entropy_args *a, unsigned *grid, cudaStream_t stream)
{
    return a->ignores || a->samples || a->gamma > 0 ? launch<T, V, true>(a, grid, stream)
                                                    : launch<T, V, false>(a, grid, stream);
}

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
        const bool wide = aligned && a->pitch % V == 0 && a->pitch < a->classes + V;
        st = wide ? choose<T, V>(a, &blocks, stream) : choose<T, 1>(a, &blocks, stream);
    })
    if (st != TR_OK) return st;
    const tr_cuda_counted counted = tr_cuda_rows_counted(a);
    return tr_cuda_tally_add(a->partial, blocks, &counted, a->tally, stream);
}
