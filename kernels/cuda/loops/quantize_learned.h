/* Rounded to 8 bits and back by learned scales, and their gradients. */
#ifndef TR_CUDA_LOOPS_QUANTIZE_LEARNED_H
#define TR_CUDA_LOOPS_QUANTIZE_LEARNED_H

#include "kernels/cuda/launch.h"

typedef struct {
    const void *dy; /* of the gradient */
    const void *x;
    const float *scale;  /* [rows] */
    void *out;           /* y, dx; NULL: no dx */
    float *dscale;       /* [rows] or NULL */
    bool add, add_scale; /* to what is there: dx (float32), dscale */
    size_t rows, D;      /* elements of a scale */
    float least, most, gain;
    double *partial; /* tr_cuda_learned_workspace bytes, of the gradient */
} tr_cuda_learned_args;

/* Bytes: x once, y once. At most 2^31 - 1 elements. */
TR_CUDA_C tr_status tr_cuda_learned_run(tr_dtype t, const tr_cuda_learned_args *a,
                                        cudaStream_t stream);
/* Bytes: dy and x once, dx once. Sums: float32 of a thread's, then float64 in a fixed order. */
TR_CUDA_C tr_status tr_cuda_learned_grad_run(tr_dtype t, const tr_cuda_learned_args *a,
                                             cudaStream_t stream);
TR_CUDA_C size_t tr_cuda_learned_workspace(size_t rows, size_t D);

#endif
