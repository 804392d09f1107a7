/* Rounding by learned scales: each has a row of elements, a weight's output or all there are. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/quantize_learned.h"

#include <math.h>

typedef struct {
    tr_cuda_kernel k;
    const tr_learned_steps *steps;
    size_t rows, D;
    double gain; /* of a scale's gradient */
} kernel;

/* Operands: x, scale from `at` on. */
static tr_status open_learned(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int at,
                              tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, at);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_check_count(op, x->count, "that is rounded"));
    TR_TRY(tr_cuda_kernel_open(cuda, x, "own", run, sizeof *k, &k));
    k->steps = op->attrs;
    k->rows = tr_cuda_in(g, op, at + 1)->count;
    k->D = x->count / k->rows;
    k->gain = 1 / sqrt((double)(k->steps->sampled ? x->count / (size_t)x->dims[0] : k->D) *
                       (double)k->steps->positive);
    *out = k;
out:
    return st;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_learned_args a = {.x = b->in[0],
                                    .scale = b->in[1],
                                    .out = b->out[0],
                                    .rows = k->rows,
                                    .D = k->D,
                                    .least = k->steps->least,
                                    .most = k->steps->most};
    return tr_cuda_learned_run(k->k.dtype, &a, k->k.cuda->stream);
}

tr_status tr_cuda_quantize_learned(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                   tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = open_learned(cuda, g, op, 0, run_forward, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->k.b;
    const tr_cuda_learned_args a = {.dy = b->in[0],
                                    .x = b->in[1],
                                    .scale = b->in[2],
                                    .out = b->out[0],
                                    .dscale = b->out[1],
                                    .add = tr_run_adds(run, b, 0),
                                    .add_scale = tr_run_adds(run, b, 1),
                                    .rows = k->rows,
                                    .D = k->D,
                                    .least = k->steps->least,
                                    .most = k->steps->most,
                                    .gain = (float)k->gain,
                                    .partial = b->workspace};
    return tr_cuda_learned_grad_run(k->k.dtype, &a, k->k.cuda->stream);
}

tr_status tr_cuda_quantize_learned_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                        tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = open_learned(cuda, g, op, 1, run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = tr_cuda_learned_workspace(k->rows, k->D);
    *out = &k->k.base;
    return TR_OK;
}
