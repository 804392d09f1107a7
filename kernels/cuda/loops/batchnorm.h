/* Batch normalization on the device: how a launch is laid over the rows and channels, and the
 * launchers. Channels are contiguous (channels-last images, or rows of features). All Local, in
 * stream order. */
#ifndef TR_CUDA_LOOPS_BATCHNORM_H
#define TR_CUDA_LOOPS_BATCHNORM_H

#include "kernels/cuda/launch.h"

enum {
    TR_BN_THREADS = 256,  /* most threads of a block */
    TR_BN_CHANNELS = 256, /* most channels of a block */
    TR_BN_RUN = 16,       /* rows that a thread sums in float32 before it goes on in float64 */
    /* At most so many blocks share a large array, each element on its own: three at a time on each
     * of an H100's 132 multiprocessors, four times. */
    TR_BN_BLOCKS = 4 * 3 * 132,
    /* At most so many leave partial sums of a large array: two at a time on each of an H100's 132
     * multiprocessors, twice. More would only cost merging. */
    TR_BN_SUM_BLOCKS = 4 * 132,
    TR_BN_WIDE_ROWS = 64, /* up to here a block takes all rows */
};

/* Rows of C channels cut into blocks of bx * by threads: thread (tx, ty) takes `width` neighbouring
 * channels of every by-th row. Block b takes columns of tile b % tiles and rows of chunk b / tiles,
 * so that blocks that run at once read neighbouring memory. Depends on the shape only, and with it
 * the order of all sums. */
typedef struct {
    size_t rows, C, chunk_rows;
    int width;  /* 16 bytes of channels where C is a multiple of that, else 1 */
    int bx, by; /* columns of `width` channels, rows */
    size_t tiles, chunks;
} tr_bn_map;

/* `run`: rows that a thread should take at least; TR_BN_RUN for sums, less where each element is on
 * its own. Few rows (up to TR_BN_WIDE_ROWS): wide, one chunk, whose blocks finish their channels
 * without a second kernel. More: tall, a block has 16 columns of 16 bytes (32 of one channel), and
 * there are enough chunks to fill the device; of sums never more than TR_BN_SUM_BLOCKS chunks.
 * C > 0; rows may be 0. */
static inline tr_bn_map tr_bn_map_of(size_t rows, size_t C, tr_dtype dtype, size_t run)
{
    const size_t full = dtype == TR_F32 ? 4 : 8;
    const bool wide = rows <= TR_BN_WIDE_ROWS, scalar = C % full != 0;
    const size_t width = scalar ? 1 : full, columns = C / width;
    const size_t most = scalar || wide ? 32 : 16;
    tr_bn_map m;
    m.rows = rows;
    m.C = C;
    m.width = (int)width;
    m.tiles = (columns + most - 1) / most;
    const size_t bx = (columns + m.tiles - 1) / m.tiles;
    size_t by = TR_BN_THREADS / bx;
    if (wide && by > rows) by = rows > 0 ? rows : 1;
    if (wide && by > 8) by = 8;
    m.bx = (int)bx;
    m.by = (int)by;
    m.chunk_rows = rows;
    m.chunks = 1;
    if (!wide) {
        const size_t step = by * run, blocks = (rows + step - 1) / step * m.tiles;
        m.chunk_rows = step;
        if (run < TR_BN_RUN && blocks > TR_BN_BLOCKS) {
            const size_t chunks = m.tiles < TR_BN_BLOCKS ? TR_BN_BLOCKS / m.tiles : 1;
            m.chunk_rows = by * ((rows + by * chunks - 1) / (by * chunks));
        } else if (run >= TR_BN_RUN && blocks > TR_BN_SUM_BLOCKS) {
            /* Whole rounds: a few blocks too many would take a round of their own. */
            const size_t chunks = m.tiles <= TR_BN_SUM_BLOCKS / 2 ? TR_BN_SUM_BLOCKS / m.tiles
                                  : m.tiles < TR_BN_SUM_BLOCKS    ? 2
                                                                  : 1;
            m.chunk_rows = by * ((rows + by * chunks - 1) / (by * chunks));
        }
        m.chunks = (rows + m.chunk_rows - 1) / m.chunk_rows;
    }
    return m;
}

/* Scratch of the two sums: float64 [chunks][2][C]; none with one chunk. */
static inline size_t tr_bn_parts(const tr_bn_map *m)
{
    return m->chunks > 1 ? m->chunks * 2 * m->C * sizeof(double) : 0;
}

/* stats[1 + 2C] of x(rows, C). rows 0: zeros. m is for sums (TR_BN_RUN), here and below. */
TR_CUDA_C tr_status tr_bn_stats(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m,
                                const void *x, double *parts, double *stats);

/* stats[1 + 2C] = 1, mean, variance: those of one value that varies so. */
TR_CUDA_C tr_status tr_bn_running(cudaStream_t stream, const float *mean, const float *variance,
                                  size_t C, double *stats);

/* all[ranks][1 + 2C] -> stats[1 + 2C], in rank order (Chan, Golub, LeVeque 1979). Counts of 0 are
 * left out. `all` may be `stats` with one rank. */
TR_CUDA_C tr_status tr_bn_merge_stats(cudaStream_t stream, const double *all, size_t ranks,
                                      size_t C, double *stats);

/* all[ranks][count] -> sums[count], in rank order. */
TR_CUDA_C tr_status tr_bn_merge_sums(cudaStream_t stream, const double *all, size_t ranks,
                                     size_t count, double *sums);

/* What normalizes: the batch's statistics (stats), or the running ones (stats NULL). */
typedef struct {
    const float *weight, *bias; /* NULL: ones, zeros */
    const double *stats;
    float *running_mean, *running_var;
    double eps, momentum;
    bool update; /* the running ones from stats; unless those are not finite */
} tr_bn_norm;

/* y = act((x - mean) / sqrt(var + eps) * weight + bias + residual). With stats: nothing where their
 * count is 0; the running statistics move even where this share has no rows. residual NULL:
 * none. */
TR_CUDA_C tr_status tr_bn_apply(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m, tr_act act,
                                const void *x, const void *residual, const tr_bn_norm *norm,
                                void *y);

/* Operands of batchnorm.grad_stats. dz NULL: not written. */
typedef struct {
    const void *dy, *x, *y, *dy2; /* y, dy2 NULL: absent; dz may be dy */
    const double *stats;
    void *dz;
    double *sums;           /* [2C] */
    float *dweight, *dbias; /* [C]; NULL: not wanted */
    double eps;
    bool accumulate;
} tr_bn_grads;

TR_CUDA_C tr_status tr_bn_grad_stats(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m,
                                     const tr_bn_grads *g, double *parts);

/* dx = weight / std (dz - sums[c] / n - xhat sums[C + c] / n), n = stats[0]; dx may be dz. weight
 * NULL: ones; sums NULL: zeros, x is not looked at. */
TR_CUDA_C tr_status tr_bn_grad_input(cudaStream_t stream, tr_dtype dtype, const tr_bn_map *m,
                                     const void *dz, const void *x, const double *stats,
                                     const float *weight, const double *sums, double eps, void *dx);

#endif
