/* A bias for each channel of an image, and its gradient: sums over rows, of pieces whose number
 * depends on the shape alone, added in turn in float64. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t rows, C;
    tr_act act;
    float *ones; /* [C] factors; of the gradient none */
} kernel;

static tr_status run_bias(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t step = tr_chunk_rows(k->C), chunks = tr_chunks(k->rows, step);
    TR_PARALLEL(o->threads, chunks)
    for (size_t i = 0; i < chunks; i++) {
        const size_t at = i * step * k->C;
        o->loops->bn_apply(o->dtype, k->act, tr_loop_at(o->dtype, o->b.in[0], at), k->C, NULL,
                           k->ones, o->b.in[1], tr_loop_to(o->dtype, o->b.out[0], at),
                           tr_chunk_size(k->rows, step, i), k->C);
    }
    return TR_OK;
}

/* In the workspace: a row of sums for each chunk. */
static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const size_t step = tr_chunk_rows(k->C), chunks = tr_chunks(k->rows, step);
    float *part = o->b.workspace, *out = o->b.out[0];
    TR_PARALLEL(o->threads, chunks)
    for (size_t i = 0; i < chunks; i++)
        o->loops->column_sums(o->dtype, tr_loop_at(o->dtype, o->b.in[0], i * step * k->C),
                              tr_chunk_size(k->rows, step, i), k->C, k->C, part + i * k->C, false);
    for (size_t c = 0; c < k->C; c++) {
        double sum = tr_run_adds(run, &o->b, 0) ? (double)out[c] : 0;
        for (size_t i = 0; i < chunks; i++) sum += (double)part[i * k->C + c];
        out[c] = (float)sum;
    }
    return TR_OK;
}

static void close_bias(tr_kernel *base)
{
    tr_free(((kernel *)base)->ones);
    tr_free(base);
}

static tr_status prepare(tr_cpu *cpu, const tr_op *op, const tr_tensor *x,
                         tr_status (*run)(tr_kernel *, const tr_run *), kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(x->layout == TR_LAYOUT_CHANNELS_LAST, TR_UNSUPPORTED,
            "layer %s: an image that is not stored channels-last", op->layer);
    TR_TRY(tr_loop_kernel_open(cpu, x, "own", run, sizeof *k, &k));
    k->k.base.close = close_bias;
    k->C = (size_t)x->dims[1];
    k->rows = x->count / k->C;
    *out = k;
out:
    return st;
}

tr_status tr_cpu_bias(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(prepare(cpu, op, tr_loop_in(g, op, 0), run_bias, &k));
    k->act = op->act;
    k->ones = tr_alloc(TR_MEM_OTHER, k->C, sizeof *k->ones);
    TR_HAVE(k->ones);
    for (size_t c = 0; c < k->C; c++) k->ones[c] = 1;
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_bias(&k->k.base);
    return st;
}

tr_status tr_cpu_bias_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(prepare(cpu, op, tr_loop_in(g, op, 0), run_grad, &k));
    k->k.base.workspace = tr_chunks(k->rows, tr_chunk_rows(k->C)) * k->C * sizeof(float);
    *out = &k->k.base;
out:
    return st;
}
