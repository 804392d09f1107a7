/* What the three kernels of a convolution share. */
#ifndef TR_CUDA_OPS_CONV2D_H
#define TR_CUDA_OPS_CONV2D_H

#include "kernels/cuda/internal.h"
#include "kernels/cuda/dnn/dnn.h"

typedef struct tr_cuda_conv tr_cuda_conv;
struct tr_cuda_conv {
    tr_cuda_kernel head;
    void (*close_head)(tr_kernel *);
    char impl[112];
    const tr_op *op;         /* while it is prepared */
    tr_dnn_problem problem;  /* as the plan solves it */
    const tr_dnn_plan *plan; /* NULL in a dry context */
    tr_dnn_call call;
    tr_dnn_operands (*operands)(const tr_cuda_conv *k); /* of the plan, from the binding */
    size_t out, channels, places; /* of the weight: (out, channels, kh, kw); places = kh * kw */
    size_t rows;                  /* batch * height * width of the result */
};

/* A kernel of `size` bytes that starts with tr_cuda_conv, with the problem of the op's geometry: x
 * and y are the tensors of the forward pass' shapes. All types are the activations'. */
tr_status tr_cuda_conv_open(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_dnn_pass pass,
                            int x, int y, tr_status (*run)(tr_kernel *, const tr_run *),
                            tr_dnn_operands (*operands)(const tr_cuda_conv *), size_t size,
                            void *out);
/* Takes the plan for `p` where there is one: k->plan stays NULL where there is none. */
tr_status tr_cuda_conv_try(tr_cuda_conv *k, const tr_dnn_problem *p);
/* The error where nothing was found. */
tr_status tr_cuda_conv_none(const tr_cuda_conv *k);
/* What `trainer plan` calls it: the plan's name and what is added to it. */
void tr_cuda_conv_name(tr_cuda_conv *k, const char *more);
/* The most samples, dividing the batch, of `sample` bytes each that fit `limit`; at least one. */
int64_t tr_cuda_conv_samples(int64_t batch, size_t sample, size_t limit);
/* Scratch of the plan; in a dry context the most that it may be. */
size_t tr_cuda_conv_workspace(const tr_cuda_conv *k);
static inline void *tr_cuda_conv_scratch(const tr_cuda_conv *k, size_t at)
{
    return k->head.b.workspace ? (char *)k->head.b.workspace + at : NULL;
}

#endif
