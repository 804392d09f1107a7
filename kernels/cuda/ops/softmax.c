/* Softmax over the innermost stored dimension and its gradient. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/softmax.h"
#include "kernels/cuda/ops/rows.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, D, keep; /* shared bytes that wide rows may be kept in */
} kernel;

static tr_status open_softmax(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                              tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_kernel_open(cuda, t, "own", run, sizeof *k, &k));
    k->D = (size_t)t->dims[tr_innermost(t)];
    TR_NEED(k->D > 0 && k->D <= TR_CUDA_MAX_ROW, TR_UNSUPPORTED,
            "layer %s: softmax over %zu values", op->layer, k->D);
    k->rows = t->count / k->D;
    k->keep = tr_cuda_row_room(cuda);
    if (!cuda->o.dry) TR_TRY(tr_cuda_softmax_ready(k->k.dtype, k->keep));
out:
    if (st != TR_OK) {
        tr_free(k);
        return st;
    }
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_softmax_run(k->k.dtype, k->k.b.in[0], k->k.b.out[0], k->rows, k->D, k->keep,
                               k->k.cuda->stream);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_softmax_grad_run(k->k.dtype, k->k.b.in[0], k->k.b.in[1], k->k.b.out[0], k->rows,
                                    k->D, k->keep, k->k.cuda->stream);
}

tr_status tr_cuda_softmax(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_softmax(cuda, g, op, run_forward, out);
}

tr_status tr_cuda_softmax_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_softmax(cuda, g, op, run_grad, out);
}
