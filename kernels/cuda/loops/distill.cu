/* A model's rows beside a teacher's: KL(softmax(teacher / T) || softmax(logits / T)) with its
 * gradient scale / T * (second softmax - first), and squared distance.
 *
 * Bytes: both rows once more than the minimum (sums first, then the gradient), which the caches
 * hold up to some ten thousand classes; features: both once, the gradient once: the minimum.
 * Meaning and corner cases are those of kernels/cpu/loops/distill.c. */
#include "kernels/cuda/loops/online.cuh"
#include "kernels/cuda/loops/tally.cuh"

namespace
{

/* MIN_BLOCKS: or the compiler keeps registers for more than these, and values in memory. */
enum { THREADS = 256, MIN_BLOCKS = 2 };

template <typename T> struct pointers {
    const T *x, *teacher;
    T *dx;
    tr_cuda_distill_args a;
};

/* The samples are counted by the model's own loss. */
const tr_cuda_counted loss_alone = {0.0, 0.0, 1.0, 1.0, 1.0};

/* What a row counts; a label that is no class makes it NaN. */
__device__ inline double counts(const tr_cuda_distill_args &a, size_t row)
{
    if (!a.weights) return a.factor;
    const int label = a.labels[row];
    return label >= 0 && (size_t)label < a.classes ? a.factor * a.weights[label] : (double)NAN;
}

/* Of a row times `inverse`. */
template <typename T, int V, int K, bool BLOCK>
__device__ tr_online soften(const T *row, int D, float inverse, const tr_team<BLOCK> &team)
{
    tr_online o = tr_online_start();
    for (int from = 0; from < D; from += K * V * team.size) {
        tr_piece<T, V, K> z(D, from, team.lane, team.size);
        z.read(row);
        z.each([&](float &v, int) { v *= inverse; });
        tr_online_add(o, z);
    }
    return tr_online_merge<T>(o, team);
}

// cost: read 4x write 1x min 3x flops 40 shape 8192x1000
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(THREADS, MIN_BLOCKS) soft_loss(pointers<T> p)
{
    TR_SHARED(double, part, TR_WARP);
    const tr_team<BLOCK> team(BLOCK ? (int)blockDim.x : (int)TR_WARP, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / TR_WARP;
    const float inverse = (float)p.a.inverse;
    const double scale = p.dx ? (double)tr_loss_scale(p.a.control, p.a.scale) * p.a.inverse : 0.0;
    double loss = 0.0;
    for (size_t base = blockIdx.x * per_block; base < p.a.rows; base += gridDim.x * per_block) {
        const size_t row = base + (BLOCK ? 0 : threadIdx.x / TR_WARP);
        const bool live = row < p.a.rows;
        const int D = live ? (int)p.a.width : 0;
        const T *mine = p.x + row * p.a.width, *theirs = p.teacher + row * p.a.width;
        const tr_online q = soften<T, V, K>(mine, D, inverse, team);
        const tr_online t = soften<T, V, K>(theirs, D, inverse, team);
        const float over_q = (float)(1.0 / q.sum), over_t = (float)(1.0 / t.sum);
        const double weight = live ? counts(p.a, row) : 0.0;
        const float gain = (float)(scale * weight);
        double kl = 0.0;
        for (int from = 0; from < D; from += K * V * team.size) {
            tr_piece<T, V, K> z(D, from, team.lane, team.size), y(z);
            float some = 0.0f;
            z.read(mine);
            y.read(theirs);
            z.each(y, [&](float &v, float &w, int) {
                const float a = v * inverse - q.top, b = w * inverse - t.top;
                const float share = expf(b) * over_t;
                some += share == 0.0f ? 0.0f : share * (b - a);
                v = gain * (expf(a) * over_q - share);
            });
            kl += (double)some;
            if (p.dx) z.write(p.dx + row * p.a.width);
        }
        kl = team.sum(kl);
        if (live && team.lane == 0) loss += weight * (kl + log(q.sum / t.sum));
    }
    const tr_loss_sums sums = {loss, 0.0, 0.0, 0.0, 0.0};
    tr_loss_leave(sums, p.a.partial, part);
}

// cost: read 2x write 1x min 3x flops 5 shape 8192x1024
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) feature_loss(pointers<T> p, size_t count)
{
    TR_SHARED(double, part, TR_WARP);
    const double scale = p.dx ? 2.0 * (double)tr_loss_scale(p.a.control, p.a.scale) : 0.0;
    const size_t step = (size_t)gridDim.x * THREADS * V;
    tr_loss_sums sums = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * V; at < count; at += step) {
        const tr_pack<T, V> x = *reinterpret_cast<const tr_pack<T, V> *>(p.x + at);
        const tr_pack<T, V> y = *reinterpret_cast<const tr_pack<T, V> *>(p.teacher + at);
        const double weight = counts(p.a, p.a.weights ? at / p.a.width : 0);
        const float gain = (float)(scale * weight);
        tr_pack<T, V> dx;
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float d = tr_load<T>(x.v[j]) - tr_load<T>(y.v[j]);
            sums.loss += weight * (double)d * (double)d;
            dx.v[j] = tr_store<T>(gain * d);
        }
        if (p.dx) tr_put(p.dx + at, dx);
    }
    tr_loss_leave(sums, p.a.partial, part);
}

template <typename T> pointers<T> pointers_of(const tr_cuda_distill_args *a)
{
    return {static_cast<const T *>(a->x), static_cast<const T *>(a->teacher),
            static_cast<T *>(a->dx), *a};
}

template <typename T, int V>
tr_status launch_soft(const tr_cuda_distill_args *a, unsigned *grid, cudaStream_t stream)
{
    constexpr int K = V == 1 ? 4 : tr_rows_packs<V>::FEW;
    const bool narrow = a->width <= TR_WARP * V * K;
    *grid = tr_blocks(a->rows, narrow ? THREADS / TR_WARP : 1, TR_LOSS_BLOCKS);
    if (narrow)
        return TR_LAUNCH(TR_KERNEL(soft_loss<T, V, K, false>), *grid, THREADS, 0, stream,
                         pointers_of<T>(a));
    return TR_LAUNCH(TR_KERNEL(soft_loss<T, V, K, true>), *grid, THREADS, 0, stream,
                     pointers_of<T>(a));
}

template <typename T, int V>
tr_status launch_features(const tr_cuda_distill_args *a, unsigned *grid, cudaStream_t stream)
{
    *grid = tr_blocks(a->rows * a->width, (size_t)THREADS * V, TR_LOSS_BLOCKS);
    return TR_LAUNCH(TR_KERNEL(feature_loss<T, V>), *grid, THREADS, 0, stream, pointers_of<T>(a),
                     a->rows * a->width);
}

/* Rows of whole packs. */
template <typename T> bool wide(const tr_cuda_distill_args *a)
{
    return tr_is_aligned(a->x, 16) && tr_is_aligned(a->teacher, 16) && tr_is_aligned(a->dx, 16) &&
           a->width % tr_wide<T>::V == 0;
}

} // namespace

tr_status tr_cuda_soft_loss_run(tr_dtype t, const tr_cuda_distill_args *a, cudaStream_t stream)
{
    unsigned blocks = 0;
    tr_status st = TR_OK;
    if (a->rows * a->width == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        st = wide<T>(a) ? launch_soft<T, V>(a, &blocks, stream)
                        : launch_soft<T, 1>(a, &blocks, stream);
    })
    if (st != TR_OK) return st;
    return tr_cuda_tally_add(a->partial, blocks, &loss_alone, a->tally, stream);
}

tr_status tr_cuda_feature_loss_run(tr_dtype t, const tr_cuda_distill_args *a, cudaStream_t stream)
{
    unsigned blocks = 0;
    tr_status st = TR_OK;
    if (a->rows * a->width == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        st = wide<T>(a) ? launch_features<T, V>(a, &blocks, stream)
                        : launch_features<T, 1>(a, &blocks, stream);
    })
    if (st != TR_OK) return st;
    return tr_cuda_tally_add(a->partial, blocks, &loss_alone, a->tally, stream);
}
