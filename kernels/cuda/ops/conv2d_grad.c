/* The weight and bias gradient of a convolution. cuDNN writes the weight's gradient to the
 * workspace, float32, as (out, kh, kw, in/groups); our own kernel brings it into the stored order
 * and overwrites or adds. The bias' gradient is a sum over rows in a fixed order (loops/linear.h).
 * Of windows of one place that do not skip any, the gradient is the matrix product of a linear
 * layer, and is left to cuBLASLt, which splits long sums.
 *
 * Of 16-bit operands the gradient must be float32, too: rounded to 16 bits, the sums of small
 * gradients over micro-batches would be lost. cuDNN has two ways to that:
 *  - an engine that ends in float32 (dnn/graph.c). It keeps a tile of the gradient in a block of
 *    threads from the first to the last image, and so leaves most of the device idle where the
 *    gradient is small; cuDNN 9.19 refuses to split that sum (CUDNN_KNOB_TYPE_SPLIT_K_SLC);
 *  - operands cast to float32 in the workspace: TF32 is exact for them (its 11 significant bits
 *    hold those of both types), at half the rate of 16-bit products, and the casts move 14 bytes an
 *    element. The batch is cast in pieces that fit the workspace, whose gradients are added in
 *    order.
 * The shape says which of them is tried first. */
#include "kernels/cuda/ops/conv2d.h"
#include "kernels/cuda/loops/cast.h"
#include "kernels/cuda/loops/filter.h"
#include "kernels/cuda/loops/linear.h"

enum { ALIGN = 256 };

typedef struct {
    tr_cuda_conv conv;
    bool bias;      /* its gradient is wanted, too */
    int64_t pieces; /* of the batch that are cast to float32; 0: nothing is cast */
    size_t nx, ny;  /* elements of x and y in a piece */
    /* In the workspace: the gradient first, then what is cast, then scratch. */
    size_t at_x, at_y, at_scratch;
} grad_kernel;

static tr_dnn_operands operands(const tr_cuda_conv *k)
{
    const grad_kernel *d = (const grad_kernel *)k;
    const tr_binding *b = &k->head.b;
    return (tr_dnn_operands){.x = d->pieces ? tr_cuda_conv_scratch(k, d->at_x) : b->in[0],
                             .w = b->workspace,
                             .y = d->pieces ? tr_cuda_conv_scratch(k, d->at_y) : b->in[1],
                             .workspace = tr_cuda_conv_scratch(k, d->at_scratch)};
}

static tr_status cast_piece(const grad_kernel *d, int64_t i)
{
    tr_status st = TR_OK;
    const tr_cuda_conv *k = &d->conv;
    const tr_cuda_kernel *h = &k->head;
    const size_t size = tr_dtype_size(h->dtype);
    const char *x = h->b.in[0], *y = h->b.in[1];
    TR_TRY(tr_cuda_cast_to_f32(h->cuda->stream, h->dtype, x + (size_t)i * d->nx * size,
                               tr_cuda_conv_scratch(k, d->at_x), d->nx));
    TR_TRY(tr_cuda_cast_to_f32(h->cuda->stream, h->dtype, y + (size_t)i * d->ny * size,
                               tr_cuda_conv_scratch(k, d->at_y), d->ny));
out:
    return st;
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    tr_status st = TR_OK;
    const grad_kernel *d = (const grad_kernel *)base;
    const tr_cuda_conv *k = &d->conv;
    const tr_cuda_kernel *h = &k->head;
    const int64_t n = d->pieces ? d->pieces : 1;
    for (int64_t i = 0; i < n; i++) {
        if (d->pieces) TR_TRY(cast_piece(d, i));
        TR_TRY(tr_dnn_call_run(h->cuda->dnn, &k->call));
        TR_TRY(tr_cuda_filter_unpack(h->cuda->stream, h->b.workspace, h->b.out[0], k->out,
                                     k->channels, k->places, r->accumulate || i > 0));
    }
    if (d->bias)
        TR_TRY(tr_cuda_column_sum(h->cuda->stream, h->dtype, h->b.in[1], k->rows, k->out,
                                  tr_cuda_conv_scratch(k, d->at_x), h->b.out[1], r->accumulate));
out:
    return st;
}

/* The problem on float32 copies of the operands, or of pieces of them. */
static tr_status choose_cast(grad_kernel *d, const tr_dnn_problem *like)
{
    tr_status st = TR_OK;
    tr_cuda_conv *k = &d->conv;
    tr_dnn_problem p = *like;
    const size_t x = (size_t)(p.in * p.size[0] * p.size[1]);
    const size_t y = (size_t)(p.out * p.result[0] * p.result[1]);
    p.batch = tr_cuda_conv_samples(like->batch, (x + y) * sizeof(float), k->head.cuda->o.workspace);
    p.type = p.result_type = TR_F32;
    p.exact = false;
    TR_TRY(tr_cuda_conv_try(k, &p));
    if (!k->plan) goto out;
    d->pieces = like->batch / p.batch;
    d->nx = (size_t)p.batch * x;
    d->ny = (size_t)p.batch * y;
    tr_cuda_conv_name(k, ", operands cast to float32");
out:
    return st;
}

/* Arithmetic that takes as long as moving a byte, and how much better casting must look. */
static const double BALANCE = 240, MARGIN = 1.5;
enum { TILE = 128 };

static bool casting_is_faster(const tr_cuda_conv *k)
{
    const tr_dnn_problem *p = &k->problem;
    const double depth = (double)(k->channels * k->places);
    const double flops = 2.0 * (double)k->rows * (double)k->out * depth;
    const double tiles = (double)p->groups * (double)((p->out / p->groups + TILE - 1) / TILE) *
                         (double)((k->channels * k->places + TILE - 1) / TILE);
    const double idle = tiles < k->head.cuda->sms ? k->head.cuda->sms / tiles : 1;
    const double elements =
        (double)k->rows * (double)k->out + (double)(p->batch * p->in * p->size[0] * p->size[1]);
    return flops * idle > MARGIN * (2 * flops + BALANCE * 14 * elements);
}

static tr_status choose(grad_kernel *d, const tr_dnn_problem *like)
{
    tr_status st = TR_OK;
    tr_cuda_conv *k = &d->conv;
    tr_dnn_problem p = *like;
    const bool half = p.type != TR_F32, first = half && casting_is_faster(k);
    p.weight_type = TR_F32;
    tr_cuda_conv_name(k, "");
    if (k->head.cuda->o.dry) return TR_OK;
    if (first) TR_TRY(choose_cast(d, &p));
    if (k->plan) goto out;
    TR_TRY(tr_cuda_conv_try(k, &p));
    if (k->plan)
        tr_cuda_conv_name(k, half ? " to float32" : "");
    else if (half && !first)
        TR_TRY(choose_cast(d, &p));
    if (!k->plan) TR_TRY(tr_cuda_conv_none(k));
out:
    return st;
}

static void lay_out(grad_kernel *d)
{
    tr_cuda_conv *k = &d->conv;
    const size_t weight = k->out * k->channels * k->places * sizeof(float);
    const size_t sums = d->bias ? tr_cuda_column_sum_workspace(k->rows, k->out) : 0;
    size_t products;
    d->at_x = tr_align_up(weight, ALIGN);
    d->at_y = d->at_x + tr_align_up(d->nx * sizeof(float), ALIGN);
    d->at_scratch = d->at_y + tr_align_up(d->ny * sizeof(float), ALIGN);
    products = d->at_scratch + tr_cuda_conv_workspace(k);
    k->head.base.workspace = d->at_x + sums > products ? d->at_x + sums : products;
}

static bool is_product(const tr_conv2d_attrs *a)
{
    for (int i = 0; i < 2; i++)
        if (a->kernel[i] != 1 || a->stride[i] != 1 || a->padding[i] != 0) return false;
    return a->groups == 1;
}

tr_status tr_cuda_conv2d_grad_weight(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                     tr_kernel **out)
{
    tr_status st = TR_OK;
    grad_kernel *d = NULL;
    tr_dnn_problem p;
    if (is_product(op->attrs)) {
        tr_op linear = *op;
        linear.attrs = NULL;
        return tr_cuda_linear_grad_weight(cuda, g, &linear, out);
    }
    TR_TRY(tr_cuda_conv_open(cuda, g, op, TR_DNN_GRAD_WEIGHT, op->in[0], op->in[1], run, operands,
                             sizeof *d, &d));
    d->bias = tr_cuda_out(g, op, 1) != NULL;
    p = d->conv.problem;
    TR_TRY(choose(d, &p));
    lay_out(d);
    *out = &d->conv.head.base;
out:
    if (st != TR_OK && d) d->conv.head.base.close(&d->conv.head.base);
    return st;
}
