/* Concatenation without copying: an operand gets a place in the result's bytes and is made there.
 *
 *     rows behind each other        one row          a wider row: `pitch` elements apart
 *     k = concat(a, b)              | a | b |        | k ..... | c |
 *                                                    | k ..... | c |
 *
 * A result of one row (a batch of one, along its first dimension) takes any operand whose place is
 * aligned as kernels expect it. Else an operand's rows stand apart, and every op that makes or
 * reads it must say that it can do that (tr_op_def.pitched); a chain of concats thus grows in the
 * bytes of its last one, each copying only what it adds. What is copied is left to the op
 * (tr_concat_in_place).
 *
 * Never moved: what was given from outside, the graph's outputs, what shares bytes already with the
 * result, and what is read after an op has written over the result's bytes. */
#include "runtime/graph/passes/passes.h"
#include "runtime/graph/ops.h"

#include <limits.h>

enum { ALIGNED = 64 }; /* bytes, as tr_kernel.rebind */

typedef struct {
    tr_graph *g;
    bool *fixed; /* by root: some member is an output of the graph */
    int *last;   /* by root: last op that reads any member */
    int *over;   /* by root: first op that writes over what a member was; INT_MAX: none */
    int *until;  /* by root: the last such op; -1: none */
    int *next;   /* by tensor: the next one of its group, -1 */
    int *end;    /* by root: the last one of its group */
    /* by tensor: some op makes or reads it that needs its rows one behind the other */
    bool *dense;
} placing;

static tr_status open_placing(placing *p)
{
    tr_graph *g = p->g;
    tr_status st = TR_OK;
    p->fixed = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->fixed);
    p->last = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->last);
    p->over = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->over);
    p->next = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->next);
    p->end = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->end);
    p->dense = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->dense);
    p->until = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p->until);
    TR_HAVE(p->fixed && p->last && p->over && p->until && p->next && p->end && p->dense);
    for (size_t t = 0; t < g->ntensors; t++) {
        p->over[t] = INT_MAX;
        p->until[t] = -1;
        p->next[t] = -1;
        p->end[t] = (int)t;
    }
    for (size_t t = 0; t < g->ntensors; t++) {
        const int root = g->tensors[t].alias;
        if (root < 0) continue;
        p->next[p->end[root]] = (int)t;
        p->end[root] = (int)t;
    }
    if (g->logits >= 0) p->fixed[tr_root(g, g->logits)] = true;
    for (size_t k = 0; k < g->noutputs; k++) p->fixed[tr_root(g, g->outputs[k])] = true;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        const int y = op->out[0];
        for (int k = 0; k < op->nin; k++) {
            if (op->in[k] < 0) continue;
            p->last[tr_root(g, op->in[k])] = (int)i;
            if (!(op->def->pitched.in >> k & 1)) p->dense[op->in[k]] = true;
        }
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0 && !op->def->pitched.out) p->dense[op->out[k]] = true;
        if (y < 0 || tr_root(g, y) == y || tr_op_is_view(g, op)) continue;
        if (p->over[tr_root(g, y)] == INT_MAX) p->over[tr_root(g, y)] = (int)i;
        p->until[tr_root(g, y)] = (int)i;
    }
out:
    return st;
}

static void close_placing(placing *p)
{
    tr_free(p->fixed);
    tr_free(p->last);
    tr_free(p->over);
    tr_free(p->until);
    tr_free(p->next);
    tr_free(p->end);
    tr_free(p->dense);
}

/* All of the group can have its rows apart: members are as wide as their root, or are apart
 * already. */
static bool can_stand_apart(const placing *p, int root)
{
    const tr_tensor *r = &p->g->tensors[root];
    for (int t = root; t >= 0; t = p->next[t]) {
        const tr_tensor *m = &p->g->tensors[t];
        if (m->pitch > 0) continue;
        if (p->dense[t] || m->at > 0 || m->count != r->count ||
            m->dims[tr_innermost(m)] != r->dims[tr_innermost(r)])
            return false;
    }
    return true;
}

/* `part` and its group move to byte `at` of `whole`'s; pitch 0: rows stay one behind the other. */
static void move(placing *p, int part, int whole, size_t at, int64_t pitch)
{
    tr_graph *g = p->g;
    for (int t = part; t >= 0; t = p->next[t]) {
        g->tensors[t].alias = whole;
        g->tensors[t].at += at;
        if (pitch > 0) g->tensors[t].pitch = pitch;
    }
    p->next[p->end[whole]] = part;
    p->end[whole] = p->end[part];
    if (p->last[part] > p->last[whole]) p->last[whole] = p->last[part];
}

/* Operand k of the concat at place `at` among the ops: not where anything is written over it
 * later. */
static bool place(placing *p, const tr_op *op, int at, int k)
{
    const tr_graph *g = p->g;
    const int y = op->out[0], part = tr_root(g, op->in[k]);
    const tr_tensor *own = &g->tensors[op->in[k]];
    const tr_concat_place to = tr_concat_place_of(g, op, k);
    if (g->tensors[part].role != TR_ROLE_ACTIVATION || p->fixed[part] || part == y || own->at > 0 ||
        own->pitch > 0 || own->count != g->tensors[part].count || p->last[part] >= p->over[y] ||
        p->until[part] > at)
        return false;
    if (to.rows == 1) {
        if (to.at % ALIGNED != 0) return false;
        move(p, part, y, to.at, 0);
        return true;
    }
    if (!to.innermost || !can_stand_apart(p, part)) return false;
    move(p, part, y, to.at, to.pitch);
    return true;
}

tr_status tr_graph_pass_concat_in_place(tr_builder *b, size_t *found)
{
    placing p = {.g = b->g};
    tr_status st = TR_OK;
    if (!b->o->parts) return TR_OK;
    TR_TRY(open_placing(&p));
    for (size_t i = 0; i < b->g->nops; i++) {
        const tr_op *op = &b->g->ops[i];
        if (op->def->share != TR_SHARE_PARTS || b->g->tensors[op->out[0]].alias >= 0) continue;
        for (int k = 0; k < op->nin; k++) *found += place(&p, op, (int)i, k);
    }
out:
    close_placing(&p);
    return st;
}
