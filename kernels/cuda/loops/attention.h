/* Attention of several heads and its gradient, without a matrix queries x keys. */
#ifndef TR_CUDA_LOOPS_ATTENTION_H
#define TR_CUDA_LOOPS_ATTENTION_H

#include "kernels/cuda/launch.h"
#include "runtime/graph/attention.h"

enum { TR_CUDA_ATTENTION_HEAD = 256 }; /* values of a head at most */

/* Pointers to the first head's first value of the first position; what is not wanted is NULL. */
typedef struct {
    tr_attention_shape s;
    tr_attention_attrs a; /* dropout 0 outside training */
    const void *q, *k, *v;
    const int32_t *lengths; /* NULL: all keys */
    void *y;
    float *lse; /* NULL in inference; the backward pass reads it */
    uint64_t key, ordinal;
    const tr_control *control; /* NULL: `ordinal` is the first sample's */
    bool matrix;               /* as tr_cuda_attention_ready left it */
    /* Backward: */
    const void *dy;
    void *dq, *dk, *dv;
    float *delta; /* workspace: (N, heads, T) */
} tr_cuda_attention_args;

TR_CUDA_C tr_status tr_cuda_attention_run(tr_dtype t, const tr_cuda_attention_args *a,
                                          cudaStream_t stream);
TR_CUDA_C tr_status tr_cuda_attention_grad_run(tr_dtype t, const tr_cuda_attention_args *a,
                                               cudaStream_t stream);
/* Bytes of shared memory that a block of either needs for heads of D values: `matrix`, by matrix
 * instructions, which 16-bit types have; SIZE_MAX where they have none for so many values. */
TR_CUDA_C size_t tr_cuda_attention_shared(tr_dtype t, size_t D, bool backward, bool matrix);
/* Lets the kernels have them. Once, before the first run; touches the device. *matrix becomes false
 * where the program has code without matrix instructions alone for this device. */
TR_CUDA_C tr_status tr_cuda_attention_ready(tr_dtype t, size_t D, bool backward, bool *matrix);

/* Of a graph that decodes: a run's keys and values go behind those that are held, and its queries
 * look back on all. `at` of packed rows as in tr_cuda_attention_args; heads of at most
 * TR_CUDA_ATTENTION_HEAD values. */
typedef struct {
    tr_attention_shape s;
    tr_attention_attrs a;
    const void *q, *k, *v;
    const int32_t *past, *count; /* of sequences */
    void *keys, *values;         /* (N, kv_heads, cache, D) */
    size_t cache;
    void *y;
} tr_cuda_attention_held_args;
TR_CUDA_C tr_status tr_cuda_attention_held_run(tr_dtype t, const tr_cuda_attention_held_args *a,
                                               cudaStream_t stream);

#endif
