/* One row made of a sample's, by its length: our own kernels (loops/take_rows.cu). */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/take_rows.h"

typedef struct {
    tr_cuda_kernel k;
    tr_cuda_rows r;
} kernel;

static tr_status run_take(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_take_rows_run(k->k.cuda->stream, k->k.dtype, &k->r, k->k.b.in[0], k->k.b.in[1],
                                 k->k.b.out[0]);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_take_rows_grad_run(k->k.cuda->stream, k->k.dtype, &k->r, k->k.b.in[0],
                                      k->k.b.in[1], k->k.b.out[0]);
}

static tr_status prepare(tr_cuda *cuda, const tr_op *op, const tr_tensor *x,
                         tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, x->count, "of rows"));
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own: by samples", run, sizeof *k, &k));
    k->r = (tr_cuda_rows){.a = *(const tr_rows_attrs *)op->attrs,
                          .samples = (size_t)x->dims[0],
                          .rows = (size_t)x->dims[1],
                          .features = (size_t)x->dims[2]};
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cuda_take_rows(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, op, tr_cuda_in(g, op, 0), run_take, out);
}

tr_status tr_cuda_take_rows_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, op, tr_cuda_out(g, op, 0), run_grad, out);
}
