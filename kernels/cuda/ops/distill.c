/* Losses against a teacher: of logits (softened softmaxes) and of features (squared distance). */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/loss.h"
#include "kernels/cuda/ops/rows.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, width, classes;
    double factor, inverse; /* 1 / temperature; 0: features */
    double *weights;        /* on the device; NULL: all 1 */
} kernel;

static tr_status run_loss(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_cuda_distill_args a = {.x = k->k.b.in[0],
                                    .teacher = k->k.b.in[1],
                                    .labels = k->k.b.in[2],
                                    .dx = k->k.b.out[0],
                                    .rows = k->rows,
                                    .width = k->width,
                                    .classes = k->classes,
                                    .weights = k->weights,
                                    .factor = k->factor,
                                    .inverse = k->inverse,
                                    .control = run->control,
                                    .scale = run->loss_scale,
                                    .tally = run->tally,
                                    .partial = k->k.b.workspace};
    return k->inverse > 0 ? tr_cuda_soft_loss_run(k->k.dtype, &a, k->k.cuda->stream)
                          : tr_cuda_feature_loss_run(k->k.dtype, &a, k->k.cuda->stream);
}

static void close_loss(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_free(k->k.cuda, k->weights);
    tr_free(k);
}

static tr_status open_loss(tr_cuda *cuda, const tr_graph *g, const tr_op *op, double temperature,
                           tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0), *teacher = tr_cuda_in(g, op, 1);
    const tr_distill_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(teacher->dtype == x->dtype && teacher->count == x->count, TR_UNSUPPORTED,
            "layer %s: %zu values of a teacher of type %s for %zu", op->layer, teacher->count,
            tr_dtype_name(teacher->dtype), x->count);
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run_loss, sizeof *k, &k));
    k->k.base.close = close_loss;
    k->k.base.workspace = TR_LOSS_WORKSPACE;
    k->rows = (size_t)x->dims[0];
    k->width = k->rows ? x->count / k->rows : 0;
    TR_NEED(temperature == 0 || k->width <= TR_CUDA_MAX_ROW, TR_UNSUPPORTED,
            "layer %s: %zu classes", op->layer, k->width);
    k->classes = a->classes;
    k->factor = a->factor;
    k->inverse = temperature > 0 ? 1 / temperature : 0;
    TR_TRY(tr_cuda_class_weights(cuda, a->class_weights, a->classes, &k->weights));
out:
    if (st != TR_OK) {
        if (k) close_loss(&k->k.base);
        return st;
    }
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cuda_soft_loss(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_loss(cuda, g, op, ((const tr_distill_attrs *)op->attrs)->temperature, out);
}

tr_status tr_cuda_feature_loss(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_loss(cuda, g, op, 0, out);
}
