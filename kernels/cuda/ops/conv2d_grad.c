/* The weight and bias gradient of a convolution. cuDNN writes the weight's gradient to the
 * workspace, float32, as (out, kh, kw, in/groups); our own kernel brings it into the stored order
 * and overwrites or adds. The bias' gradient is a sum over rows in a fixed order (loops/linear.h).
 *
 * Of 16-bit operands the gradient must be float32, too: rounded to 16 bits, the sums of small
 * gradients over micro-batches would be lost. Where cuDNN has no engine with that mix of types, the
 * operands are cast to float32 in the workspace and the problem is a float32 one; TF32 is exact for
 * such values (11 significant bits hold those of both types). The batch is cast in pieces that fit
 * the workspace, whose gradients are added in order. That costs 6 bytes an element of x and dy
 * more, and TF32 instead of 16-bit products: the implementation's name shows it. */
#include "kernels/cuda/ops/conv2d.h"
#include "kernels/cuda/loops/cast.h"
#include "kernels/cuda/loops/filter.h"
#include "kernels/cuda/loops/linear.h"

#include <stdio.h>

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

/* The most samples, dividing the batch, whose float32 copies fit `limit`; at least one. */
static int64_t samples(int64_t batch, size_t sample, size_t limit)
{
    for (int64_t n = batch; n > 1; n--)
        if (batch % n == 0 && sample <= limit / (size_t)n) return n;
    return 1;
}

static tr_status choose(grad_kernel *d, const tr_dnn_problem *like)
{
    tr_status st = TR_OK;
    tr_cuda_conv *k = &d->conv;
    tr_dnn_problem p = *like;
    const size_t x = (size_t)(p.in * p.size[0] * p.size[1]);
    const size_t y = (size_t)(p.out * p.result[0] * p.result[1]);
    char more[48] = "";
    p.weight_type = TR_F32;
    TR_TRY(tr_cuda_conv_try(k, &p));
    if (!k->plan && p.type != TR_F32 && !k->head.cuda->o.dry) {
        const int64_t n = samples(p.batch, (x + y) * sizeof(float), k->head.cuda->o.workspace);
        d->pieces = p.batch / n;
        d->nx = (size_t)n * x;
        d->ny = (size_t)n * y;
        p.batch = n;
        p.type = p.result_type = TR_F32;
        p.exact = false;
        snprintf(more, sizeof more, ", operands cast to float32");
        TR_TRY(tr_cuda_conv_try(k, &p));
    }
    if (!k->plan && !k->head.cuda->o.dry) TR_TRY(tr_cuda_conv_none(k));
    tr_cuda_conv_name(k, more);
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

tr_status tr_cuda_conv2d_grad_weight(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                     tr_kernel **out)
{
    tr_status st = TR_OK;
    grad_kernel *d = NULL;
    tr_dnn_problem p;
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
