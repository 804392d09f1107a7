/* A bias for each channel of an image, with an activation, and its gradient: the epilogue and the
 * column sums of convolutions (loops/epilogue.cu, loops/linear.cu). */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/epilogue.h"
#include "kernels/cuda/loops/linear.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, channels;
    tr_act act;
} kernel;

static tr_status run_bias(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    return tr_cuda_epilogue(k->k.cuda->stream, k->act, k->k.dtype, k->k.dtype, k->k.b.in[0],
                            k->k.b.in[1], NULL, k->k.b.out[0], k->rows, k->channels);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    return tr_cuda_column_sum(k->k.cuda->stream, k->k.dtype, k->k.b.in[0], k->rows, k->channels,
                              k->k.b.workspace, k->k.b.out[0], tr_run_adds(run, &k->k.b, 0));
}

static tr_status prepare(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                         tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, x->count, "of an image"));
    TR_NEED(x->layout == TR_LAYOUT_CHANNELS_LAST, TR_UNSUPPORTED,
            "layer %s: an image that is not stored channels-last", op->layer);
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run, sizeof *k, &k));
    k->channels = (size_t)x->dims[1];
    k->rows = x->count / k->channels;
    k->act = op->act;
    *out = k;
out:
    return st;
}

tr_status tr_cuda_bias(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = prepare(cuda, g, op, run_bias, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}

tr_status tr_cuda_bias_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = prepare(cuda, g, op, run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = tr_cuda_column_sum_workspace(k->rows, k->channels);
    *out = &k->k.base;
    return TR_OK;
}
