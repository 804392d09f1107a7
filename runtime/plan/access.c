/* What callers see of a plan: inputs, target, output, single tensors, and a row an op for
 * reports. */
#include "runtime/plan/internal.h"

/* `where`: in the memory that kernels read. */
static tr_status point(const tr_plan *p, tr_slot *slot, void *where)
{
    tr_status st = TR_OK;
    const tr_session_options *o = &p->session->o;
    if (!slot->movable)
        return o->backend->memory->copy(o->backend_ctx, slot->current, where, slot->nbytes);
    if (slot->current == where) return TR_OK;
    slot->current = NULL;
    for (size_t i = 0; i < slot->nreaders; i++) {
        tr_kernel *k = slot->readers[i].kernel;
        TR_TRY(k->rebind(k, slot->readers[i].operand, where));
    }
    slot->current = where;
out:
    return st;
}

static tr_status set(const tr_plan *p, tr_slot *slot, const void *data)
{
    tr_status st = TR_OK;
    const tr_session_options *o = &p->session->o;
    void *where = (void *)data;
    if (slot->root < 0 || slot->nbytes == 0) return TR_OK;
    if (o->dry) return TR_FAIL(TR_INTERNAL, "a dry session reads nothing");
    if (p->session->stage)
        TR_TRY(o->backend->staging->part(p->session->stage, data, slot->nbytes, &where));
    st = point(p, slot, where);
out:
    return st;
}

tr_status tr_plan_set_input(tr_plan *p, size_t input, const void *data)
{
    return set(p, &p->slots[input], data);
}

tr_status tr_plan_set_target(tr_plan *p, const void *data)
{
    return set(p, &p->slots[TR_SLOT_TARGET], data);
}

tr_status tr_plan_set_weights(tr_plan *p, const float *weights)
{
    return set(p, &p->slots[TR_SLOT_WEIGHTS], weights);
}

tr_status tr_plan_set_given(tr_plan *p, size_t k, void *data)
{
    tr_slot *slot = &p->slots[TR_SLOT_GIVEN + k];
    if (slot->root < 0 || slot->nbytes == 0) return TR_OK;
    return point(p, slot, data);
}

void *tr_plan_tensor(const tr_plan *p, int tensor)
{
    return tr_plan_address(p, tensor);
}

const tr_graph *tr_plan_graph(const tr_plan *p)
{
    return p->graph;
}

int64_t tr_plan_batch(const tr_plan *p)
{
    return p->graph->batch;
}

size_t tr_plan_rows(const tr_plan *p)
{
    return p->graph->nops;
}

/* Which of a kernel's packed copies is of this tensor; -1: none. */
static int copy_of(const tr_kernel *k, const tr_tensor *t)
{
    for (int i = 0; i < k->npacked; i++)
        if (t->role == TR_ROLE_PARAM && t->index == k->packed[i].param) return i;
    return -1;
}

/* What the kernel reads of an operand. */
static size_t bytes_read(const tr_kernel *k, const tr_tensor *t)
{
    const int copy = copy_of(k, t);
    return copy < 0 ? t->nbytes : k->packed[copy].nbytes;
}

const void *tr_plan_read_at(const tr_plan *p, size_t i, int j, size_t *nbytes)
{
    const tr_kernel *k = p->kernels[i];
    const int tensor = p->graph->ops[i].in[j];
    if (!k || tensor < 0) return NULL;
    const int copy = copy_of(k, &p->graph->tensors[tensor]);
    *nbytes = bytes_read(k, &p->graph->tensors[tensor]);
    return copy < 0 ? tr_plan_address(p, tensor) : p->session->packed[p->packed[i][copy]].data;
}

tr_plan_row tr_plan_row_at(const tr_plan *p, size_t i)
{
    const tr_graph *g = p->graph;
    const tr_op *op = &g->ops[i];
    const tr_kernel *k = p->kernels[i];
    tr_plan_row row = {.layer = op->layer, .op = tr_op_name(op), .phase = op->phase};
    row.impl = k ? k->impl : "view";
    row.choice = k && k->choice ? k->choice : "";
    if (!k) return row; /* moves nothing */
    row.flops = tr_op_flops(g, op);
    for (int j = 0; j < op->nin; j++)
        if (op->in[j] >= 0) row.bytes += (double)bytes_read(k, &g->tensors[op->in[j]]);
    for (int j = 0; j < op->nout; j++)
        if (tr_op_writes(g, op, j)) row.bytes += (double)g->tensors[op->out[j]].nbytes;
    return row;
}

size_t tr_plan_lives(const tr_plan *p)
{
    return p->graph->ntensors + p->graph->nops;
}

tr_plan_life tr_plan_life_at(const tr_plan *p, size_t i)
{
    const tr_live *l = &p->live[i];
    return (tr_plan_life){.tensor = i < p->graph->ntensors ? (int)i : -1,
                          .first = l->first,
                          .last = l->last,
                          .nbytes = l->arena ? l->nbytes : 0};
}
