/* Relu with learned slopes, and its gradients. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/prelu.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, channels, weights;
} kernel;

static tr_status open_prelu(tr_cuda *cuda, const tr_op *op, const tr_tensor *x,
                            const tr_tensor *weight, tr_status (*run)(tr_kernel *, const tr_run *),
                            kernel **out)
{
    const size_t channels = (size_t)x->dims[tr_innermost(x)];
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(weight->count == 1 || weight->count == channels, TR_UNSUPPORTED,
            "layer %s: %zu weights for %zu channels", op->layer, weight->count, channels);
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run, sizeof *k, &k));
    k->channels = channels;
    k->rows = channels ? x->count / channels : 0;
    k->weights = weight->count;
    *out = k;
out:
    return st;
}

static tr_status run_prelu(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_prelu_run(k->k.dtype, k->k.b.in[0], k->k.b.in[1], k->weights, k->k.b.out[0],
                             k->rows, k->channels, k->k.cuda->stream);
}

tr_status tr_cuda_prelu(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st =
        open_prelu(cuda, op, tr_cuda_in(g, op, 0), tr_cuda_in(g, op, 1), run_prelu, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_prelu_grad_args a = {.dy = b->in[0],
                                       .x = b->in[1],
                                       .weight = b->in[2],
                                       .dx = b->out[0],
                                       .dweight = b->out[1],
                                       .accumulate = tr_run_adds(run, b, 1),
                                       .rows = k->rows,
                                       .channels = k->channels,
                                       .weights = k->weights,
                                       .partial = b->workspace};
    return tr_cuda_prelu_grad_run(k->k.dtype, &a, k->k.cuda->stream);
}

tr_status tr_cuda_prelu_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st =
        open_prelu(cuda, op, tr_cuda_in(g, op, 1), tr_cuda_in(g, op, 2), run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = tr_cuda_prelu_grad_workspace(k->rows, k->channels, k->weights);
    *out = &k->k.base;
    return TR_OK;
}
