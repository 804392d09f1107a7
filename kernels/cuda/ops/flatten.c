/* Flatten and its gradient: a transposition of each sample between the stored (H, W, C) and the
 * flat (C, H, W) order, or a plain copy where both are the same order and the graph did not make it
 * a view. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/arrange.h"

typedef struct {
    tr_cuda_kernel k;
    tr_transposition t;
    size_t size; /* bytes of an element */
} kernel;

static tr_status run_flatten(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_transpose_run(k->size, k->k.b.in[0], k->k.b.out[0], k->t.samples, k->t.rows,
                                 k->t.cols, k->k.cuda->stream);
}

tr_status tr_cuda_flatten(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open_steps(cuda, x, "own", run_flatten, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->t = tr_flatten_of(g, op);
    k->size = tr_dtype_size(x->dtype);
    *out = &k->k.base;
    return TR_OK;
}
