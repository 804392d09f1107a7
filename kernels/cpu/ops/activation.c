/* Activations and their gradients, element by element. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t count;
    tr_act act;
} kernel;

static tr_status open_activation(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                 tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    kernel *k = NULL;
    const tr_tensor *t = tr_loop_in(g, op, 0);
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = t->count;
    k->act = tr_op_activation(op);
    *out = &k->k.base;
    return TR_OK;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->count, TR_CHUNK))
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->act(o->dtype, k->act, tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK),
                      tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK),
                      tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->count, TR_CHUNK))
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->act_grad(o->dtype, k->act, tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK),
                           tr_loop_at(o->dtype, o->b.in[1], i * TR_CHUNK),
                           tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK),
                           tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

tr_status tr_cpu_activation(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_activation(cpu, g, op, run_forward, out);
}

tr_status tr_cpu_activation_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_activation(cpu, g, op, run_grad, out);
}
