/* Values to 8 bits by the ranges of the data at hand, row by row, and products of these to
 * values. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/dynamic.h"

typedef struct {
    tr_cuda_kernel k;
    size_t rows, D;
    bool is_signed;
} kernel;

static tr_status run_rows(tr_kernel *base, bool to_steps)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_dynamic_args a = {.x = b->in[0],
                                    .y = b->out[0],
                                    .scales = to_steps ? b->out[1] : NULL,
                                    .is_signed = k->is_signed,
                                    .rows = k->rows,
                                    .D = k->D,
                                    .parts = b->workspace};
    return tr_cuda_dynamic_run(k->k.cuda->stream, k->k.dtype, &a);
}

static tr_status run_quantize(tr_kernel *base, const tr_run *run)
{
    (void)run;
    return run_rows(base, false);
}

static tr_status run_steps(tr_kernel *base, const tr_run *run)
{
    (void)run;
    return run_rows(base, true);
}

static tr_status prepare(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                         tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, 0);
    const tr_dynamic_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, x->count, "that is rounded"));
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run, sizeof *k, &k));
    k->rows = tr_dynamic_rows(x);
    k->D = k->rows ? x->count / k->rows : 0;
    k->is_signed = a->is_signed;
    k->k.base.workspace = tr_cuda_dynamic_parts(k->rows, k->D) * sizeof(float);
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cuda_dynamic_quantize(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                   tr_kernel **out)
{
    return prepare(cuda, g, op, run_quantize, out);
}

tr_status tr_cuda_dynamic_steps(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cuda, g, op, run_steps, out);
}

/* ---- Products ---- */

typedef struct {
    tr_cuda_kernel k;
    size_t rows, channels, places; /* places: rows of channels with one scale */
    tr_act act;
} rescale_kernel;

enum { SUMS, SCALES, BIAS, RESIDUAL };

static tr_status run_rescale(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const rescale_kernel *k = (const rescale_kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_rescale_args a = {.x = b->in[SUMS],
                                    .scales = b->in[SCALES],
                                    .bias = b->in[BIAS],
                                    .residual = b->in[RESIDUAL],
                                    .y = b->out[0],
                                    .act = k->act,
                                    .rows = k->rows,
                                    .channels = k->channels,
                                    .places = k->places};
    return tr_cuda_rescale_run(k->k.cuda->stream, k->k.dtype, &a);
}

tr_status tr_cuda_rescale(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *y = tr_cuda_out(g, op, 0), *scales = tr_cuda_in(g, op, SCALES);
    rescale_kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, y->count, "of a product of 8 bits"));
    TR_TRY(tr_cuda_kernel_open(cuda, y, "own", run_rescale, sizeof *k, &k));
    k->channels = (size_t)y->dims[tr_innermost(y)];
    k->rows = y->count / k->channels;
    k->places = k->rows / scales->count;
    k->act = op->act;
    *out = &k->k.base;
out:
    return st;
}
