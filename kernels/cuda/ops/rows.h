/* What the ops over rows of any width (softmax, layernorm, cross entropy) share. */
#ifndef TR_CUDA_OPS_ROWS_H
#define TR_CUDA_OPS_ROWS_H

#include "kernels/cuda/internal.h"

/* Values a row: the kernels count them in int. */
enum { TR_CUDA_MAX_ROW = 1 << 28 };

/* Class weights on the device, to be freed by tr_cuda_free, also after a failure; *out stays NULL
 * where there are none. */
TR_CUDA_C tr_status tr_cuda_class_weights(tr_cuda *cuda, const double *weights, size_t classes,
                                          double **out);

/* Shared bytes that a block may keep wide rows in: all but 2048 for sums and the system. */
static inline size_t tr_cuda_row_room(const tr_cuda *cuda)
{
    enum { RESERVED = 2048 };
    return cuda->max_shared > RESERVED ? (size_t)cuda->max_shared - RESERVED : 0;
}

#endif
