/* Batch normalization backward: masked gradient and its sums, then, once those are merged over the
 * ranks (batchnorm.c), the gradient of the input. Formulas and bytes moved:
 * loops/batchnorm_grad.cu. Parameter gradients are of this rank's samples; the reduction of
 * gradients adds the others'. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/ops/batchnorm.h"

enum { ROWS_TOGETHER = 4 };

static tr_status run_grad_stats(tr_kernel *base, const tr_run *run)
{
    const tr_cuda_batchnorm_kernel *k = (const tr_cuda_batchnorm_kernel *)base;
    const tr_binding *b = &k->k.b;
    const bool written = b->in[4] || b->in[5]; /* else dz is dy */
    const tr_bn_grads g = {.dy = b->in[0],
                           .x = b->in[1],
                           .stats = b->in[2],
                           .y = b->in[4],
                           .dy2 = b->in[5],
                           .dz = written ? b->out[0] : NULL,
                           .sums = b->out[1],
                           .dweight = b->out[2],
                           .dbias = b->out[3],
                           .eps = k->eps,
                           .accumulate = run->accumulate};
    return tr_bn_grad_stats(k->k.cuda->stream, k->k.dtype, &k->map, &g, b->workspace);
}

tr_status tr_cuda_batchnorm_grad_stats(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                       tr_kernel **out)
{
    tr_cuda_batchnorm_kernel *k = NULL;
    tr_status st = tr_cuda_batchnorm_open(cuda, g, op, 1, TR_BN_RUN, run_grad_stats, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = tr_bn_parts(&k->map);
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_grad_input(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const tr_cuda_batchnorm_kernel *k = (const tr_cuda_batchnorm_kernel *)base;
    const tr_binding *b = &k->k.b;
    const void *x = b->in[1] ? b->in[1] : b->in[0]; /* nothing comes of it without sums */
    return tr_bn_grad_input(k->k.cuda->stream, k->k.dtype, &k->map, b->in[0], x, b->in[2], b->in[3],
                            b->in[4], k->eps, b->out[0]);
}

tr_status tr_cuda_batchnorm_grad_input(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                       tr_kernel **out)
{
    tr_cuda_batchnorm_kernel *k = NULL;
    tr_status st = tr_cuda_batchnorm_open(cuda, g, op, 0, ROWS_TOGETHER, run_grad_input, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}
