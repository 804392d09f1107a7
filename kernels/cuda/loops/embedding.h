/* Rows of a table by number, and their gradient. All Local; into `stream`; types: float32,
 * bfloat16, float16. */
#ifndef TR_CUDA_LOOPS_EMBEDDING_H
#define TR_CUDA_LOOPS_EMBEDDING_H

#include "kernels/cuda/launch.h"

/* y[rows][D] = table[ids[row]], rounded to `type`. */
TR_CUDA_C tr_status tr_cuda_embedding_run(cudaStream_t stream, tr_dtype type, const float *table,
                                          const int32_t *ids, void *y, size_t rows, size_t D);

typedef struct {
    const void *dy;     /* [rows][D] */
    const int32_t *ids; /* [rows], each below num */
    float *dtable;      /* [num][D]: all of it is written, or where `accumulate` added to */
    size_t rows, num, D;
    bool accumulate;
    void *workspace;
    size_t sort_bytes; /* of tr_cuda_sort_workspace(rows, num) */
} tr_cuda_embedding_grad_args;

/* Scratch bytes; rows < 2^31. */
TR_CUDA_C size_t tr_cuda_embedding_grad_workspace(size_t rows, size_t D, size_t sort_bytes);
/* dtable[v] (+)= sum of dy[row] over the rows with ids[row] = v, by row in an order that rows and
 * ids alone fix. */
TR_CUDA_C tr_status tr_cuda_embedding_grad_run(cudaStream_t stream, tr_dtype type,
                                               const tr_cuda_embedding_grad_args *a);

#endif
