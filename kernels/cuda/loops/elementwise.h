/* Elementwise kernels over n elements: activations and their gradients, sums, dropout. In and out
 * may be the same array, never shifted ones. */
#ifndef TR_CUDA_LOOPS_ELEMENTWISE_H
#define TR_CUDA_LOOPS_ELEMENTWISE_H

#include "kernels/cuda/launch.h"
#include "kernels/elementwise.h"

TR_CUDA_C tr_status tr_cuda_act_run(tr_dtype t, tr_act act, const void *x, void *y, size_t n,
                                    cudaStream_t stream);
/* `saved`: y for relu, sigmoid and tanh; x for gelu and silu. */
TR_CUDA_C tr_status tr_cuda_act_grad_run(tr_dtype t, tr_act act, const void *dy, const void *saved,
                                         void *dx, size_t n, cudaStream_t stream);

/* y = act(in[0] + ... + in[count - 1]), summed in that order in float32; count <= TR_MAX_IN. */
TR_CUDA_C tr_status tr_cuda_add_run(tr_dtype t, tr_act act, int count, void *const *in, void *y,
                                    size_t n, cudaStream_t stream);

/* The op of kernels/elementwise.h with its numbers; y NULL with one operand. */
TR_CUDA_C tr_status tr_cuda_elementwise_run(tr_dtype t, tr_elementwise which, tr_numbers numbers,
                                            const void *x, const void *y, void *out, size_t count,
                                            cudaStream_t stream);

/* y = x * factor, of equal shapes (samples and places 1), or of `samples` images of `places` rows
 * of `channels` with one row of factors each. */
TR_CUDA_C tr_status tr_cuda_mul_run(tr_dtype t, const void *x, const void *factor, void *y,
                                    size_t samples, size_t places, size_t channels,
                                    cudaStream_t stream);
/* sums(samples, channels) = sums of dy * x over the places. */
TR_CUDA_C tr_status tr_cuda_mul_sums_run(tr_dtype t, const void *dy, const void *x, void *sums,
                                         size_t samples, size_t places, size_t channels,
                                         cudaStream_t stream);

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
/* Samples that are kept or not as dropout's element 0 of each. */
TR_CUDA_C tr_status tr_cuda_drop_path_run(tr_dtype t, const tr_cuda_dropout_args *a,
                                          cudaStream_t stream);

#endif
