/* Losses of one output and one target each. pos_weight is copied to the device once. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/loss.h"

typedef struct {
    tr_cuda_kernel k;
    size_t count, samples;
    bool weighted;                      /* samples have weights */
    const tr_elementwise_loss_attrs *a; /* the graph's */
    float *pos;                         /* on the device; NULL: all 1 */
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
                                             .loss = k->a,
                                             .pos = k->pos,
                                             .weights = k->weighted ? k->k.b.in[2] : NULL};
    return tr_cuda_elementwise_loss_run(k->k.dtype, &a, k->k.cuda->stream);
}

static void close_loss(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_free(k->k.cuda, k->pos);
    tr_free(k);
}

tr_status tr_cuda_elementwise_loss(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                   tr_kernel **out)
{
    const tr_tensor *y = tr_cuda_in(g, op, 0), *target = tr_cuda_in(g, op, 1);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(target->dtype == TR_F32 && target->count == y->count, TR_UNSUPPORTED,
            "layer %s: %zu targets of type %s for %zu outputs", op->layer, target->count,
            tr_dtype_name(target->dtype), y->count);
    TR_TRY(tr_cuda_kernel_open(cuda, y, "own", run_loss, sizeof *k, &k));
    k->k.base.close = close_loss;
    k->k.base.workspace = TR_LOSS_WORKSPACE;
    k->count = y->count;
    k->samples = (size_t)y->dims[0];
    k->a = op->attrs;
    k->weighted = tr_cuda_in(g, op, 2) != NULL;
    TR_NEED((!k->weighted && !k->a->npos) || k->count <= UINT32_MAX, TR_UNSUPPORTED,
            "layer %s: %zu weighted outputs", op->layer, k->count);
    if (k->a->npos && !cuda->o.dry) {
        const size_t nbytes = k->a->npos * sizeof *k->pos;
        TR_HAVE(k->pos = tr_cuda_alloc(cuda, TR_MEM_OTHER, nbytes));
        TR_TRY(tr_cuda_upload(cuda, k->pos, k->a->pos_weight, nbytes));
    }
out:
    if (st != TR_OK) {
        if (k) close_loss(&k->k.base);
        return st;
    }
    *out = &k->k.base;
    return TR_OK;
}
