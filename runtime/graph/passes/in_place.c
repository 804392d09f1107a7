/* Ops write over an operand where they may (tr_op_def.share) and nobody reads it afterwards; views
 * cost nothing. Tensors that share bytes form a group under one root; a group's bytes are free to
 * be overwritten at the last op that reads any of its members. Never overwritten: what was given
 * from outside, and the model's output. */
#include "runtime/graph/passes/passes.h"

#include <limits.h>

typedef struct {
    tr_graph *g;
    int *last;    /* by root: last op that reads any member */
    bool *shared; /* by root: it has members beside itself */
} sharing;

static void join(sharing *s, int id, int root)
{
    tr_graph *g = s->g;
    if (s->shared[id])
        for (size_t t = 0; t < g->ntensors; t++)
            if (g->tensors[t].alias == id) g->tensors[t].alias = root;
    g->tensors[id].alias = root;
    s->shared[root] = true;
    if (s->last[id] > s->last[root]) s->last[root] = s->last[id];
}

static bool may_overwrite(const sharing *s, const tr_op *op, int place, int at)
{
    const tr_graph *g = s->g;
    int id = op->in[place];
    if (id < 0) return false;
    int root = tr_root(g, id);
    const tr_tensor *from = &g->tensors[id], *to = &g->tensors[op->out[0]];
    if (g->tensors[root].role != TR_ROLE_ACTIVATION || s->last[root] > at) return false;
    if (from->nbytes != to->nbytes || from->dtype != to->dtype) return false;
    for (int k = 0; k < op->nin; k++)
        if (k != place && op->in[k] >= 0 && tr_root(g, op->in[k]) == root) return false;
    return true;
}

static void share(sharing *s, tr_op *op, int at)
{
    if (op->def->share == TR_SHARE_NO || s->g->tensors[op->out[0]].alias >= 0) return;
    if (op->def->share == TR_SHARE_VIEW) {
        if (op->def->view(s->g, op)) join(s, op->out[0], tr_root(s->g, op->in[0]));
        return;
    }
    int places = op->def->share == TR_SHARE_ANY ? op->nin : 1;
    for (int k = 0; k < places; k++) {
        if (!may_overwrite(s, op, k, at)) continue;
        int first = op->in[0];
        op->in[0] = op->in[k];
        op->in[k] = first;
        join(s, op->out[0], tr_root(s->g, op->in[0]));
        return;
    }
}

tr_status tr_pass_in_place(tr_builder *b)
{
    tr_graph *g = b->g;
    tr_status st = TR_OK;
    sharing s = {.g = g,
                 .last = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(*s.last)),
                 .shared = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(*s.shared))};
    TR_NEED(s.last && s.shared, TR_MEMORY, "out of memory for %zu tensors", g->ntensors);
    for (size_t t = 0; t < g->ntensors; t++)
        if (g->tensors[t].alias >= 0) s.shared[g->tensors[t].alias] = true;
    for (size_t i = 0; i < g->nops; i++)
        for (int k = 0; k < g->ops[i].nin; k++)
            if (g->ops[i].in[k] >= 0) s.last[tr_root(g, g->ops[i].in[k])] = (int)i;
    s.last[tr_root(g, g->logits)] = INT_MAX;
    for (size_t i = 0; i < g->nops; i++) share(&s, &g->ops[i], (int)i);
out:
    tr_free(s.last);
    tr_free(s.shared);
    return st;
}
