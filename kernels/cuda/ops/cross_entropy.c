/* Cross entropy on logits, of class labels or of probabilities: label smoothing, class weights,
 * labels that do not count, focal loss. Class weights are copied to the device
 * once; labels were checked when they were read (runtime/data/targets.c), and one that is out of
 * range here makes the loss NaN. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/loss.h"
#include "kernels/cuda/ops/rows.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, classes, each; /* each: rows of a sample */
    size_t pitch;               /* elements from one row to the next */
    size_t keep;                /* shared bytes that wide rows may be kept in */
    bool soft, weighted;        /* the target is probabilities; samples have weights */
    bool ignores;               /* rows with this label: */
    int32_t ignored;
    double weight_sum;
    const tr_cross_entropy_attrs *a; /* the graph's */
    double *weights;                 /* on the device; NULL: all 1 */
} kernel;

static tr_status run_xent(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_cuda_cross_entropy_args a = {.logits = k->k.b.in[0],
                                          .labels = k->soft ? NULL : k->k.b.in[1],
                                          .dlogits = k->k.b.out[0],
                                          .rows = k->rows,
                                          .each = k->each,
                                          .classes = k->classes,
                                          .pitch = k->pitch,
                                          .smoothing = k->a->label_smoothing,
                                          .weights = k->weights,
                                          .weight_sum = k->weight_sum,
                                          .factor = k->a->factor,
                                          .gamma = k->a->gamma,
                                          .ignores = k->ignores,
                                          .ignore_index = k->ignored,
                                          .samples = k->weighted ? k->k.b.in[2] : NULL,
                                          .control = run->control,
                                          .scale = run->loss_scale,
                                          .confusion = run->confusion,
                                          .tally = run->tally,
                                          .partial = k->k.b.workspace,
                                          .keep = k->keep};
    if (k->soft) return tr_cuda_soft_targets_run(k->k.dtype, &a, k->k.b.in[1], k->k.cuda->stream);
    return tr_cuda_cross_entropy_run(k->k.dtype, &a, k->k.cuda->stream);
}

static void close_xent(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_free(k->k.cuda, k->weights);
    tr_free(k);
}

tr_status tr_cuda_class_weights(tr_cuda *cuda, const double *weights, size_t classes, double **out)
{
    tr_status st = TR_OK;
    if (!weights || cuda->o.dry) return TR_OK;
    *out = tr_cuda_alloc(cuda, TR_MEM_OTHER, classes * sizeof **out);
    TR_HAVE(*out);
    TR_TRY(tr_cuda_upload(cuda, *out, weights, classes * sizeof **out));
out:
    return st;
}

tr_status tr_cuda_cross_entropy(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *logits = tr_cuda_in(g, op, 0), *target = tr_cuda_in(g, op, 1);
    const tr_cross_entropy_attrs *a = op->attrs;
    const size_t classes = (size_t)logits->dims[tr_innermost(logits)];
    const size_t rows = classes ? logits->count / classes : 0;
    kernel *k = NULL;
    tr_status st = TR_OK;
    const bool soft = target->dtype == TR_F32;
    TR_NEED((soft || target->dtype == TR_I32) && target->count == (soft ? logits->count : rows),
            TR_UNSUPPORTED, "layer %s: %zu targets of type %s for %zu rows of logits", op->layer,
            target->count, tr_dtype_name(target->dtype), rows);
    TR_NEED(classes > 0 && classes <= TR_CUDA_MAX_ROW, TR_UNSUPPORTED, "layer %s: %zu classes",
            op->layer, classes);
    const size_t pitch = (size_t)tr_row_pitch(logits),
                 next = tr_align_up(classes, 16 / tr_dtype_size(logits->dtype));
    TR_NEED(pitch == classes || (pitch == next && !soft), TR_INTERNAL,
            "layer %s: rows of %zu logits %zu apart", op->layer, classes, pitch);
    TR_TRY(tr_cuda_kernel_open(cuda, logits, "own: fused softmax", run_xent, sizeof *k, &k));
    k->k.base.close = close_xent;
    k->k.base.workspace = TR_LOSS_WORKSPACE;
    k->rows = rows;
    k->classes = classes;
    k->pitch = pitch;
    k->each = rows > 0 ? rows / (size_t)logits->dims[0] : 1;
    k->soft = soft;
    k->weighted = tr_cuda_in(g, op, 2) != NULL;
    k->a = a;
    k->ignores = !soft && tr_xent_ignores(a, g->mode, k->each, &k->ignored);
    k->keep = tr_cuda_row_room(cuda);
    for (size_t i = 0; i < classes; i++)
        k->weight_sum += a->class_weights ? a->class_weights[i] : 1.0;
    TR_TRY(tr_cuda_class_weights(cuda, a->class_weights, classes, &k->weights));
    if (!cuda->o.dry) TR_TRY(tr_cuda_cross_entropy_ready(k->k.dtype, k->keep));
out:
    if (st != TR_OK) {
        if (k) close_xent(&k->k.base);
        return st;
    }
    *out = &k->k.base;
    return TR_OK;
}
