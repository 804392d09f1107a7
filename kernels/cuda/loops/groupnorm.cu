/* Group normalization (Wu and He 2018) of channels-last samples, and its gradient.
 *
 * Forward: a block a group of a sample, over places x channels of the group: a first mean, then the
 * deviations from it, which also tell how far off it was, then the results. A group of a sample is
 * read three times, the second and third time mostly from the second-level cache.
 *
 * Backward: sums over places of dy and dy * xhat for each channel of each sample, in float32 a
 * thread, then in float64; of these the groups' sums for dx = rstd * (g - mean(g) - xhat * mean(g *
 * xhat)), g = dy * weight, and the parameters' gradients, added over the samples by layernorm's
 * kernel for that. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/groupnorm.h"
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

/* Threads of a block; of groupnorm_grad_channels COLUMNS channels side by side. */
enum { THREADS = 256, COLUMNS = 32 };

struct shape {
    size_t teams;        /* groups of all samples */
    unsigned groups, of; /* of a sample; channels of one */
    size_t places, C;
    tr_divider by_channels; /* by `of` */
};

/* Of i elements of a group, counted over its channels, then its places: where it lies behind the
 * group's first; its channel. */
__device__ inline size_t place_of(const shape &s, size_t i, unsigned *channel)
{
    const size_t place = tr_quotient(s.by_channels, i);
    *channel = (unsigned)(i - place * s.of);
    return place * s.C + *channel;
}

__device__ inline size_t first_of(const shape &s, size_t team)
{
    return team / s.groups * s.places * s.C + team % s.groups * s.of;
}

/* V channels at a time; `of` is a multiple of it. */
// cost: read 3x write 1x min 2x flops 9 shape 8192x1024
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    groupnorm(shape s, const T *x, const float *weight, const float *bias, double eps, T *y,
              float *stats)
{
    enum { STEP = THREADS * V };
    using pack = tr_pack<T, V>;
    TR_SHARED(double, part, TR_WARP);
    const size_t count = s.places * s.of;
    for (size_t team = blockIdx.x; team < s.teams; team += gridDim.x) {
        const size_t first = first_of(s, team), channel0 = team % s.groups * s.of;
        unsigned c;
        float sum = 0.0f, off = 0.0f, squares = 0.0f;
        for (size_t i = threadIdx.x * (size_t)V; i < count; i += STEP) {
            const pack p = *reinterpret_cast<const pack *>(x + first + place_of(s, i, &c));
            TR_UNROLL
            for (int j = 0; j < V; j++) sum += tr_load<T>(p.v[j]);
        }
        const float about = (float)(tr_block_sum((double)sum, part) / (double)count);
        for (size_t i = threadIdx.x * (size_t)V; i < count; i += STEP) {
            const pack p = *reinterpret_cast<const pack *>(x + first + place_of(s, i, &c));
            TR_UNROLL
            for (int j = 0; j < V; j++) {
                const float d = tr_load<T>(p.v[j]) - about;
                off += d;
                squares += d * d;
            }
        }
        const double shift = tr_block_sum((double)off, part) / (double)count;
        const double variance = tr_block_sum((double)squares, part) / (double)count - shift * shift;
        const float mean = (float)(about + shift);
        const float rstd = 1.0f / sqrtf((float)((variance < 0.0 ? 0.0 : variance) + eps));
        for (size_t i = threadIdx.x * (size_t)V; i < count; i += STEP) {
            const size_t at = first + place_of(s, i, &c);
            pack p = *reinterpret_cast<const pack *>(x + at);
            TR_UNROLL
            for (int j = 0; j < V; j++) {
                const float v = (tr_load<T>(p.v[j]) - mean) * rstd;
                p.v[j] = tr_store<T>(v * (weight ? weight[channel0 + c + j] : 1.0f) +
                                     (bias ? bias[channel0 + c + j] : 0.0f));
            }
            tr_put(y + at, p);
        }
        if (threadIdx.x > 0 || !stats) continue;
        stats[2 * team] = mean;
        stats[2 * team + 1] = rstd;
    }
}

/* A block COLUMNS channels of a sample: of each the sums over its places of dy * xhat, then of dy,
 * C apart. */
// cost: read 2x write 0x min 2x flops 5 shape 8192x1024
template <typename T>
__global__ void __launch_bounds__(THREADS)
    groupnorm_grad_channels(shape s, const T *dy, const T *x, const float *stats, float *partial,
                            size_t tiles, size_t blocks)
{
    enum { DEPTH = THREADS / COLUMNS };
    TR_SHARED(float, part, 2 * THREADS);
    const unsigned column = threadIdx.x % COLUMNS, depth = threadIdx.x / COLUMNS;
    for (size_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const size_t sample = block / tiles, c = block % tiles * COLUMNS + column;
        float dw = 0.0f, db = 0.0f;
        if (c < s.C) {
            const float *own = stats + 2 * (sample * s.groups + c / s.of);
            const float mean = own[0], rstd = own[1];
            for (size_t p = depth; p < s.places; p += DEPTH) {
                const size_t at = (sample * s.places + p) * s.C + c;
                const float d = tr_load<T>(dy[at]);
                dw += d * ((tr_load<T>(x[at]) - mean) * rstd);
                db += d;
            }
        }
        __syncthreads();
        part[threadIdx.x] = dw;
        part[THREADS + threadIdx.x] = db;
        __syncthreads();
        if (depth > 0 || c >= s.C) continue;
        double all = 0.0, all_d = 0.0;
        for (int i = 0; i < DEPTH; i++) {
            all += part[i * COLUMNS + column];
            all_d += part[THREADS + i * COLUMNS + column];
        }
        partial[sample * 2 * s.C + c] = (float)all;
        partial[sample * 2 * s.C + s.C + c] = (float)all_d;
    }
}

// cost: read 2x write 1x min 3x flops 8 shape 8192x1024
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    groupnorm_grad_input(shape s, const T *dy, const T *x, const float *weight, const float *stats,
                         const float *partial, T *dx)
{
    enum { STEP = THREADS * V };
    using pack = tr_pack<T, V>;
    TR_SHARED(double, part, TR_WARP);
    const size_t count = s.places * s.of;
    for (size_t team = blockIdx.x; team < s.teams; team += gridDim.x) {
        const size_t first = first_of(s, team), channel0 = team % s.groups * s.of;
        const float *sums = partial + team / s.groups * 2 * s.C + channel0;
        const float mean = stats[2 * team], rstd = stats[2 * team + 1];
        double sum = 0.0, sum_x = 0.0;
        unsigned c;
        for (unsigned i = threadIdx.x; i < s.of; i += THREADS) {
            const float w = weight ? weight[channel0 + i] : 1.0f;
            sum_x += w * sums[i];
            sum += w * sums[s.C + i];
        }
        const float mean_g = (float)(tr_block_sum(sum, part) / (double)count);
        const float slope = (float)(tr_block_sum(sum_x, part) / (double)count) * rstd;
        for (size_t i = threadIdx.x * (size_t)V; i < count; i += STEP) {
            const size_t at = first + place_of(s, i, &c);
            const pack saved = *reinterpret_cast<const pack *>(x + at);
            pack p = *reinterpret_cast<const pack *>(dy + at);
            TR_UNROLL
            for (int j = 0; j < V; j++) {
                const float g = tr_load<T>(p.v[j]) * (weight ? weight[channel0 + c + j] : 1.0f);
                p.v[j] = tr_store<T>(rstd * (g - mean_g - (tr_load<T>(saved.v[j]) - mean) * slope));
            }
            tr_put(dx + at, p);
        }
    }
}

shape shape_of(const tr_cuda_groupnorm_shape *s)
{
    const size_t of = s->C / s->groups;
    return {s->samples * s->groups, (unsigned)s->groups, (unsigned)of, s->places, s->C,
            tr_divide_by(of)};
}

template <typename T> bool wide(const shape &s, const void *a, const void *b, const void *c)
{
    return s.of % tr_wide<T>::V == 0 && tr_is_aligned(a, 16) && tr_is_aligned(b, 16) &&
           tr_is_aligned(c, 16);
}

template <typename T, int V>
tr_status launch(const shape &s, const void *x, const float *weight, const float *bias, double eps,
                 void *y, float *stats, cudaStream_t stream)
{
    return TR_LAUNCH(TR_KERNEL(groupnorm<T, V>), tr_rounds(s.teams, 1), THREADS, 0, stream, s,
                     static_cast<const T *>(x), weight, bias, eps, static_cast<T *>(y), stats);
}

template <typename T, int V>
tr_status launch_grad_input(const shape &s, const tr_cuda_groupnorm_grad_args *a,
                            cudaStream_t stream)
{
    return TR_LAUNCH(TR_KERNEL(groupnorm_grad_input<T, V>), tr_rounds(s.teams, 1), THREADS, 0,
                     stream, s, static_cast<const T *>(a->dy), static_cast<const T *>(a->x),
                     a->weight, a->stats, a->partial, static_cast<T *>(a->dx));
}

} // namespace

tr_status tr_cuda_groupnorm_run(tr_dtype t, const tr_cuda_groupnorm_shape *of, const void *x,
                                const float *weight, const float *bias, double eps, void *y,
                                float *stats, cudaStream_t stream)
{
    const shape s = shape_of(of);
    if (s.teams == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        return wide<T>(s, x, y, x) ? launch<T, V>(s, x, weight, bias, eps, y, stats, stream)
                                   : launch<T, 1>(s, x, weight, bias, eps, y, stats, stream);
    })
    return TR_OK;
}

template <typename T>
static tr_status launch_grad(const shape &s, size_t samples, const tr_cuda_groupnorm_grad_args *a,
                             cudaStream_t stream)
{
    const T *dy = static_cast<const T *>(a->dy), *x = static_cast<const T *>(a->x);
    const size_t tiles = (s.C + COLUMNS - 1) / COLUMNS, blocks = samples * tiles;
    tr_status st = TR_OK;
    /* first, because dx may lie where dy does */
    TR_TRY(TR_LAUNCH(groupnorm_grad_channels<T>, tr_rounds(blocks, 1), THREADS, 0, stream, s, dy, x,
                     a->stats, a->partial, tiles, blocks));
    if (a->dx) {
        constexpr int V = tr_wide<T>::V;
        st = wide<T>(s, dy, x, a->dx) ? launch_grad_input<T, V>(s, a, stream)
                                      : launch_grad_input<T, 1>(s, a, stream);
        if (st != TR_OK) goto out;
    }
    if (a->dweight || a->dbias)
        TR_TRY(tr_cuda_layernorm_grad_sum(a->partial, (unsigned)samples, s.C, a->dweight, a->dbias,
                                          a->accumulate, stream));
out:
    return st;
}

tr_status tr_cuda_groupnorm_grad_run(tr_dtype t, const tr_cuda_groupnorm_shape *of,
                                     const tr_cuda_groupnorm_grad_args *a, cudaStream_t stream)
{
    const shape s = shape_of(of);
    if (s.teams == 0) return TR_OK;
    TR_BY_TYPE(t, T, return launch_grad<T>(s, of->samples, a, stream))
    return TR_OK;
}
