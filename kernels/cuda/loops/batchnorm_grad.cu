/* Batchnorm backward in two passes, with the sums over all ranks in between; xhat = (x - mean) /
 * std:
 *
 *     dz = (dy + dy2) where y > 0           dweight = sum dz xhat     dbias = sum dz
 *     dx = weight / std (dz - sum dz / n - xhat sum (dz xhat) / n) = a dz + b (x - mean) + c0
 *
 * Sums: float32 over at most 16 rows of a thread, float64 from there on, in an order that the shape
 * alone decides: off by at most 16 * 2^-24 = 1e-6 of sum |term|. x - mean is taken about the
 * float32 nearest to the mean, and what that leaves out is put right in float64 at the end.
 *
 * Moves dy, x, y, dy2 and dz (where they are there), then dz, x and dx, once each: the minimum. */
#include "kernels/cuda/loops/batchnorm.cuh"

/* ---- Sums ------------------------------------------------------------------------------------ */

/* sum_dx is about the rounded mean. */
static __device__ inline void set_sums(const tr_bn_grads &g, size_t C, size_t c, double sum_d,
                                       double sum_dx)
{
    const double mean = g.stats[1 + c], off = mean - (double)(float)mean;
    const double inverse = 1.0 / sqrt(g.stats[1 + C + c] / g.stats[0] + g.eps);
    sum_dx = (sum_dx - off * sum_d) * inverse;
    g.sums[c] = sum_d;
    g.sums[C + c] = sum_dx;
    if (g.dweight) g.dweight[c] = (g.accumulate ? g.dweight[c] : 0.0f) + (float)sum_dx;
    if (g.dbias) g.dbias[c] = (g.accumulate ? g.dbias[c] : 0.0f) + (float)sum_d;
}

/* Adds n rows, `stride` elements apart from element `at` on, to the sums; writes dz. */
template <typename T, int P, int together>
static __device__ inline void grad_rows(const tr_bn_grads &g, size_t at, size_t stride, int n,
                                        const float *mean, float *sum_d, float *sum_dx)
{
    tr_words_t<T, P> dy[together], x[together], y[together], dy2[together];
    TR_UNROLL
    for (int u = 0; u < together; u++)
        if (u < n) {
            dy[u] = tr_read_words<T, P>((const T *)g.dy + at + (size_t)u * stride);
            x[u] = tr_read_words<T, P>((const T *)g.x + at + (size_t)u * stride);
        }
    if (g.y) {
        TR_UNROLL
        for (int u = 0; u < together; u++)
            if (u < n) y[u] = tr_read_words<T, P>((const T *)g.y + at + (size_t)u * stride);
    }
    if (g.dy2) {
        TR_UNROLL
        for (int u = 0; u < together; u++)
            if (u < n) dy2[u] = tr_read_words<T, P>((const T *)g.dy2 + at + (size_t)u * stride);
    }
    TR_UNROLL
    for (int u = 0; u < together; u++) {
        if (u >= n) continue;
        float d[P], other[P];
        tr_unpack<T, P>(dy[u], d);
        if (g.dy2) {
            tr_unpack<T, P>(dy2[u], other);
            TR_UNROLL
            for (int j = 0; j < P; j++) d[j] += other[j];
        }
        if (g.y) {
            tr_unpack<T, P>(y[u], other);
            TR_UNROLL
            for (int j = 0; j < P; j++) d[j] = other[j] > 0.0f ? d[j] : 0.0f;
        }
        if (g.dz) bn_write<T, P>((T *)g.dz + at + (size_t)u * stride, d);
        tr_unpack<T, P>(x[u], other);
        TR_UNROLL
        for (int j = 0; j < P; j++) {
            sum_d[j] += d[j];
            sum_dx[j] += d[j] * (other[j] - mean[j]);
        }
    }
}

// cost: read 3x write 1.005x min 4x flops 5 shape 802816x64
template <typename T, int P>
static __global__ void __launch_bounds__(TR_BN_THREADS, 2)
    bn_grad_stats(tr_bn_map m, tr_bn_grads g, double *parts)
{
    constexpr int together = P == 1 ? 4 : 2; /* rows under way at a time, of up to four operands */
    TR_SHARED(double, part_d, TR_BN_THREADS *P);
    TR_SHARED(double, part_dx, TR_BN_THREADS *P);
    const bn_place p = bn_place_of<P>(m);
    if (p.on) {
        const int me =
            (int)threadIdx.x; /* float64 sums stay in shared memory: registers are short */
        float mean[P];
        TR_UNROLL
        for (int j = 0; j < P; j++) {
            mean[j] = (float)g.stats[1 + p.channel + (size_t)j];
            part_d[j * TR_BN_THREADS + me] = part_dx[j * TR_BN_THREADS + me] = 0.0;
        }
        const size_t mine = bn_lane_rows(p.end - p.begin, p.ty, m.by), stride = (size_t)m.by * m.C;
        const size_t at = (p.begin + (size_t)p.ty) * m.C + p.channel;
        for (size_t seen = 0; seen < mine; seen += TR_BN_RUN) {
            float sum_d[P], sum_dx[P];
            TR_UNROLL
            for (int j = 0; j < P; j++) sum_d[j] = sum_dx[j] = 0.0f;
            const int n = mine - seen < TR_BN_RUN ? (int)(mine - seen) : (int)TR_BN_RUN;
            for (int k = 0; k < n; k += together)
                grad_rows<T, P, together>(g, at + (seen + (size_t)k) * stride, stride, n - k, mean,
                                          sum_d, sum_dx);
            TR_UNROLL
            for (int j = 0; j < P; j++) {
                part_d[j * TR_BN_THREADS + me] += (double)sum_d[j];
                part_dx[j * TR_BN_THREADS + me] += (double)sum_dx[j];
            }
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.channels; i += (int)blockDim.x) {
        const size_t c = p.first + (size_t)i;
        const int slot = i % P * TR_BN_THREADS + i / P;
        double sum_d = 0.0, sum_dx = 0.0;
        for (int ty = 0; ty < m.by; ty++) {
            sum_d += part_d[slot + ty * m.bx];
            sum_dx += part_dx[slot + ty * m.bx];
        }
        if (m.chunks == 1) {
            set_sums(g, m.C, c, sum_d, sum_dx);
        } else {
            parts[p.chunk * 2 * m.C + c] = sum_d;
            parts[(p.chunk * 2 + 1) * m.C + c] = sum_dx;
        }
    }
}

// cost: read 2d write 0.004d min 2.004d flops 2 shape 528x64 per channel and chunk
static __global__ void __launch_bounds__(BN_MERGE_THREADS)
    bn_grad_chunks(tr_bn_map m, tr_bn_grads g, const double *parts)
{
    TR_SHARED(double, part, BN_MERGE_CHANNELS *BN_MERGE_WARPS);
    const size_t c = blockIdx.x * (size_t)BN_MERGE_CHANNELS + threadIdx.x % BN_MERGE_CHANNELS;
    double d[BN_MERGE_HELD], dx[BN_MERGE_HELD], sum_d = 0.0, sum_dx = 0.0;
    bn_merge_read(m, parts, c, d, dx);
    TR_UNROLL
    for (int k = 0; k < BN_MERGE_HELD; k++) {
        sum_d += d[k];
        sum_dx += dx[k];
    }
    sum_d = bn_lanes_sum(sum_d, part);
    sum_dx = bn_lanes_sum(sum_dx, part);
    if (c < m.C && threadIdx.x < BN_MERGE_CHANNELS) set_sums(g, m.C, c, sum_d, sum_dx);
}

template <typename T, int P>
static tr_status launch_stats(cudaStream_t stream, const tr_bn_map *m, const tr_bn_grads *g,
                              double *parts)
{
    return TR_LAUNCH(TR_KERNEL(bn_grad_stats<T, P>), (unsigned)(m->tiles * m->chunks),
                     (unsigned)(m->bx * m->by), 0, stream, *m, *g, parts);
}

static tr_status clear(cudaStream_t stream, void *p, size_t nbytes)
{
    return p ? tr_cuda_check(cudaMemsetAsync(p, 0, nbytes, stream),
                             "cudaMemsetAsync(sums of no rows)")
             : TR_OK;
}

/* Of no rows: sums are zero, and so are parameter gradients that are not added to. */
static tr_status no_rows(cudaStream_t stream, size_t C, const tr_bn_grads *g)
{
    tr_status st = clear(stream, g->sums, 2 * C * sizeof *g->sums);
    if (st == TR_OK && !g->accumulate) st = clear(stream, g->dweight, C * sizeof *g->dweight);
    if (st == TR_OK && !g->accumulate) st = clear(stream, g->dbias, C * sizeof *g->dbias);
    return st;
}

tr_status tr_bn_grad_stats(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m,
                           const tr_bn_grads *g, double *parts)
{
    tr_status st = TR_OK;
    if (m->rows == 0) return no_rows(stream, m->C, g);
    TR_BY_TYPE(dtype, T,
               st = m->width == 1 ? launch_stats<T, 1>(stream, m, g, parts)
                                  : launch_stats<T, 16 / sizeof(T)>(stream, m, g, parts));
    if (st != TR_OK || m->chunks == 1) return st;
    return TR_LAUNCH(bn_grad_chunks, tr_blocks(m->C, BN_MERGE_CHANNELS, SIZE_MAX), BN_MERGE_THREADS,
                     0, stream, *m, *g, parts);
}

/* ---- Gradient of the input ------------------------------------------------------------------- */

struct bn_slopes {
    const double *stats, *sums;
    const float *weight;
    double eps;
};

// cost: read 2x write 1x min 3x flops 5 shape 802816x64
template <typename T, int P>
static __global__ void __launch_bounds__(TR_BN_THREADS, 3)
    bn_grad_input(tr_bn_map m, const T *dz, const T *x, bn_slopes s, T *dx)
{
    constexpr int together = P == 1 ? 8 : 2;
    TR_SHARED(float, means, TR_BN_CHANNELS);
    TR_SHARED(float, by_dz, TR_BN_CHANNELS);
    TR_SHARED(float, by_x, TR_BN_CHANNELS);
    TR_SHARED(float, rest, TR_BN_CHANNELS);
    const bn_place p = bn_place_of<P>(m);
    for (int i = (int)threadIdx.x; i < p.channels; i += (int)blockDim.x) {
        const size_t c = p.first + (size_t)i;
        const double n = s.stats[0], mean = s.stats[1 + c];
        const double inverse = 1.0 / sqrt(s.stats[1 + m.C + c] / n + s.eps);
        const double slope = (s.weight ? (double)s.weight[c] : 1.0) * inverse;
        const double b = s.sums ? -slope * inverse * s.sums[m.C + c] / n : 0.0;
        means[i] = (float)mean;
        by_dz[i] = (float)slope;
        by_x[i] = (float)b;
        rest[i] =
            s.sums ? (float)(-slope * s.sums[c] / n - b * (mean - (double)(float)mean)) : 0.0f;
    }
    __syncthreads();
    if (!p.on) return;
    float mean[P], a[P], b[P], c0[P];
    TR_UNROLL
    for (int j = 0; j < P; j++) {
        mean[j] = means[p.tx * P + j];
        a[j] = by_dz[p.tx * P + j];
        b[j] = by_x[p.tx * P + j];
        c0[j] = rest[p.tx * P + j];
    }
    const size_t step = (size_t)m.by * together;
    for (size_t r = p.begin + (size_t)p.ty; r < p.end; r += step) {
        tr_words_t<T, P> vx[together], vd[together];
        const size_t at = r * m.C + p.channel, stride = (size_t)m.by * m.C;
        const size_t left = (p.end - r + (size_t)m.by - 1) / (size_t)m.by;
        const int n = left < (size_t)together ? (int)left : together;
        TR_UNROLL
        for (int u = 0; u < together; u++)
            if (u < n) {
                vd[u] = tr_read_words<T, P>(dz + at + (size_t)u * stride);
                vx[u] = tr_read_words<T, P>(x + at + (size_t)u * stride);
            }
        TR_UNROLL
        for (int u = 0; u < together; u++) {
            if (u >= n) continue;
            float d[P], f[P];
            tr_unpack<T, P>(vd[u], d);
            tr_unpack<T, P>(vx[u], f);
            TR_UNROLL
            for (int j = 0; j < P; j++) d[j] = a[j] * d[j] + (b[j] * (f[j] - mean[j]) + c0[j]);
            bn_write<T, P>(dx + at + (size_t)u * stride, d);
        }
    }
}

template <typename T, int P>
static tr_status launch_input(cudaStream_t stream, const tr_bn_map *m, const void *dz,
                              const void *x, const bn_slopes &s, void *dx)
{
    return TR_LAUNCH(TR_KERNEL(bn_grad_input<T, P>), (unsigned)(m->tiles * m->chunks),
                     (unsigned)(m->bx * m->by), 0, stream, *m, (const T *)dz, (const T *)x, s,
                     (T *)dx);
}

tr_status tr_bn_grad_input(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m, const void *dz,
                           const void *x, const double *stats, const float *weight,
                           const double *sums, double eps, void *dx)
{
    const bn_slopes s = {stats, sums, weight, eps};
    tr_status st = TR_OK;
    if (m->rows == 0) return TR_OK;
    TR_BY_TYPE(dtype, T,
               st = m->width == 1 ? launch_input<T, 1>(stream, m, dz, x, s, dx)
                                  : launch_input<T, 16 / sizeof(T)>(stream, m, dz, x, s, dx));
    return st;
}
