/* The plain elementwise ops, which kernels/elementwise.h declares. */
#include "kernels/cuda/loops/elementwise.h"

typedef struct {
    tr_cuda_kernel k;
    size_t count;
    tr_elementwise which;
    float a;
} kernel;

static tr_status run_elementwise(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_elementwise_run(k->k.dtype, k->which, k->a, k->k.b.in[0], k->k.b.in[1],
                                   k->k.b.out[0], k->count, k->k.cuda->stream);
}

tr_status tr_cuda_elementwise(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_out(g, op, 0);
    int operands;
    float a;
    const tr_elementwise which = tr_elementwise_of(op, &operands, &a);
    kernel *k = NULL;
    if (operands == 0 || operands != op->nin)
        return TR_FAIL(TR_INTERNAL, "layer %s: %d operands of an elementwise op that takes %d",
                       op->layer, op->nin, operands);
    tr_status st = tr_cuda_kernel_open(cuda, t, "own", run_elementwise, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = t->count;
    k->which = which;
    k->a = a;
    *out = &k->k.base;
    return TR_OK;
}
