/* Products in 8 bits. A fake_quantize layer says that a value has 8 bits; one whose reader is a
 * product with a weight stored as int8 becomes a tensor of 8 bits:
 *
 *     fake_quantize -> conv2d+relu -> fake_quantize -> linear
 *     quantize      -> conv2d.int8 ------------------> linear.int8
 *
 * A product whose only reader is such a layer writes its steps itself; what else is made is
 * quantized, and what else reads them gets them dequantized. What only moves elements (maxpool2d, flatten) moves steps
 * as well: rounding keeps their order, so a fake_quantize behind it goes before it first. Zero points are 0, or nothing is
 * replaced; so are groups of one. */
#include "runtime/graph/passes/passes.h"

#include <string.h>

typedef struct {
    tr_builder *b;
    tr_uses u;
    size_t nops;
    tr_op *ops; /* as they were; owned */
    int *steps; /* [tensors] the tensor of 8 bits that stands for it; -1 */
    int *left;  /* [tensors] readers that want it as it is, the graph's outputs too */
} lowering;

static bool rounds(const tr_op *op)
{
    return op->def->quantize && ((const tr_fake_quantize_attrs *)op->attrs)->zero_point == 0;
}

/* The layer that rounds `id`, without a zero point, or what `id` was moved from; NULL: there is none. */
static const tr_op *rounder_of(const lowering *w, int id)
{
    int p = id >= 0 ? w->u.producer[id] : -1;
    while (p >= 0 && w->ops[p].def->moves) p = w->u.producer[w->ops[p].in[0]];
    return p >= 0 && rounds(&w->ops[p]) ? &w->ops[p] : NULL;
}

static const tr_fake_quantize_attrs *rounded(const lowering *w, int id)
{
    const tr_op *op = rounder_of(w, id);
    return op ? op->attrs : NULL;
}

static int residual_of(const tr_op *op)
{
    const int place = op->def->residual;
    return place > 0 && place < op->nin ? op->in[place] : -1;
}

static bool replaced(const lowering *w, const tr_op *op)
{
    const tr_graph *g = w->b->g;
    if (!op->def->int8 || (op->act != TR_ACT_NONE && op->act != TR_ACT_RELU)) return false;
    const tr_tensor *x = &g->tensors[op->in[0]], *weight = &g->tensors[op->in[1]];
    if (weight->role != TR_ROLE_PARAM || g->model->params[weight->index].stored != TR_I8 ||
        x->dims[tr_innermost(x)] != weight->dims[1] ||
        weight->count / (size_t)weight->dims[0] > TR_INT8_SUMMANDS)
        return false;
    return rounded(w, op->in[0]) && (residual_of(op) < 0 || rounded(w, residual_of(op)));
}

/* The one reader of what the op makes, where that rounds it for a product. */
static const tr_op *rounder(const lowering *w, const tr_op *op)
{
    const int y = op->out[0];
    if (w->u.readers[y] != 1 || w->u.first[y] < 0) return NULL;
    const tr_op *next = &w->ops[w->u.first[y]];
    return next->def->quantize && w->steps[next->out[0]] >= 0 ? next : NULL;
}

static void make_steps(lowering *w, int id)
{
    tr_graph *g = w->b->g;
    const tr_fake_quantize_attrs *a = rounded(w, id);
    w->left[id]--;
    if (w->steps[id] >= 0) return;
    char layer[TR_NAME];
    snprintf(layer, sizeof layer, "%s", w->ops[w->u.producer[id]].layer);
    w->steps[id] = tr_build_like(w->b, layer, "steps", a->is_signed ? TR_I8 : TR_U8, id);
    g->tensors[w->steps[id]].scale = (float)a->scale;
    const tr_op *by = &w->ops[w->u.producer[id]];
    if (by->def->moves) make_steps(w, by->in[0]);
}

static tr_op *append(lowering *w, const tr_op_def *def, const tr_op *of, int nin, const int *in,
                     int out)
{
    return tr_build_op(w->b, def, of->layer, of->layer_index, of->attrs, TR_PHASE_FORWARD, nin, in,
                       1, &out);
}

static void append_product(lowering *w, const tr_op *op)
{
    const tr_graph *g = w->b->g;
    const tr_param *p = &g->model->params[g->tensors[op->in[1]].index];
    const tr_op *next = rounder(w, op);
    const int residual = residual_of(op),
              in[] = {w->steps[op->in[0]], op->in[1], w->b->first_state + p->scale,
                      op->nin > 2 ? op->in[2] : -1, residual >= 0 ? w->steps[residual] : -1};
    append(w, op->def->int8, op, TR_COUNT(in), in, next ? w->steps[next->out[0]] : op->out[0])
        ->act = op->act;
}

static bool made_by_product(const lowering *w, int id)
{
    const int p = w->u.producer[id];
    return p >= 0 && replaced(w, &w->ops[p]) && rounder(w, &w->ops[p]);
}

static void append_rounding(lowering *w, const tr_op *op)
{
    const int y = op->out[0];
    if (!made_by_product(w, op->in[0]))
        append(w, op->def->quantize, op, 1, &op->in[0], w->steps[y]);
    if (w->left[y] > 0) append(w, op->def->dequantize, op, 1, &w->steps[y], y);
}

static void append_move(lowering *w, const tr_op *op)
{
    const tr_op *by = rounder_of(w, op->out[0]);
    const int y = op->out[0];
    append(w, op->def, op, 1, &w->steps[op->in[0]], w->steps[y]);
    if (w->left[y] > 0) append(w, by->def->dequantize, by, 1, &w->steps[y], y);
}

static tr_status open_lowering(lowering *w)
{
    tr_status st = TR_OK;
    tr_graph *g = w->b->g;
    TR_TRY(tr_uses_open(g, &w->u));
    w->nops = g->nops;
    TR_HAVE(w->ops = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *w->ops));
    TR_HAVE(w->steps = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *w->steps));
    TR_HAVE(w->left = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *w->left));
    memcpy(w->ops, g->ops, g->nops * sizeof *w->ops);
    for (size_t t = 0; t < g->ntensors; t++) {
        w->steps[t] = -1;
        w->left[t] = w->u.readers[t];
    }
    /* every op may become two, every layer's output get a twin */
    st = tr_build_reserve(w->b, g->nops, g->nops);
out:
    return st;
}

/* Whether `id`, which one op reads, is made by a product with int8 weights, or moved from what is. */
static bool leads_to_product(const tr_graph *g, const tr_uses *u, size_t known, int id)
{
    while ((size_t)id < known) {
        const tr_op *op =
            u->readers[id] == 1 && u->producer[id] >= 0 ? &g->ops[u->producer[id]] : NULL;
        if (!op || (!op->def->moves && !op->def->int8)) return false;
        if (!op->def->moves)
            return g->tensors[op->in[1]].role == TR_ROLE_PARAM &&
                   g->model->params[g->tensors[op->in[1]].index].stored == TR_I8;
        id = op->in[0];
    }
    return false; /* one that was rounded here before */
}

/* product -> move -> round becomes product -> round -> move, each in the other's place. */
static tr_status round_first(tr_builder *b)
{
    tr_graph *g = b->g;
    tr_uses u;
    tr_status st = TR_OK;
    const size_t known = g->ntensors;
    TR_TRY(tr_uses_open(g, &u));
    TR_TRY(tr_build_reserve(b, g->nops, 0));
    for (size_t i = 0; i < g->nops; i++) {
        if (!rounds(&g->ops[i]) || !leads_to_product(g, &u, known, g->ops[i].in[0])) continue;
        for (size_t at = i; g->ops[u.producer[g->ops[at].in[0]]].def->moves;) {
            const size_t before = (size_t)u.producer[g->ops[at].in[0]];
            const tr_op round = g->ops[at], move = g->ops[before];
            const int made =
                tr_build_like(b, round.layer, "moved", g->tensors[move.in[0]].dtype, move.in[0]);
            g->ops[before] = round;
            g->ops[before].in[0] = move.in[0];
            g->ops[before].out[0] = made;
            g->ops[at] = move;
            g->ops[at].in[0] = made;
            g->ops[at].out[0] = round.out[0];
            at = before;
        }
    }
out:
    tr_uses_close(&u);
    return st;
}

tr_status tr_graph_pass_int8(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    lowering w = {.b = b};
    tr_status st = TR_OK;
    if (!b->o->int8) return TR_OK;
    TR_TRY(round_first(b));
    TR_TRY(open_lowering(&w));
    for (size_t i = 0; i < w.nops; i++) {
        if (!replaced(&w, &w.ops[i])) continue;
        ++*found;
        make_steps(&w, w.ops[i].in[0]);
        if (residual_of(&w.ops[i]) >= 0) make_steps(&w, residual_of(&w.ops[i]));
    }
    g->nops = 0;
    for (size_t i = 0; i < w.nops; i++) {
        const tr_op *op = &w.ops[i];
        if (replaced(&w, op))
            append_product(&w, op);
        else if (op->def->quantize && w.steps[op->out[0]] >= 0)
            append_rounding(&w, op);
        else if (op->def->moves && w.steps[op->out[0]] >= 0)
            append_move(&w, op);
        else
            g->ops[g->nops++] = *op;
    }
out:
    tr_uses_close(&w.u);
    tr_free(w.ops);
    tr_free(w.steps);
    tr_free(w.left);
    return st;
}
