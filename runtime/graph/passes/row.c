/* One row before all: where of a sequence (N, T, F) one row is read alone, as a class token's is,
 * that row is taken out before the ops that compute rows apart, which then compute it and no other.
 * Before gradients are made, so that these are of one row, too.
 *
 * From the last op to the first: a row's op is held back until the op that makes its operand comes
 * by. Either that one makes the row alone, and its own operands' rows are held back, or the row is
 * taken out behind it. O(operands). */
#include "runtime/graph/maker.h"
#include "runtime/graph/passes/passes.h"

typedef struct {
    tr_builder *b;
    int *reads;  /* by tensor: operands that read it, and the graph's outputs */
    int *takes;  /* of these, those that read the row that is held back */
    int *row;    /* by tensor: what has that row; -1: none is held back */
    int *taker;  /* by tensor: the op that takes the row, or took it behind others */
    int *maker;  /* by tensor: the op that makes it, or -1 */
    int *same;   /* by tensor: operands that take the row that the first one does */
    int *as;     /* by tensor: what stands for it */
    tr_op *list; /* the new ops, the last one first */
    size_t n, cap, found;
} plan;

static tr_status emit(plan *p, const tr_op *op)
{
    const tr_status st = tr_grow(&p->list, &p->cap, p->n + 1, sizeof *p->list);
    if (st == TR_OK) p->list[p->n++] = *op;
    return st;
}

static int64_t row_taken(const tr_op *op)
{
    return op->phase == TR_PHASE_FORWARD && op->def->takes_row ? op->def->takes_row(op) : -1;
}

/* The row that is held back of tensor x. */
static int64_t row_held(const plan *p, int x)
{
    return row_taken(&p->b->g->ops[p->taker[x]]);
}

/* The op that was held back. */
static tr_status emit_taker(plan *p, int x)
{
    tr_op op = p->b->g->ops[p->taker[x]];
    op.in[0] = x;
    op.out[0] = p->row[x];
    p->row[x] = -1;
    return emit(p, &op);
}

static bool is_output(const tr_graph *g, int id)
{
    bool is = id == g->logits;
    for (size_t k = 0; k < g->noutputs; k++) is |= g->outputs[k] == id;
    return is;
}

static bool is_param(const tr_tensor *t)
{
    return t->role == TR_ROLE_PARAM || t->role == TR_ROLE_ROUNDED;
}

/* Whether the op computes rows of y apart, and row `at` of its operands can be had. */
static bool narrows(const plan *p, const tr_op *op, int64_t at)
{
    const tr_graph *g = p->b->g;
    const tr_tensor *y = &g->tensors[op->out[0]];
    bool can = op->phase == TR_PHASE_FORWARD && op->def->anywhere && y->ndim == 3 && y->dims[1] > 1;
    for (int k = 0; can && k < op->nin; k++) {
        if (op->in[k] < 0 || is_param(&g->tensors[op->in[k]])) continue;
        const tr_tensor *x = &g->tensors[op->in[k]];
        can = x->ndim == 3 && x->dims[0] == y->dims[0] && x->dims[1] == y->dims[1];
        if (can && p->row[x->id] >= 0) can = row_held(p, x->id) == at;
    }
    for (int k = 1; can && k < op->nout; k++) /* a few values for each row */
        can = op->out[k] < 0 || (g->tensors[op->out[k]].ndim == 2 &&
                                 g->tensors[op->out[k]].dims[0] == y->dims[0] * y->dims[1]);
    return can;
}

/* The tensor that has the row of `x` which op `taker` takes. */
static int row_of(plan *p, int x, int taker)
{
    p->takes[x]++;
    if (p->row[x] >= 0) return p->row[x];
    const tr_tensor t = p->b->g->tensors[x];
    const int64_t dims[] = {t.dims[0], t.dims[2]};
    p->row[x] = tr_build_new(p->b, t.name, "row", t.dtype, 2, dims);
    p->taker[x] = taker;
    return p->row[x];
}

/* The op, of one row. */
static tr_status narrow(plan *p, const tr_op *op)
{
    tr_status st = TR_OK;
    tr_op one = *op;
    TR_TRY(tr_build_reserve(p->b, TR_MAX_IN + TR_MAX_OUT, 0));
    const tr_graph *g = p->b->g;
    const int y = op->out[0];
    const int64_t batch = g->tensors[y].dims[0];
    for (int k = 0; k < op->nin; k++)
        if (op->in[k] >= 0 && !is_param(&g->tensors[op->in[k]]))
            one.in[k] = row_of(p, op->in[k], p->taker[y]);
    one.out[0] = p->row[y];
    p->row[y] = -1;
    for (int k = 1; k < op->nout; k++) {
        if (op->out[k] < 0) continue;
        const tr_tensor t = g->tensors[op->out[k]];
        one.out[k] =
            tr_build_new(p->b, t.name, "row", t.dtype, 2, (const int64_t[]){batch, t.dims[1]});
    }
    p->found++;
    TR_TRY(emit(p, &one));
out:
    return st;
}

/* Whether the op that makes x may make the row alone, as far as is known before all that reads x
 * came by. */
static bool may_narrow(const plan *p, int x, int64_t at)
{
    return p->maker[x] >= 0 && p->same[x] == p->reads[x] &&
           narrows(p, &p->b->g->ops[p->maker[x]], at);
}

/* Holds the op back where it can go before others; false: it stays where it is. */
static bool hold_back(plan *p, int i)
{
    const tr_op *op = &p->b->g->ops[i];
    const int x = op->in[0], y = op->out[0];
    const int64_t at = row_taken(op);
    if (at < 0) return false;
    if (p->row[x] < 0) {
        if (!may_narrow(p, x, at)) return false;
        p->row[x] = y;
        p->taker[x] = i;
    } else if (row_held(p, x) == at && !is_output(p->b->g, y)) {
        p->as[y] = p->row[x];
    } else {
        return false;
    }
    p->takes[x]++;
    return true;
}

static tr_status visit(plan *p, int i)
{
    const tr_op *op = &p->b->g->ops[i];
    tr_status st = TR_OK;
    const int y = op->out[0];
    if (hold_back(p, i)) return TR_OK;
    if (y >= 0 && p->row[y] >= 0 && p->reads[y] == p->takes[y] && narrows(p, op, row_held(p, y)))
        return narrow(p, op);
    for (int k = 0; k < op->nout; k++)
        if (op->out[k] >= 0 && p->row[op->out[k]] >= 0) TR_TRY(emit_taker(p, op->out[k]));
    TR_TRY(emit(p, op));
out:
    return st;
}

static tr_status rewrite(plan *p)
{
    tr_graph *g = p->b->g;
    tr_status st = TR_OK;
    const size_t given = g->ntensors;
    for (size_t i = g->nops; i-- > 0;) TR_TRY(visit(p, (int)i));
    for (size_t t = 0; t < given; t++) /* of what no op makes */
        if (p->row[t] >= 0) TR_TRY(emit_taker(p, (int)t));
    TR_TRY(tr_build_reserve(p->b, 0, p->n));
    g->nops = 0;
    for (size_t i = p->n; i-- > 0;) {
        tr_op *op = &g->ops[g->nops++];
        *op = p->list[i];
        for (int k = 0; k < op->nin; k++)
            if (op->in[k] >= 0 && (size_t)op->in[k] < given) op->in[k] = p->as[op->in[k]];
    }
    st = p->b->st;
out:
    return st;
}

static void count(plan *p, int i)
{
    const tr_op *op = &p->b->g->ops[i];
    for (int k = 0; k < op->nin; k++)
        if (op->in[k] >= 0) p->reads[op->in[k]]++;
    for (int k = 0; k < op->nout; k++)
        if (op->out[k] >= 0) p->maker[op->out[k]] = i;
    if (row_taken(op) < 0) return;
    const int x = op->in[0];
    if (p->same[x] == 0) p->taker[x] = i;
    p->same[x] += row_held(p, x) == row_taken(op);
}

tr_status tr_graph_pass_row(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    tr_status st = TR_OK;
    plan p = {.b = b};
    bool any = false;
    for (size_t i = 0; i < g->nops; i++) any |= row_taken(&g->ops[i]) >= 0;
    if (!any || g->decode.rows > 0) return TR_OK;
    p.reads = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.reads);
    p.takes = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.takes);
    p.row = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.row);
    p.taker = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.taker);
    p.maker = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.maker);
    p.same = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.same);
    p.as = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *p.as);
    TR_HAVE(p.reads && p.takes && p.row && p.taker && p.maker && p.same && p.as);
    for (size_t t = 0; t < g->ntensors; t++) p.row[t] = p.maker[t] = -1, p.as[t] = (int)t;
    for (size_t i = 0; i < g->nops; i++) count(&p, (int)i);
    for (size_t k = 0; k < g->noutputs; k++) p.reads[g->outputs[k]]++;
    if (g->logits >= 0) p.reads[g->logits]++;
    TR_TRY(rewrite(&p));
    *found += p.found;
out:
    tr_free(p.reads);
    tr_free(p.takes);
    tr_free(p.row);
    tr_free(p.taker);
    tr_free(p.maker);
    tr_free(p.same);
    tr_free(p.as);
    tr_free(p.list);
    return st;
}
