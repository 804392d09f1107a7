/* Softmax over the innermost stored dimension and its gradient. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t rows, D, chunk_rows;
} kernel;

static tr_status open_softmax(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                              tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    kernel *k = NULL;
    const tr_tensor *t = tr_loop_in(g, op, 0);
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->D = (size_t)t->dims[tr_innermost(t)];
    k->rows = t->count / k->D;
    k->chunk_rows = tr_chunk_rows(k->D);
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t at = i * k->chunk_rows * k->D;
        o->loops->softmax(o->dtype, tr_loop_at(o->dtype, o->b.in[0], at),
                          tr_loop_to(o->dtype, o->b.out[0], at),
                          tr_chunk_size(k->rows, k->chunk_rows, i), k->D);
    }
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->rows, k->chunk_rows))
    for (size_t i = 0; i < tr_chunks(k->rows, k->chunk_rows); i++) {
        const size_t at = i * k->chunk_rows * k->D;
        o->loops->softmax_grad(
            o->dtype, tr_loop_at(o->dtype, o->b.in[0], at), tr_loop_at(o->dtype, o->b.in[1], at),
            tr_loop_to(o->dtype, o->b.out[0], at), tr_chunk_size(k->rows, k->chunk_rows, i), k->D);
    }
    return TR_OK;
}

tr_status tr_cpu_softmax(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_softmax(cpu, g, op, run_forward, out);
}

tr_status tr_cpu_softmax_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_softmax(cpu, g, op, run_grad, out);
}
