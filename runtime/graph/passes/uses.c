/* Who makes and who reads each tensor, and other things that passes ask for. */
#include "runtime/graph/passes/passes.h"

tr_status tr_uses_open(const tr_graph *g, tr_uses *u)
{
    *u = (tr_uses){
        .producer = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(int)),
        .readers = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(int)),
        .first = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(int)),
    };
    if (!u->producer || !u->readers || !u->first) {
        tr_uses_close(u);
        return tr_last_status();
    }
    for (size_t t = 0; t < g->ntensors; t++) u->producer[t] = u->first[t] = -1;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nin; k++) {
            if (op->in[k] < 0) continue;
            if (u->readers[op->in[k]]++ == 0) u->first[op->in[k]] = (int)i;
        }
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0) u->producer[op->out[k]] = (int)i;
    }
    for (size_t k = 0; k < g->noutputs; k++) u->readers[g->outputs[k]]++;
    return TR_OK;
}

void tr_uses_close(tr_uses *u)
{
    tr_free(u->producer);
    tr_free(u->readers);
    tr_free(u->first);
    *u = (tr_uses){0};
}

void tr_ops_compact(tr_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->nops; i++)
        if (g->ops[i].def) g->ops[n++] = g->ops[i];
    g->nops = n;
}

bool tr_is_sum_of_two(const tr_op *op, tr_phase phase)
{
    return op->def && op->def->sums && op->phase == phase && op->nin == 2;
}
