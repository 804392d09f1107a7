/* Mean squared error, and binary cross entropy on logits. */
#include "kernels/cuda/loops/loss.h"

typedef struct {
    tr_cuda_kernel k;
    size_t count, samples;
    bool bce;
} kernel;

static tr_status run_loss(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_cuda_elementwise_loss_args a = {.y = k->k.b.in[0],
                                             .target = k->k.b.in[1],
                                             .dy = k->k.b.out[0],
                                             .count = k->count,
                                             .samples = k->samples,
                                             .control = run->control,
                                             .scale = run->loss_scale,
                                             .tally = run->tally,
                                             .partial = k->k.b.workspace,
                                             .bce = k->bce};
    return tr_cuda_elementwise_loss_run(k->k.dtype, &a, k->k.cuda->stream);
}

static tr_status open_loss(tr_cuda *cuda, const tr_graph *g, const tr_op *op, bool bce,
                           tr_kernel **out)
{
    const tr_tensor *y = tr_cuda_in(g, op, 0), *target = tr_cuda_in(g, op, 1);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(target->dtype == TR_F32 && target->count == y->count, TR_UNSUPPORTED,
            "layer %s: %zu targets of type %s for %zu outputs", op->layer, target->count,
            tr_dtype_name(target->dtype), y->count);
    TR_TRY(tr_cuda_kernel_open(cuda, y, "own", run_loss, sizeof *k, &k));
    k->count = y->count;
    k->samples = (size_t)y->dims[0];
    k->bce = bce;
    k->k.base.workspace = TR_LOSS_WORKSPACE;
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cuda_mse(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_loss(cuda, g, op, false, out);
}

tr_status tr_cuda_bce(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_loss(cuda, g, op, true, out);
}
