/* A trained weight rounded to int8: an output's, or all of it, is a row. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t rows, D, chunk_rows;
} kernel;

static tr_status run(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    const float *x = o->b.in[0];
    float *y = o->b.out[0];
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t at = i * k->chunk_rows * k->D;
        o->loops->quantize_rows(x + at, y + at, tr_chunk_size(k->rows, k->chunk_rows, i), k->D);
    }
    return TR_OK;
}

tr_status tr_cpu_quantize_weight(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *w = tr_loop_in(g, op, 0);
    const tr_quantize_weight_attrs *a = op->attrs;
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, w, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->rows = a->per_tensor ? 1 : (size_t)w->dims[0];
    k->D = w->count / k->rows;
    k->chunk_rows = tr_chunk_rows(k->D);
    *out = &k->k.base;
    return TR_OK;
}
