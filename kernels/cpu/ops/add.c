/* Sum of any number of tensors of one shape, with the activation behind it fused. */
#include "kernels/cpu/ops/loop_kernel.h"

typedef struct {
    tr_loop_kernel k;
    size_t count;
    int nin;
    tr_act act;
} kernel;

static tr_status run_add(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const tr_loop_kernel *o = &k->k;
    TR_PARALLEL(o->threads, tr_chunks(k->count, TR_CHUNK))
    for (size_t i = 0; i < tr_chunks(k->count, TR_CHUNK); i++) {
        const void *in[TR_MAX_IN];
        for (int j = 0; j < k->nin; j++) in[j] = tr_loop_at(o->dtype, o->b.in[j], i * TR_CHUNK);
        o->loops->add(o->dtype, k->act, k->nin, in, tr_loop_to(o->dtype, o->b.out[0], i * TR_CHUNK),
                      tr_chunk_size(k->count, TR_CHUNK, i));
    }
    return TR_OK;
}

tr_status tr_cpu_add(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *t = tr_loop_out(g, op, 0);
    kernel *k = NULL;
    for (int i = 0; i < op->nin; i++)
        if (!tr_loop_in(g, op, i))
            return TR_FAIL(TR_INTERNAL, "layer %s: add without operand %d", op->layer, i);
    tr_status st = tr_loop_kernel_open(cpu, t, "own", run_add, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = t->count;
    k->nin = op->nin;
    k->act = op->act;
    *out = &k->k.base;
    return TR_OK;
}
