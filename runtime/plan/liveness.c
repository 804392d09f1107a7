/* From which op to which a tensor's bytes must stay: one pass over the op list. A group of aliases
 * (views and tensors computed in place) lives as one, under its root, from the first definition to
 * the last use of any member. Inputs and the target are there before the run; outputs stay
 * readable after it, unless the loss has written its gradient over them. Parameters, states and
 * gradients have memory of their own; tensors of an empty share have none. O(ops + tensors). */
#include "runtime/plan/internal.h"

#include <string.h>

static bool in_arena(tr_role role)
{
    return role == TR_ROLE_INPUT || role == TR_ROLE_TARGET || role == TR_ROLE_GIVEN ||
           role == TR_ROLE_ACTIVATION || role == TR_ROLE_SAVED || role == TR_ROLE_ROUNDED;
}

static bool filled_before_run(const tr_graph *g, int root)
{
    const tr_role role = g->tensors[root].role;
    return role == TR_ROLE_INPUT || role == TR_ROLE_TARGET || role == TR_ROLE_GIVEN;
}

static tr_status mark_inputs(const tr_graph *g, int i, tr_live *live)
{
    const tr_op *op = &g->ops[i];
    for (int j = 0; j < op->nin; j++) {
        if (op->in[j] < 0) continue;
        tr_live *l = &live[tr_root(g, op->in[j])];
        if (!l->arena) continue;
        if (l->last < -1)
            return TR_FAIL(TR_INTERNAL, "layer %s: op %d reads \"%s\" before any op writes it",
                           op->layer, i, g->tensors[op->in[j]].name);
        l->last = i;
    }
    return TR_OK;
}

/* The gradient of the loss lies where the model's output was. */
static bool loss_took(const tr_graph *g)
{
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        if (op->phase == TR_PHASE_LOSS && op->out[0] >= 0 &&
            tr_root(g, op->out[0]) == tr_root(g, g->logits))
            return true;
    }
    return false;
}

tr_status tr_liveness(const tr_graph *g, tr_live *live)
{
    memset(live, 0, g->ntensors * sizeof *live);
    for (size_t t = 0; t < g->ntensors; t++) {
        const int root = tr_root(g, (int)t);
        live[t].first = live[t].last = -2;
        if (!in_arena(g->tensors[root].role)) continue;
        const size_t nbytes = tr_align_up(g->tensors[t].nbytes, TR_ARENA_ALIGN);
        if (nbytes > live[root].nbytes) live[root].nbytes = nbytes;
        live[root].arena = live[root].nbytes > 0;
    }
    for (size_t t = 0; t < g->ntensors; t++)
        if (live[t].arena && filled_before_run(g, (int)t)) live[t].first = live[t].last = -1;

    for (size_t i = 0; i < g->nops; i++) {
        const tr_status st = mark_inputs(g, (int)i, live);
        if (st != TR_OK) return st;
        for (int j = 0; j < g->ops[i].nout; j++) {
            if (g->ops[i].out[j] < 0) continue;
            tr_live *l = &live[tr_root(g, g->ops[i].out[j])];
            if (!l->arena) continue;
            if (l->last < -1) l->first = (int)i;
            l->last = (int)i;
        }
    }
    if (g->logits >= 0 && !loss_took(g)) live[tr_root(g, g->logits)].last = (int)g->nops;
    for (size_t k = 0; k < g->noutputs; k++) live[tr_root(g, g->outputs[k])].last = (int)g->nops;
    for (size_t t = 0; t < g->ntensors; t++)
        if (live[t].first < -1) live[t].arena = false; /* never written */
    return TR_OK;
}
