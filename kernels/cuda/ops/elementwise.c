/* The plain elementwise ops, which kernels/elementwise.h declares. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/elementwise.h"

typedef struct {
    tr_cuda_kernel k;
    size_t count;
    tr_elementwise which;
    tr_numbers n;
} kernel;

static tr_status run_elementwise(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_elementwise_run(k->k.dtype, k->which, k->n, k->k.b.in[0], k->k.b.in[1],
                                   k->k.b.out[0], k->count, k->k.cuda->stream);
}

tr_status tr_cuda_elementwise(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_out(g, op, 0);
    kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, t, "own", run_elementwise, sizeof *k, &k);
    if (st == TR_OK) st = tr_elementwise_of(op, &k->which, &k->n);
    if (st != TR_OK) {
        tr_free(k);
        return st;
    }
    k->count = t->count;
    *out = &k->k.base;
    return TR_OK;
}
