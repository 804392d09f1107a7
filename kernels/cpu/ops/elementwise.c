/* The plain elementwise ops, which kernels/elementwise.h declares. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t count;
    tr_elementwise which;
    tr_numbers n;
} kernel;

static tr_status run_elementwise(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->count, TR_CHUNK))
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++)
        o->loops->elementwise(
            o->dtype, k->which, k->n, tr_loop_at(o->dtype, o->b.in[0], i * TR_CHUNK),
            tr_loop_at(o->dtype, o->b.in[1], i * TR_CHUNK),
            tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK), tr_chunk_size(k->count, TR_CHUNK, i));
    return TR_OK;
}

tr_status tr_cpu_elementwise(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *t = tr_loop_out(g, op, 0);
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run_elementwise, sizeof *k, &k);
    if (st == TR_OK) st = tr_elementwise_of(op, &k->which, &k->n);
    if (st != TR_OK) {
        tr_free(k);
        return st;
    }
    k->count = t->count;
    *out = &k->k.base;
    return TR_OK;
}
