/* The average over each image's places, and its gradient: our own kernels
 * (loops/global_pool.cu). */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/pool.h"

typedef struct {
    tr_cuda_kernel head;
    size_t batch, places, channels;
} global_kernel;

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    const global_kernel *k = (const global_kernel *)base;
    (void)run;
    return tr_cuda_global_pool(k->head.cuda->stream, k->head.dtype, k->head.b.in[0],
                               k->head.b.out[0], k->batch, k->places, k->channels);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const global_kernel *k = (const global_kernel *)base;
    (void)run;
    return tr_cuda_global_pool_grad(k->head.cuda->stream, k->head.dtype, k->head.b.in[0],
                                    k->head.b.out[0], k->batch, k->places, k->channels);
}

static tr_status prepare(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x,
                         tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *tx = &g->tensors[x];
    global_kernel *k = NULL;
    TR_TRY(tr_cuda_check_count(op, tx->count, "that is pooled"));
    TR_NEED(tx->layout == TR_LAYOUT_CHANNELS_LAST, TR_UNSUPPORTED,
            "layer %s: pooling of what is not stored channels-last", op->layer);
    TR_TRY(tr_cuda_kernel_open(cuda, tx, "own: by images", run, sizeof *k, &k));
    k->batch = (size_t)tx->dims[0];
    k->channels = (size_t)tx->dims[1];
    k->places = (size_t)(tx->dims[2] * tx->dims[3]);
    *out = &k->head.base;
out:
    return st;
}

tr_status tr_cuda_global_avgpool(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, g, op, op->in[0], run_forward, out);
}

tr_status tr_cuda_global_avgpool_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                      tr_kernel **out)
{
    return prepare(cuda, g, op, op->out[0], run_grad, out);
}
