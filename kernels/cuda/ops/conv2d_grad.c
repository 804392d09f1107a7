/* The weight and bias gradient of a convolution. cuDNN writes the weight's gradient to the
 * workspace as (out, kh, kw, in/groups), in the type of the operands; our own kernel brings it into
 * the stored order, float32, and overwrites or adds. The bias' gradient is a sum over rows in a
 * fixed order (loops/linear.h).
 *
 * Of windows of one place that do not skip any, the gradient is the matrix product of a linear
 * layer: in, out channels by batch * height * width, so one to some ten tiles of 128 x 128 and sums
 * of up to millions. Either library may do that better, and with the option `benchmark` both ways
 * are timed, each as the whole kernel that it is. Without it, cuBLASLt's is taken where its
 * algorithm cuts the sum into enough parts to fill the device (blas/choose.c): it ends in float32
 * without a kernel of our own behind it, and may add up the bias' gradient on the way. Else
 * cuDNN's, whose engines of weight gradients are made for such shapes and split the sum themselves.
 *
 * Of 16-bit operands the sums are float32 and rounded to 16 bits once a micro-batch, as PyTorch's
 * are; micro-batches and ranks are added in float32. float32 from end to end would cost more than
 * it gives: the one engine of cuDNN 9.19 for an H100 that ends in float32 keeps a tile of the
 * gradient in a block of threads from the first image to the last, and so leaves most of the device
 * idle where the gradient is small (a 3x3 window of 128 channels: 9 of 132 multiprocessors), while
 * those that end in 16 bits split the sum. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/ops/conv2d.h"
#include "kernels/cuda/loops/filter.h"
#include "kernels/cuda/loops/linear.h"
#include "kernels/cuda/ops/linear.h"
#include "kernels/cuda/trial.h"

#include <string.h>

enum { ALIGN = 256 };

/* ---- By a plan of cuDNN's ---- */

typedef struct {
    tr_cuda_conv conv;
    bool bias;         /* its gradient is wanted, too */
    size_t at_scratch; /* in the workspace, behind the gradient: the plan's, or the bias' sums */
} grad_kernel;

static tr_dnn_operands operands(const tr_cuda_conv *k)
{
    const tr_binding *b = &k->head.b;
    return (tr_dnn_operands){.x = b->in[0],
                             .w = b->workspace,
                             .y = b->in[1],
                             .workspace =
                                 tr_cuda_conv_scratch(k, ((const grad_kernel *)k)->at_scratch)};
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    tr_status st = TR_OK;
    const grad_kernel *d = (const grad_kernel *)base;
    const tr_cuda_conv *k = &d->conv;
    const tr_cuda_kernel *h = &k->head;
    TR_TRY(tr_dnn_call_run(h->cuda->dnn, &k->call));
    TR_TRY(tr_cuda_filter_unpack(h->cuda->stream, h->dtype, h->b.workspace, h->b.out[0], k->out,
                                 k->channels, k->places, tr_run_adds(r, &h->b, 0)));
    if (d->bias)
        TR_TRY(tr_cuda_column_sum(h->cuda->stream, h->dtype, h->b.in[1], k->rows, k->out,
                                  tr_cuda_conv_scratch(k, d->at_scratch), h->b.out[1],
                                  tr_run_adds(r, &h->b, 1)));
out:
    return st;
}

static void lay_out(grad_kernel *d)
{
    tr_cuda_conv *k = &d->conv;
    const size_t plan = tr_cuda_conv_workspace(k);
    const size_t sums = d->bias ? tr_cuda_column_sum_workspace(k->rows, k->out) : 0;
    d->at_scratch =
        tr_align_up(k->out * k->channels * k->places * tr_dtype_size(k->head.dtype), ALIGN);
    k->head.base.workspace = d->at_scratch + (sums > plan ? sums : plan);
}

static tr_status open_plan(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    grad_kernel *d = NULL;
    tr_dnn_problem p;
    TR_TRY(tr_cuda_conv_open(cuda, g, op, TR_DNN_GRAD_WEIGHT, op->in[0], op->in[1], run, operands,
                             sizeof *d, &d));
    d->bias = tr_cuda_out(g, op, 1) != NULL;
    p = d->conv.problem;
    TR_TRY(tr_cuda_conv_try(&d->conv, &p));
    if (!d->conv.plan && !cuda->o.dry) TR_TRY(tr_cuda_conv_none(&d->conv));
    tr_cuda_conv_name(&d->conv, "");
    lay_out(d);
    *out = &d->conv.head.base;
out:
    if (st != TR_OK && d) d->conv.head.base.close(&d->conv.head.base);
    return st;
}

/* ---- By a product of cuBLASLt's, or a plan ---- */

enum { PRODUCT, PLAN, WAYS };

static bool is_product(const tr_conv2d_attrs *a)
{
    for (int i = 0; i < 2; i++)
        if (a->kernel[i] != 1 || a->stride[i] != 1 || a->padding[i] != 0 || a->extra[i] != 0)
            return false;
    return a->groups == 1;
}

static tr_status open_product(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_op linear = *op;
    linear.attrs = NULL;
    return tr_cuda_linear_grad_weight(cuda, g, &linear, out);
}

static tr_status put(void *way, const tr_cuda_trial *t)
{
    tr_kernel *k = way;
    const tr_binding b = {.in = {t->block[0], t->block[1]},
                          .out = {t->block[2], t->block[3]},
                          .workspace = t->workspace};
    tr_status st = k->bind(k, &b);
    return st == TR_OK ? k->run(k, &(tr_run){0}) : st;
}

/* *best stays where neither runs. */
static tr_status time_ways(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel *const *way,
                           int *best)
{
    const tr_tensor *dbias = tr_cuda_out(g, op, 1);
    const size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {
        g->tensors[op->in[0]].nbytes, g->tensors[op->in[1]].nbytes, g->tensors[op->out[0]].nbytes,
        dbias ? dbias->nbytes : 0};
    return tr_cuda_trial_kernels(cuda, "weight gradients", sizes, put, way, WAYS, best);
}

/* One contest for all layers of a shape. */
static tr_status fastest(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel *const *way,
                         int *best)
{
    tr_status st = TR_OK;
    const grad_kernel *d = (const grad_kernel *)way[PLAN];
    struct {
        tr_dnn_problem problem;
        int64_t bias;
    } key = {d->conv.problem, d->bias};
    const int *known = tr_cuda_recall(cuda, &key, sizeof key);
    if (known) {
        *best = *known;
        return TR_OK;
    }
    TR_TRY(time_ways(cuda, g, op, way, best));
    TR_TRY(tr_cuda_remember(cuda, &key, sizeof key, *best));
out:
    return st;
}

/* No algorithm, or none that runs. */
static bool is_missing(const tr_cuda *cuda, tr_status st)
{
    return st == TR_UNSUPPORTED || (st == TR_KERNEL && tr_cuda_survives(cuda));
}

/* What is missing stays NULL as long as there is another way. */
static tr_status open_ways(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **way)
{
    tr_status st = open_product(cuda, g, op, &way[PRODUCT]);
    if (st != TR_OK && !is_missing(cuda, st)) return st;
    if (st == TR_OK && !cuda->o.benchmark && !cuda->o.dry && tr_cuda_linear_fills(way[PRODUCT]))
        return TR_OK;
    st = open_plan(cuda, g, op, &way[PLAN]);
    return st != TR_OK && way[PRODUCT] && is_missing(cuda, st) ? TR_OK : st;
}

tr_status tr_cuda_conv2d_grad_weight(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                     tr_kernel **out)
{
    tr_status st = TR_OK;
    tr_kernel *way[WAYS] = {NULL};
    if (!is_product(op->attrs)) return open_plan(cuda, g, op, out);
    TR_TRY(open_ways(cuda, g, op, way));
    int best = way[PLAN] ? PLAN : PRODUCT;
    const bool both = way[PLAN] && way[PRODUCT];
    if (both && cuda->o.dry) { /* either may be taken */
        best = PRODUCT;
        if (way[PRODUCT]->workspace < way[PLAN]->workspace)
            way[PRODUCT]->workspace = way[PLAN]->workspace;
    } else if (both && cuda->o.benchmark) {
        TR_TRY(fastest(cuda, g, op, way, &best));
    }
    *out = way[best];
    way[best] = NULL;
out:
    for (int i = 0; i < WAYS; i++)
        if (way[i]) way[i]->close(way[i]);
    return st;
}
