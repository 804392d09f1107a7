/* Elementwise kernels over n elements: activations and their gradients, sums, dropout. In and out
 * may be the same array, never shifted ones. */
#ifndef TR_CUDA_LOOPS_ELEMENTWISE_H
#define TR_CUDA_LOOPS_ELEMENTWISE_H

#include "kernels/cuda/internal.h"

TR_CUDA_C tr_status tr_cuda_act_run(tr_dtype t, tr_act act, const void *x, void *y, size_t n,
                                    cudaStream_t stream);
/* `saved`: y for relu, sigmoid and tanh; x for gelu and silu. */
TR_CUDA_C tr_status tr_cuda_act_grad_run(tr_dtype t, tr_act act, const void *dy, const void *saved,
                                         void *dx, size_t n, cudaStream_t stream);

/* y = act(in[0] + ... + in[count - 1]), summed in that order in float32; count <= TR_MAX_IN. */
TR_CUDA_C tr_status tr_cuda_add_run(tr_dtype t, tr_act act, int count, void *const *in, void *y,
                                    size_t n, cudaStream_t stream);

typedef struct {
    const void *x;
    void *y;
    size_t samples, elements;  /* of a sample, in stored order */
    uint64_t key;              /* tr_philox_key(seed, TR_RNG_DROPOUT, layer) */
    const tr_control *control; /* on the device: the ordinal of the first sample; NULL: `ordinal` */
    uint64_t ordinal;
    float p, scale;
} tr_cuda_dropout_args;

TR_CUDA_C tr_status tr_cuda_dropout_run(tr_dtype t, const tr_cuda_dropout_args *a,
                                        cudaStream_t stream);

#endif
