/* Concatenation along a dimension and its gradient: copies of row pieces. A row is what is stored
 * from one place of the dimensions before it to the next. */
#include "kernels/cuda/loops/arrange.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows;
    size_t part[TR_MAX_IN]; /* bytes of each piece of a row */
    int count;
} kernel;

static tr_status run_concat(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_concat_run(false, k->k.b.out[0], k->k.b.in, k->part, k->count, k->rows,
                              k->k.cuda->stream);
}

static tr_status run_split(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_concat_run(true, k->k.b.in[0], k->k.b.out, k->part, k->count, k->rows,
                              k->k.cuda->stream);
}

/* `whole` side by side from pieces, `count` of them. */
static tr_status open_concat(tr_cuda *cuda, const tr_tensor *whole, const tr_op *op, int count,
                             tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_concat_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, whole, "own: copies", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    const int axis = (int)a->axis;
    const size_t inner = tr_stored_behind(whole, axis);
    k->rows = whole->count / (inner * (size_t)whole->dims[axis]);
    k->count = count;
    for (int i = 0; i < count; i++)
        k->part[i] = inner * (size_t)a->width[i] * tr_dtype_size(whole->dtype);
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cuda_concat(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_concat(cuda, tr_cuda_out(g, op, 0), op, op->nin, run_concat, out);
}

tr_status tr_cuda_concat_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_concat(cuda, tr_cuda_in(g, op, 0), op, op->nout, run_split, out);
}
