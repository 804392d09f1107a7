/* Rows of a table by number, and their gradient. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/embedding.h"
#include "kernels/cuda/loops/sort.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, num, D;
    size_t sort_bytes;
} kernel;

static tr_status open_embedding(tr_cuda *cuda, const tr_tensor *ids, const tr_tensor *rows,
                                const tr_op *op, const char *impl,
                                tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_embedding_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(ids->count <= INT32_MAX, TR_UNSUPPORTED, "layer %s: an embedding of %zu ids at once",
            op->layer, ids->count);
    TR_TRY(tr_cuda_kernel_open(cuda, rows, impl, run, sizeof *k, &k));
    k->rows = ids->count;
    k->num = (size_t)a->num;
    k->D = (size_t)a->dim;
    *out = k;
out:
    return st;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    return tr_cuda_embedding_run(k->k.cuda->stream, k->k.dtype, b->in[1], b->in[0], b->out[0],
                                 k->rows, k->D);
}

tr_status tr_cuda_embedding(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = open_embedding(cuda, tr_cuda_in(g, op, 0), tr_cuda_out(g, op, 0), op, "own",
                                  run_forward, &k);
    if (st != TR_OK) return st;
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_embedding_grad_args a = {.dy = b->in[0],
                                           .ids = b->in[1],
                                           .dtable = b->out[0],
                                           .rows = k->rows,
                                           .num = k->num,
                                           .D = k->D,
                                           .accumulate = tr_run_adds(run, b, 0),
                                           .workspace = b->workspace,
                                           .sort_bytes = k->sort_bytes};
    return tr_cuda_embedding_grad_run(k->k.cuda->stream, k->k.dtype, &a);
}

tr_status tr_cuda_embedding_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(open_embedding(cuda, tr_cuda_in(g, op, 1), tr_cuda_in(g, op, 0), op, "own, CUB's sort",
                          run_grad, &k));
    TR_TRY(tr_cuda_sort_workspace(cuda->o.dry, k->rows, k->num, &k->sort_bytes));
    k->k.base.workspace = tr_cuda_embedding_grad_workspace(k->rows, k->D, k->sort_bytes);
    *out = &k->k.base;
    k = NULL;
out:
    tr_free(k);
    return st;
}
