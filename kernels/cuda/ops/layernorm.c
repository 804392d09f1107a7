/* Layer normalization of rows of D values, or RMSNorm of them, and its gradient. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/ops/rows.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, D, keep; /* shared bytes that wide rows may be kept in */
    double eps;
    bool centered;
} kernel;

static tr_status open_layernorm(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x,
                                int weight, tr_status (*run)(tr_kernel *, const tr_run *),
                                tr_status (*ready)(tr_dtype, size_t), kernel **out)
{
    const tr_tensor *t = tr_cuda_in(g, op, x);
    const size_t D = tr_cuda_in(g, op, weight)->count;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(t->dims[tr_innermost(t)] == (int64_t)D, TR_UNSUPPORTED,
            "layer %s: layernorm of values that do not lie innermost", op->layer);
    TR_NEED(D <= TR_CUDA_MAX_ROW, TR_UNSUPPORTED, "layer %s: layernorm of %zu values", op->layer,
            D);
    TR_TRY(tr_cuda_kernel_open(cuda, t, "own", run, sizeof *k, &k));
    k->D = D;
    k->rows = t->count / D;
    k->keep = tr_cuda_row_room(cuda);
    const tr_layernorm_attrs *a = op->attrs;
    if (a) k->eps = a->eps;
    k->centered = !a || !a->rms;
    if (!cuda->o.dry) TR_TRY(ready(k->k.dtype, k->keep));
out:
    if (st != TR_OK) {
        tr_free(k);
        return st;
    }
    *out = k;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    return tr_cuda_layernorm_run(k->k.dtype, b->in[0], b->in[1], b->in[2], k->eps, k->centered,
                                 b->out[0], b->out[1], k->rows, k->D, k->keep, k->k.cuda->stream);
}

tr_status tr_cuda_layernorm(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_layernorm(cuda, g, op, 0, 1, run_forward, tr_cuda_layernorm_ready, &k);
    if (st != TR_OK) return st;
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_layernorm_grad_args a = {.dy = b->in[0],
                                           .x = b->in[1],
                                           .weight = b->in[2],
                                           .stats = b->in[3],
                                           .dx = b->out[0],
                                           .dweight = b->out[1],
                                           .dbias = b->out[2],
                                           .accumulate = run->accumulate,
                                           .rows = k->rows,
                                           .D = k->D,
                                           .partial = b->workspace,
                                           .keep = k->keep,
                                           .rms = !k->centered};
    return tr_cuda_layernorm_grad_run(k->k.dtype, &a, k->k.cuda->stream);
}

tr_status tr_cuda_layernorm_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_layernorm(cuda, g, op, 1, 2, run_grad, tr_cuda_layernorm_grad_ready, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = tr_cuda_layernorm_grad_workspace(k->k.dtype, k->rows, k->D);
    *out = &k->k.base;
    return TR_OK;
}
