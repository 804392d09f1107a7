/* Relu with learned slopes: rows of channels, in chunks; each leaves its sums of the weights'
 * gradient. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t rows, C, weights, chunk_rows, chunks;
} kernel;

static tr_status open_prelu(tr_cpu *cpu, const tr_op *op, const tr_tensor *x,
                            const tr_tensor *weight, tr_status (*run)(tr_kernel *, const tr_run *),
                            kernel **out)
{
    kernel *k = NULL;
    const size_t C = (size_t)x->dims[tr_innermost(x)];
    if (weight->count != 1 && weight->count != C)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: %zu weights for %zu channels", op->layer,
                       weight->count, C);
    const tr_status st = tr_loop_kernel_open(cpu, x, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->C = C;
    k->weights = weight->count;
    k->rows = C ? x->count / C : 0;
    k->chunk_rows = tr_chunk_rows(C);
    k->chunks = tr_chunks(k->rows, k->chunk_rows);
    *out = k;
    return TR_OK;
}

static tr_status run_prelu(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) {
        const size_t at = i * k->chunk_rows * k->C;
        o->loops->prelu(o->dtype, tr_loop_at(o->dtype, o->b.in[0], at), o->b.in[1], k->weights > 1,
                        tr_loop_to(o->dtype, o->b.out[0], at),
                        tr_chunk_size(k->rows, k->chunk_rows, i), k->C);
    }
    return TR_OK;
}

tr_status tr_cpu_prelu(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st =
        open_prelu(cpu, op, tr_loop_in(g, op, 0), tr_loop_in(g, op, 1), run_prelu, &k);
    if (st == TR_OK) *out = &k->k.base;
    return st;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    double *parts = o->b.workspace;
    float *dw = o->b.out[1];
    TR_PARALLEL(o->threads, k->chunks)
    for (size_t i = 0; i < k->chunks; i++) {
        const size_t at = i * k->chunk_rows * k->C;
        o->loops->prelu_grad(
            o->dtype, tr_loop_at(o->dtype, o->b.in[0], at), tr_loop_at(o->dtype, o->b.in[1], at),
            o->b.in[2], k->weights > 1, tr_loop_to(o->dtype, o->b.out[0], at),
            tr_chunk_size(k->rows, k->chunk_rows, i), k->C, parts + i * k->weights);
    }
    for (size_t c = 0; c < k->weights; c++) {
        double sum = 0.0;
        for (size_t i = 0; i < k->chunks; i++) sum += parts[i * k->weights + c];
        dw[c] = (tr_run_adds(run, &o->b, 1) ? dw[c] : 0.0f) + (float)sum;
    }
    return TR_OK;
}

tr_status tr_cpu_prelu_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    kernel *k = NULL;
    const tr_status st =
        open_prelu(cpu, op, tr_loop_in(g, op, 1), tr_loop_in(g, op, 2), run_grad, &k);
    if (st != TR_OK) return st;
    k->k.base.workspace = k->chunks * k->weights * sizeof(double);
    *out = &k->k.base;
    return TR_OK;
}
