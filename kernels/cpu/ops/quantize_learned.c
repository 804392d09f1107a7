/* Rounding by learned scales: each has a row of elements, a weight's output or all there are. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <math.h>

typedef struct {
    tr_loop_kernel k;
    const tr_learned_steps *steps;
    size_t rows, D, pieces; /* chunks of a row */
    double gain;            /* of a scale's gradient */
} kernel;

/* Operands: x, scale from `at` on. */
static tr_status open_learned(tr_cpu *cpu, const tr_graph *g, const tr_op *op, int at,
                              tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, at);
    kernel *k = NULL;
    const tr_status st = tr_loop_kernel_open(cpu, x, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->steps = op->attrs;
    k->rows = tr_loop_in(g, op, at + 1)->count;
    k->D = x->count / k->rows;
    k->pieces = tr_chunks(k->D, TR_CHUNK);
    k->gain = 1 / sqrt((double)(k->steps->sampled ? x->count / (size_t)x->dims[0] : k->D) *
                       (double)k->steps->positive);
    *out = k;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const float *scale = o->b.in[1];
    TR_PARALLEL(o->threads, k->rows * k->pieces)
    for (size_t i = 0; i < k->rows * k->pieces; i++) {
        const size_t row = i / k->pieces, piece = i % k->pieces, at = row * k->D + piece * TR_CHUNK;
        o->loops->learned(
            o->dtype, k->steps, tr_learned_scale(scale[row]), tr_loop_at(o->dtype, o->b.in[0], at),
            tr_loop_to(o->dtype, o->b.out[0], at), tr_chunk_size(k->D, TR_CHUNK, piece));
    }
    return TR_OK;
}

tr_status tr_cpu_quantize_learned(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = open_learned(cpu, g, op, 0, run_forward, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const float *scale = o->b.in[2];
    const bool add = tr_run_adds(run, &o->b, 0);
    double *sums = o->b.workspace;
    float *dscale = o->b.out[1];
    TR_PARALLEL(o->threads, k->rows * k->pieces)
    for (size_t i = 0; i < k->rows * k->pieces; i++) {
        const size_t row = i / k->pieces, piece = i % k->pieces, at = row * k->D + piece * TR_CHUNK;
        sums[i] = o->loops->learned_grad(
            o->dtype, k->steps, tr_learned_scale(scale[row]), tr_loop_at(o->dtype, o->b.in[0], at),
            tr_loop_at(o->dtype, o->b.in[1], at), tr_loop_to(o->dtype, o->b.out[0], at), add,
            tr_chunk_size(k->D, TR_CHUNK, piece));
    }
    for (size_t row = 0; dscale && row < k->rows; row++) {
        double sum = 0;
        for (size_t p = 0; p < k->pieces; p++) sum += sums[row * k->pieces + p];
        sum *= scale[row] < 0 ? -k->gain : k->gain;
        dscale[row] = (tr_run_adds(run, &o->b, 1) ? dscale[row] : 0.0f) + (float)sum;
    }
    return TR_OK;
}

tr_status tr_cpu_quantize_learned_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                       tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st = open_learned(cpu, g, op, 1, run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = k->rows * k->pieces * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}
