/* Batchnorm forward: y = act((x - mean) * scale + shift + residual) in one pass. A block works out
 * the coefficients of its channels once, into shared memory, and its threads keep those of their
 * channels in registers. mean is the float32 nearest to the float64 mean, and shift holds the rest
 * of it: where x is far from 0 and varies little, x - mean is exact, while x * scale would lose
 * what matters.
 *
 * Moves x, residual and y once (the minimum), 24 bytes a channel and block beside. */
#include "kernels/cuda/loops/batchnorm.cuh"

/* The coefficients of channel c; moves the running statistics (as PyTorch: variance unbiased) where
 * this block is the one to do so. They stay where the batch's are not finite, so that a step that
 * is skipped for an overflow does not spoil them, and the variance stays where there is but one
 * value. */
static __device__ inline void set_channel(const tr_bn_norm &o, size_t C, size_t c, bool update,
                                          float *mean, float *scale, float *shift)
{
    double average, variance;
    if (o.stats) {
        const double n = o.stats[0], m2 = o.stats[1 + C + c];
        average = o.stats[1 + c];
        variance = m2 / n;
        if (update && isfinite(average) && isfinite(m2)) {
            const double keep = 1.0 - o.momentum;
            o.running_mean[c] = (float)(keep * (double)o.running_mean[c] + o.momentum * average);
            if (n > 1.0)
                o.running_var[c] =
                    (float)(keep * (double)o.running_var[c] + o.momentum * m2 / (n - 1.0));
        }
    } else {
        average = (double)o.running_mean[c];
        variance = (double)o.running_var[c];
    }
    const double s = (o.weight ? (double)o.weight[c] : 1.0) / sqrt(variance + o.eps);
    *mean = (float)average;
    *scale = (float)s;
    *shift = (float)((o.bias ? (double)o.bias[c] : 0.0) - (average - (double)*mean) * s);
}

template <int P> static __device__ inline void activate(tr_act act, float *v)
{
    if (act == TR_ACT_NONE) return;
    if (act == TR_ACT_RELU) {
        TR_UNROLL
        for (int j = 0; j < P; j++) v[j] = v[j] < 0.0f ? 0.0f : v[j];
        return;
    }
    for (int j = 0; j < P; j++) v[j] = tr_activate(act, v[j]);
}

// cost: read 1x write 1x min 2x flops 4 shape 802816x64
template <typename T, int P>
static __global__ void __launch_bounds__(TR_BN_THREADS, 3)
    bn_apply(tr_bn_map m, tr_act act, const T *x, const T *residual, tr_bn_norm norm, T *y)
{
    constexpr int together = P == 1 ? 8 : 4; /* rows under way at a time */
    TR_SHARED(float, means, TR_BN_CHANNELS);
    TR_SHARED(float, scales, TR_BN_CHANNELS);
    TR_SHARED(float, shifts, TR_BN_CHANNELS);
    const bn_place p = bn_place_of<P>(m);
    if (norm.stats && norm.stats[0] == 0.0) return; /* all shares are empty */
    for (int i = (int)threadIdx.x; i < p.channels; i += (int)blockDim.x)
        set_channel(norm, m.C, p.first + (size_t)i, norm.update && p.chunk == 0, &means[i],
                    &scales[i], &shifts[i]);
    __syncthreads();
    if (!p.on) return;
    float mean[P], scale[P], shift[P];
    TR_UNROLL
    for (int j = 0; j < P; j++) {
        mean[j] = means[p.tx * P + j];
        scale[j] = scales[p.tx * P + j];
        shift[j] = shifts[p.tx * P + j];
    }
    /* what a thread goes by is one offset and one count: registers are scarce here */
    const size_t stride = (size_t)m.by * m.C;
    size_t at = (p.begin + (size_t)p.ty) * m.C + p.channel;
    for (size_t left = bn_lane_rows(p.end - p.begin, p.ty, m.by); left > 0;
         at += together * stride) {
        tr_words_t<T, P> v[together], add[together];
        const int n = left < (size_t)together ? (int)left : together;
        left -= (size_t)n;
        TR_UNROLL
        for (int u = 0; u < together; u++)
            if (u < n) v[u] = tr_read_words<T, P>(x + at + (size_t)u * stride);
        if (residual) {
            TR_UNROLL
            for (int u = 0; u < together; u++)
                if (u < n) add[u] = tr_read_words<T, P>(residual + at + (size_t)u * stride);
        }
        TR_UNROLL
        for (int u = 0; u < together; u++) {
            if (u >= n) continue;
            float a[P];
            tr_unpack<T, P>(v[u], a);
            TR_UNROLL
            for (int j = 0; j < P; j++) a[j] = (a[j] - mean[j]) * scale[j] + shift[j];
            if (residual) {
                float b[P];
                tr_unpack<T, P>(add[u], b);
                TR_UNROLL
                for (int j = 0; j < P; j++) a[j] += b[j];
            }
            activate<P>(act, a);
            bn_write<T, P>(y + at + (size_t)u * stride, a);
        }
    }
}

template <typename T, int P>
static tr_status launch_apply(cudaStream_t stream, const tr_bn_map *m, tr_act act, const void *x,
                              const void *residual, const tr_bn_norm *norm, void *y)
{
    return TR_LAUNCH(TR_KERNEL(bn_apply<T, P>), (unsigned)(m->tiles * m->chunks),
                     (unsigned)(m->bx * m->by), 0, stream, *m, act, (const T *)x,
                     (const T *)residual, *norm, (T *)y);
}

tr_status tr_bn_apply(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m, tr_act act,
                      const void *x, const void *residual, const tr_bn_norm *norm, void *y)
{
    tr_status st = TR_OK;
    if (m->rows == 0 && !norm->update) return TR_OK;
    TR_BY_TYPE(dtype, T,
               st = m->width == 1
                        ? launch_apply<T, 1>(stream, m, act, x, residual, norm, y)
                        : launch_apply<T, 16 / sizeof(T)>(stream, m, act, x, residual, norm, y));
    return st;
}
