/* Sum of any number of tensors of one shape, with the activation behind it fused. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/elementwise.h"

typedef struct {
    tr_cuda_kernel k;
    size_t count;
    int nin;
    tr_act act;
} kernel;

static tr_status run_add(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_add_run(k->k.dtype, k->act, k->nin, k->k.b.in, k->k.b.out[0], k->count,
                           k->k.cuda->stream);
}

tr_status tr_cuda_add(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *t = tr_cuda_out(g, op, 0);
    kernel *k = NULL;
    for (int i = 0; i < op->nin; i++)
        if (!tr_cuda_in(g, op, i))
            return TR_FAIL(TR_INTERNAL, "layer %s: add without operand %d", op->layer, i);
    tr_status st = tr_cuda_kernel_open(cuda, t, "own", run_add, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = t->count;
    k->nin = op->nin;
    k->act = op->act;
    *out = &k->k.base;
    return TR_OK;
}
