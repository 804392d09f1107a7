/* The two ways of attention: our own kernels (attention.c), and a plan of cuDNN's
 * (attention_plan.c). */
#ifndef TR_CUDA_OPS_ATTENTION_H
#define TR_CUDA_OPS_ATTENTION_H

#include "kernels/cuda/internal.h"
#include "kernels/cuda/dnn/dnn.h"

/* *out: the op by a plan; NULL where there is none. In a dry context whatever may have one, with
 * the most workspace that it takes. */
tr_status tr_cuda_attention_plan(tr_cuda *cuda, const tr_graph *g, const tr_op *op, bool backward,
                                 tr_kernel **out);
const tr_dnn_problem *tr_cuda_attention_problem(const tr_kernel *plan);

#endif
