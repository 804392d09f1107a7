/* One row made of a sample's. */
#ifndef TR_CUDA_LOOPS_TAKE_ROWS_H
#define TR_CUDA_LOOPS_TAKE_ROWS_H

#include "kernels/cuda/launch.h"
#include "runtime/graph/rows.h"

/* x (samples, rows, features), y (samples, features); lengths (samples), or NULL. */
typedef struct {
    tr_rows_attrs a;
    size_t samples, rows, features;
} tr_cuda_rows;

/* y = the mean of the rows that are taken (tr_rows_taken), 0 where there are none. */
TR_CUDA_C tr_status tr_cuda_take_rows_run(cudaStream_t stream, tr_dtype type, const tr_cuda_rows *r,
                                          const void *x, const int32_t *lengths, void *y);
/* dx = dy over their number at these rows, 0 at the others. */
TR_CUDA_C tr_status tr_cuda_take_rows_grad_run(cudaStream_t stream, tr_dtype type,
                                               const tr_cuda_rows *r, const void *dy,
                                               const int32_t *lengths, void *dx);

#endif
