/* What the ops over rows of any width (softmax, layernorm, cross entropy) share. */
#ifndef TR_CUDA_OPS_ROWS_H
#define TR_CUDA_OPS_ROWS_H

#include "kernels/cuda/internal.h"

/* Values a row: the kernels count them in int. */
enum { TR_CUDA_MAX_ROW = 1 << 28 };

/* Shared bytes that a block may keep wide rows in: all but 2048 for sums and the system. */
static inline size_t tr_cuda_row_room(const tr_cuda *cuda)
{
    enum { RESERVED = 2048 };
    return cuda->max_shared > RESERVED ? (size_t)cuda->max_shared - RESERVED : 0;
}

#endif
