/* Optimizer steps, sums of squares and the decision about an update, on the device. All Local, in
 * stream order. */
#ifndef TR_CUDA_LOOPS_OPTIMIZER_H
#define TR_CUDA_LOOPS_OPTIMIZER_H

#include "kernels/cuda/launch.h"

enum {
    TR_UPDATE_CHUNK = 8192,  /* elements that a block updates, at most */
    TR_SQUARES_CHUNK = 8192, /* elements that a block sums, at least */
    TR_SQUARES_PARTS = 2048, /* most partial sums */
};

/* What one block works on: a part of one segment. */
typedef struct {
    size_t begin, slot; /* in w and g; in the moments and the average */
    unsigned count;     /* a multiple of 16 */
    double decay, lr_factor;
    bool masked, adapt; /* as the segment's */
    size_t row;
    bool own;
    tr_rates rates;
} tr_update_chunk;

/* All that stays the same from update to update; `chunks` in device memory, nchunks > 0. */
typedef struct {
    tr_update u;
    const tr_update_chunk *chunks;
    size_t nchunks;
} tr_update_plan;

/* Updates where control->apply; else touches nothing. */
TR_CUDA_C tr_status tr_update_launch(cudaStream_t stream, const tr_update_plan *p,
                                     const tr_control *control);
/* What goes before it where u.norms is there: fills them. Begin and end once, the chunks in any
 * number of parts. nchunks may be 0. */
TR_CUDA_C tr_status tr_measure_begin(cudaStream_t stream, const tr_update_plan *p);
TR_CUDA_C tr_status tr_measure_launch(cudaStream_t stream, const tr_update_plan *p,
                                      const tr_control *control);
TR_CUDA_C tr_status tr_measure_end(cudaStream_t stream, const tr_update_plan *p);
/* control->first_nonfinite and tr_control_decide. nchunks may be 0. */
TR_CUDA_C tr_status tr_decide_launch(cudaStream_t stream, const tr_update_plan *p,
                                     tr_control *control);
/* w and ema change places; whatever the control says, which may be NULL. */
TR_CUDA_C tr_status tr_swap_launch(cudaStream_t stream, const tr_update_plan *p,
                                   const tr_control *control);

/* *out = sum g[i]^2 in float64; parts: [TR_SQUARES_PARTS]. */
TR_CUDA_C tr_status tr_sum_squares_launch(cudaStream_t stream, const float *g, size_t count,
                                          double *parts, double *out);
/* The same over chunks of g (in device memory). */
TR_CUDA_C tr_status tr_chunk_squares_launch(cudaStream_t stream, const float *g,
                                            const tr_update_chunk *chunks, size_t nchunks,
                                            double *parts, double *out);

#endif
