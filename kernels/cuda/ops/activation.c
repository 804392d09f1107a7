/* Activations and their gradients, element by element. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/elementwise.h"

typedef struct {
    tr_cuda_kernel k;
    size_t count;
    tr_act act;
} kernel;

static tr_status open_activation(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                 tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = t->count;
    k->act = tr_op_activation(op);
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_act_run(k->k.dtype, k->act, k->k.b.in[0], k->k.b.out[0], k->count,
                           k->k.cuda->stream);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_act_grad_run(k->k.dtype, k->act, k->k.b.in[0], k->k.b.in[1], k->k.b.out[0],
                                k->count, k->k.cuda->stream);
}

tr_status tr_cuda_activation(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_activation(cuda, g, op, run_forward, out);
}

tr_status tr_cuda_activation_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                  tr_kernel **out)
{
    return open_activation(cuda, g, op, run_grad, out);
}
