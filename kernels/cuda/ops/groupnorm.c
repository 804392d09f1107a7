/* Group normalization of channels-last samples, and its gradient. */
#include "kernels/cuda/loops/groupnorm.h"
#include "kernels/cuda/internal.h"

typedef struct {
    tr_cuda_kernel k;
    tr_cuda_groupnorm_shape shape;
    double eps;
} kernel;

static tr_status open_groupnorm(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x,
                                tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, x);
    const tr_groupnorm_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(tr_innermost(t) == 1, TR_UNSUPPORTED,
            "layer %s: groupnorm of channels that do not lie innermost", op->layer);
    TR_TRY(tr_cuda_kernel_open(cuda, t, "own", run, sizeof *k, &k));
    const size_t samples = (size_t)t->dims[0], C = (size_t)t->dims[1];
    k->shape = (tr_cuda_groupnorm_shape){.samples = samples,
                                         .places = samples ? t->count / samples / C : 0,
                                         .C = C,
                                         .groups = (size_t)a->groups};
    k->eps = a->eps;
    *out = k;
out:
    return st;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    return tr_cuda_groupnorm_run(k->k.dtype, &k->shape, b->in[0], b->in[1], b->in[2], k->eps,
                                 b->out[0], b->out[1], k->k.cuda->stream);
}

tr_status tr_cuda_groupnorm(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_groupnorm(cuda, g, op, 0, run_forward, &k);
    if (st != TR_OK) return st;
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_groupnorm_grad_args a = {.dy = b->in[0],
                                           .x = b->in[1],
                                           .weight = b->in[2],
                                           .stats = b->in[3],
                                           .dx = b->out[0],
                                           .dweight = b->out[1],
                                           .dbias = b->out[2],
                                           .accumulate = run->accumulate,
                                           .partial = b->workspace};
    return tr_cuda_groupnorm_grad_run(k->k.dtype, &k->shape, &a, k->k.cuda->stream);
}

tr_status tr_cuda_groupnorm_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_groupnorm(cuda, g, op, 1, run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = k->shape.samples * 2 * k->shape.C * sizeof(float);
    *out = &k->k.base;
    return TR_OK;
}
