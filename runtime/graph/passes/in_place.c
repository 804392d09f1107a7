/* Ops write over an operand where they may (tr_op_def.share) and nobody reads it afterwards; views
 * cost nothing. Each is a pass of its own: all views first, then what is written over. Tensors that
 * share bytes form a group under one root; a group's bytes are free to be overwritten at the last
 * op that reads any of its members. Never overwritten: what was given from outside, and the graph's
 * outputs. */
#include "runtime/graph/passes/passes.h"

#include <limits.h>

typedef struct {
    tr_graph *g;
    int *last; /* by root: last op that reads any member */
    int *next; /* by tensor: the next one of its group, itself at the end */
    int *end;  /* by root: the last one of its group */
} sharing;

/* `id`, the root of a group or alone, and all that shares its bytes go over to `root`. */
static void join(sharing *s, int id, int root)
{
    tr_graph *g = s->g;
    for (int t = id;; t = s->next[t]) {
        g->tensors[t].alias = root;
        if (s->next[t] == t) break;
    }
    s->next[s->end[root]] = id;
    s->end[root] = s->end[id];
    if (s->last[id] > s->last[root]) s->last[root] = s->last[id];
}

static void open_groups(sharing *s)
{
    tr_graph *g = s->g;
    for (size_t t = 0; t < g->ntensors; t++) s->next[t] = s->end[t] = (int)t;
    for (size_t t = 0; t < g->ntensors; t++) {
        const int root = g->tensors[t].alias;
        if (root < 0) continue;
        s->next[s->end[root]] = (int)t;
        s->end[root] = (int)t;
    }
}

static bool may_overwrite(const sharing *s, const tr_op *op, int out, int place, int at)
{
    const tr_graph *g = s->g;
    int id = op->in[place];
    if (id < 0 || op->out[out] < 0 || g->tensors[op->out[out]].alias >= 0) return false;
    int root = tr_root(g, id);
    const tr_tensor *from = &g->tensors[id], *to = &g->tensors[op->out[out]];
    if (g->tensors[root].role != TR_ROLE_ACTIVATION || s->last[root] > at) return false;
    if (from->nbytes != to->nbytes || from->dtype != to->dtype || to->role == TR_ROLE_GRAD)
        return false;
    for (int k = 0; k < op->nin; k++)
        if (k != place && op->in[k] >= 0 && tr_root(g, op->in[k]) == root) return false;
    return true;
}

static bool view(sharing *s, const tr_op *op, int at)
{
    (void)at;
    if (op->def->share != TR_SHARE_VIEW || op->out[0] < 0 || s->g->tensors[op->out[0]].alias >= 0 ||
        !op->def->view(s->g, op))
        return false;
    join(s, op->out[0], tr_root(s->g, op->in[0]));
    return true;
}

static bool over_operand(sharing *s, const tr_op *op, int at)
{
    const tr_op_def *def = op->def;
    const bool first = def->share == TR_SHARE_FIRST;
    const int end = first ? def->over.in + 1 : def->share == TR_SHARE_ANY ? op->nin : 0;
    for (int k = first ? def->over.in : 0; k < end; k++) {
        if (!may_overwrite(s, op, def->over.out, k, at)) continue;
        join(s, op->out[def->over.out], tr_root(s->g, op->in[k]));
        return true;
    }
    return false;
}

static bool over_residual(sharing *s, const tr_op *op, int at)
{
    const int place = op->def->share == TR_SHARE_NO ? op->def->residual : 0;
    if (place == 0 || !may_overwrite(s, op, 0, place, at)) return false;
    join(s, op->out[0], tr_root(s->g, op->in[place]));
    return true;
}

static tr_status run(tr_graph *g, bool (*share)(sharing *s, const tr_op *op, int at), size_t *found)
{
    tr_status st = TR_OK;
    sharing s = {.g = g,
                 .last = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s.last),
                 .next = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s.next),
                 .end = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s.end)};
    TR_HAVE(s.last && s.next && s.end);
    open_groups(&s);
    for (size_t i = 0; i < g->nops; i++)
        for (int k = 0; k < g->ops[i].nin; k++)
            if (g->ops[i].in[k] >= 0) s.last[tr_root(g, g->ops[i].in[k])] = (int)i;
    if (g->logits >= 0 && g->mode != TR_MODE_TRAIN) s.last[tr_root(g, g->logits)] = INT_MAX;
    for (size_t k = 0; k < g->noutputs; k++) s.last[tr_root(g, g->outputs[k])] = INT_MAX;
    for (size_t i = 0; i < g->nops; i++) *found += share(&s, &g->ops[i], (int)i);
out:
    tr_free(s.last);
    tr_free(s.next);
    tr_free(s.end);
    return st;
}

tr_status tr_graph_pass_views(tr_builder *b, size_t *found)
{
    return run(b->g, view, found);
}

tr_status tr_graph_pass_in_place(tr_builder *b, size_t *found)
{
    return run(b->g, over_operand, found);
}

tr_status tr_graph_pass_residual_in_place(tr_builder *b, size_t *found)
{
    return b->o->residual_in_place ? run(b->g, over_residual, found) : TR_OK;
}
