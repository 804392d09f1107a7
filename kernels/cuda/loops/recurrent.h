/* One row of every sample of a recurrent layer: the gates from both products, and what flows back
 * through them. */
#ifndef TR_CUDA_LOOPS_RECURRENT_H
#define TR_CUDA_LOOPS_RECURRENT_H

#include "kernels/cuda/launch.h"

/* lstm_layer or gru_layer and their gradients (runtime/graph/ops.h) while samples go from row to
 * row. */
typedef struct {
    bool lstm, reverse, hold;
    size_t samples, rows, hidden; /* rows of a sample */
    const int32_t *lengths;       /* of samples; nullptr: all rows */
    const float *product,
        *bias;    /* product: (samples, gates * hidden), backward (samples, hidden) */
    float *state; /* (samples, hidden): the cell, gru's output; backward the cell's gradient, which
                     gru has not */
    void *kept_gates, *kept, *y;
    /* Forward: */
    const void *x;
    void *h; /* (samples, hidden): what the next product reads */
    /* Backward: */
    const void *dy;
    float *through;               /* (samples, hidden): the output's gradient past the product */
    void *dg;                     /* (samples, gates * hidden): what the next product reads */
    void *dx, *before, *dproduct; /* the latter two may be nullptr */
} tr_cuda_recurrent_args;

/* `first`: no row came before: the product and what is float32 or `h` are not read, and count as
 * 0. */
TR_CUDA_C tr_status tr_cuda_recurrent_run(tr_dtype t, const tr_cuda_recurrent_args *a, size_t row,
                                          bool first, cudaStream_t stream);
/* `first`: no row was gone through yet, likewise; `last`: none is left. */
TR_CUDA_C tr_status tr_cuda_recurrent_grad_run(tr_dtype t, const tr_cuda_recurrent_args *a,
                                               size_t row, bool first, bool last,
                                               cudaStream_t stream);

#endif
