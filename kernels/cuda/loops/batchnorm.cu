/* Batchnorm statistics in one pass over x, and the merges over the ranks.
 *
 * A thread sums x - s and (x - s)^2 in float32 over runs of n <= 16 of its rows, s being the run's
 * first value. s is one of the n values, so sum (x - s)^2 <= (n + 1) M2 and the subtraction of the
 * two sums cannot cancel more than that: a run's M2 is good to (n + 1) n 2^-24 < 2e-5 of itself at
 * the very worst (a first value far from the other 15), 1e-6 otherwise, its mean to n 2^-24 of its
 * spread. Everything after a run is float64: runs of a thread by Chan's formula, threads of a block
 * and blocks by mean = sum n_i mean_i / n,   M2 = sum M2_i + n_i (mean_i - mean)^2 (Chan, Golub,
 * LeVeque 1979), in an order that the shape alone decides. Squares of float32 values beyond 1.8e19
 * overflow: M2 is then not finite, as where x is not.
 *
 * Moves x once (the minimum) and 16 bytes a channel and chunk twice: below 1% for arrays that do
 * not fit the cache, and never more than 528 * 32 bytes a channel. About 10 float64 operations per
 * 16 elements.
 *
 * The merge of the chunks is a launch of its own. Merged at the head of bn_apply, each of its
 * blocks would read the chunks of its channels: of 802816 x 64 bfloat16 values 1568 blocks 0.54 MB
 * each, 848 MB through the second-level cache beside the 206 MB of x and y; of 12544 x 2048, 1568
 * blocks 68 KB each, 106 MB beside 103 MB. And with several ranks their statistics are merged in
 * between. */
#include "kernels/cuda/loops/batchnorm.cuh"

/* ---- Statistics ------------------------------------------------------------------------------ */

/* A run's sums become part of the thread's mean and M2 of `seen` rows before; those are
 * TR_BN_THREADS apart. */
template <int P>
static __device__ inline void take_run(int n, size_t seen, const float *shift, const float *sum,
                                       const float *squares, double *mean, double *m2)
{
    const double inverse = n == TR_BN_RUN ? 1.0 / TR_BN_RUN : 1.0 / n;
    const double share = (double)n / (double)(seen + (size_t)n), weight = (double)seen * share;
    TR_UNROLL
    for (int j = 0; j < P; j++) {
        const double off = (double)sum[j] * inverse;
        const double within = (double)squares[j] - (double)sum[j] * off;
        const double delta = (double)shift[j] + off - mean[j * TR_BN_THREADS];
        mean[j * TR_BN_THREADS] += delta * share;
        m2[j * TR_BN_THREADS] += (within < 0.0 ? 0.0 : within) + delta * delta * weight;
    }
}

/* N rows from row k on, of n; those past the end and the first row itself are `first`, which adds
 * nothing. */
template <typename T, int P, int N>
static __device__ inline void fetch_rows(const T *x, size_t stride, int k, int n,
                                         const tr_words_t<T, P> &first, tr_words_t<T, P> (&v)[N])
{
    TR_UNROLL
    for (int u = 0; u < N; u++) {
        v[u] = first;
        if (k + u > 0 && k + u < n) v[u] = tr_read_words<T, P>(x + (size_t)(k + u) * stride);
    }
}

/* n rows, `stride` elements apart. Each few are fetched before those before them are summed, so
 * that a thread always waits for some: else an H200's memory idled for a quarter of the time. */
template <typename T, int P>
static __device__ inline void sum_run(const T *x, size_t stride, int n, float *shift, float *sum,
                                      float *squares)
{
    constexpr int together = P == 1 ? 8 : 4, rounds = TR_BN_RUN / together;
    const tr_words_t<T, P> first = tr_read_words<T, P>(x);
    tr_words_t<T, P> v[2][together];
    fetch_rows<T, P>(x, stride, 0, n, first, v[0]);
    tr_unpack<T, P>(first, shift);
    TR_UNROLL
    for (int j = 0; j < P; j++) sum[j] = squares[j] = 0.0f;
    TR_UNROLL
    for (int r = 0; r < rounds; r++) {
        if (r + 1 < rounds)
            fetch_rows<T, P>(x, stride, (r + 1) * together, n, first, v[(r + 1) % 2]);
        if (r * together >= n) continue;
        TR_UNROLL
        for (int u = 0; u < together; u++) {
            float f[P];
            tr_unpack<T, P>(v[r % 2][u], f);
            TR_UNROLL
            for (int j = 0; j < P; j++) {
                const float d = f[j] - shift[j];
                sum[j] += d;
                squares[j] += d * d;
            }
        }
    }
}

// cost: read 1x write 0.005x min 1x flops 4 shape 802816x64
template <typename T, int P>
static __global__ void __launch_bounds__(TR_BN_THREADS, 2)
    bn_stats(tr_bn_map m, const T *x, double *parts, double *stats)
{
    TR_SHARED(double, part_mean, TR_BN_THREADS *P);
    TR_SHARED(double, part_m2, TR_BN_THREADS *P);
    const bn_place p = bn_place_of<P>(m);
    if (p.on) {
        double *mean = part_mean + threadIdx.x,
               *m2 = part_m2 + threadIdx.x; /* registers are short */
        TR_UNROLL
        for (int j = 0; j < P; j++) mean[j * TR_BN_THREADS] = m2[j * TR_BN_THREADS] = 0.0;
        const size_t mine = bn_lane_rows(p.end - p.begin, p.ty, m.by), stride = (size_t)m.by * m.C;
        const T *at = x + (p.begin + (size_t)p.ty) * m.C + p.channel;
        for (size_t seen = 0; seen < mine; seen += TR_BN_RUN) {
            float shift[P], sum[P], squares[P];
            const int n = mine - seen < TR_BN_RUN ? (int)(mine - seen) : (int)TR_BN_RUN;
            sum_run<T, P>(at + seen * stride, stride, n, shift, sum, squares);
            take_run<P>(n, seen, shift, sum, squares, mean, m2);
        }
    }
    __syncthreads();
    const size_t rows = p.end - p.begin;
    double *out = m.chunks > 1 ? parts + p.chunk * 2 * m.C : stats + 1;
    for (int i = (int)threadIdx.x; i < p.channels; i += (int)blockDim.x) {
        const int slot = i % P * TR_BN_THREADS + i / P;
        double sum = 0.0, m2 = 0.0;
        for (int ty = 0; ty < m.by; ty++)
            sum += (double)bn_lane_rows(rows, ty, m.by) * part_mean[slot + ty * m.bx];
        const double mean = sum / (double)rows;
        for (int ty = 0; ty < m.by; ty++) {
            const double delta = part_mean[slot + ty * m.bx] - mean;
            m2 +=
                part_m2[slot + ty * m.bx] + (double)bn_lane_rows(rows, ty, m.by) * (delta * delta);
        }
        out[p.first + (size_t)i] = mean;
        out[m.C + p.first + (size_t)i] = m2;
    }
    if (m.chunks == 1 && blockIdx.x == 0 && threadIdx.x == 0) stats[0] = (double)m.rows;
}

// cost: read 2d write 0.004d min 2.004d flops 6 shape 528x64 per channel and chunk
static __global__ void __launch_bounds__(BN_MERGE_THREADS)
    bn_stats_merge(tr_bn_map m, const double *parts, double *stats)
{
    TR_SHARED(double, part, BN_MERGE_CHANNELS *BN_MERGE_WARPS);
    const size_t c = blockIdx.x * (size_t)BN_MERGE_CHANNELS + threadIdx.x % BN_MERGE_CHANNELS;
    const size_t lane = threadIdx.x / BN_MERGE_CHANNELS;
    const double last = (double)(m.rows - (m.chunks - 1) * m.chunk_rows);
    double means[BN_MERGE_HELD], m2s[BN_MERGE_HELD], sum = 0.0, m2 = 0.0;
    bn_merge_read(m, parts, c, means, m2s);
    TR_UNROLL
    for (int k = 0; k < BN_MERGE_HELD; k++) {
        const size_t i = lane + (size_t)k * BN_MERGE_LANES;
        if (i < m.chunks) sum += (i + 1 < m.chunks ? (double)m.chunk_rows : last) * means[k];
    }
    const double mean = bn_lanes_sum(sum, part) / (double)m.rows;
    TR_UNROLL
    for (int k = 0; k < BN_MERGE_HELD; k++) {
        const size_t i = lane + (size_t)k * BN_MERGE_LANES;
        const double delta = means[k] - mean;
        if (i < m.chunks)
            m2 += m2s[k] + (i + 1 < m.chunks ? (double)m.chunk_rows : last) * (delta * delta);
    }
    m2 = bn_lanes_sum(m2, part);
    if (c < m.C && lane == 0) {
        stats[1 + c] = mean;
        stats[1 + m.C + c] = m2;
        if (c == 0) stats[0] = (double)m.rows;
    }
}

template <typename T, int P>
static tr_status launch_stats(cudaStream_t stream, const tr_bn_map *m, const void *x, double *parts,
                              double *stats)
{
    return TR_LAUNCH(TR_KERNEL(bn_stats<T, P>), (unsigned)(m->tiles * m->chunks),
                     (unsigned)(m->bx * m->by), 0, stream, *m, (const T *)x, parts, stats);
}

tr_status tr_bn_stats(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m, const void *x,
                      double *parts, double *stats)
{
    tr_status st = TR_OK;
    if (m->rows == 0)
        return tr_cuda_check(cudaMemsetAsync(stats, 0, (1 + 2 * m->C) * sizeof *stats, stream),
                             "cudaMemsetAsync(statistics of no rows)");
    TR_BY_TYPE(dtype, T,
               st = m->width == 1 ? launch_stats<T, 1>(stream, m, x, parts, stats)
                                  : launch_stats<T, 16 / sizeof(T)>(stream, m, x, parts, stats));
    if (st != TR_OK || m->chunks == 1) return st;
    return TR_LAUNCH(bn_stats_merge, tr_blocks(m->C, BN_MERGE_CHANNELS, SIZE_MAX), BN_MERGE_THREADS,
                     0, stream, *m, parts, stats);
}

/* ---- Merges over the ranks ------------------------------------------------------------------- */

// cost: fixed
static __global__ void bn_merge_stats(const double *all, size_t ranks, size_t C, double *stats)
{
    const size_t c = blockIdx.x * (size_t)blockDim.x + threadIdx.x, count = 1 + 2 * C;
    if (c >= C) return;
    double n = all[0], mean = all[1 + c], m2 = all[1 + C + c];
    for (size_t r = 1; r < ranks; r++) {
        const double *part = all + r * count;
        if (part[0] == 0.0) continue;
        const double total = n + part[0], share = part[0] / total, delta = part[1 + c] - mean;
        mean += delta * share;
        m2 += part[1 + C + c] + delta * delta * n * share;
        n = total;
    }
    stats[1 + c] = mean;
    stats[1 + C + c] = m2;
    if (c == 0) stats[0] = n;
}

// cost: fixed
static __global__ void bn_merge_sums(const double *all, size_t ranks, size_t count, double *sums)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= count) return;
    double sum = all[i];
    for (size_t r = 1; r < ranks; r++) sum += all[r * count + i];
    sums[i] = sum;
}

// cost: fixed
static __global__ void bn_running(const float *mean, const float *variance, size_t C, double *stats)
{
    const size_t c = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (c >= C) return;
    if (c == 0) stats[0] = 1.0;
    stats[1 + c] = (double)mean[c];
    stats[1 + C + c] = (double)variance[c];
}

tr_status tr_bn_running(cudaStream_t stream, const float *mean, const float *variance, size_t C,
                        double *stats)
{
    return TR_LAUNCH(bn_running, tr_blocks(C, 128, SIZE_MAX), 128, 0, stream, mean, variance, C,
                     stats);
}

tr_status tr_bn_merge_stats(cudaStream_t stream, const double *all, size_t ranks, size_t C,
                            double *stats)
{
    return TR_LAUNCH(bn_merge_stats, tr_blocks(C, 128, SIZE_MAX), 128, 0, stream, all, ranks, C,
                     stats);
}

tr_status tr_bn_merge_sums(cudaStream_t stream, const double *all, size_t ranks, size_t count,
                           double *sums)
{
    return TR_LAUNCH(bn_merge_sums, tr_blocks(count, 128, SIZE_MAX), 128, 0, stream, all, ranks,
                     count, sums);
}
