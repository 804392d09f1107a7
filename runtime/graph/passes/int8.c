/* Products in 8 bits. A fake_quantize layer says that a value has 8 bits; one whose reader is a
 * product with a weight stored as int8 becomes a tensor of 8 bits:
 *
 *     fake_quantize -> conv2d+relu -> fake_quantize -> linear
 *     quantize      -> conv2d.int8 ------------------> linear.int8
 *
 * A product whose only reader is such a layer writes its steps itself; what else is made is
 * quantized, and what else reads them gets them dequantized. What only moves elements (maxpool2d,
 * flatten) moves steps as well: rounding keeps their order, so a fake_quantize behind it goes
 * before it first. A ceiling (relu6) that is not below the largest step is left out: clamping the
 * steps does the same. Zero points are 0, or nothing is replaced.
 *
 * What is no product and has an op of 8 bits (avgpool2d, global_avgpool, concat) becomes that op
 * between rounded values.
 *
 * What dynamic_quantize rounds becomes 8 bits with a scale for each row, known only when it runs,
 * so products of it leave their sums as floats:
 *
 *     dynamic_quantize -> linear+relu
 *     int8.dynamic -----> linear.int8 -> int8.rescale+relu  and the rows' scales to int8.rescale */
#include "runtime/graph/passes/passes.h"

#include <math.h>
#include <string.h>

typedef struct {
    tr_builder *b;
    tr_uses u;
    size_t nops;
    tr_op *ops; /* as they were; owned */
    int *steps; /* [tensors] the tensor of 8 bits that stands for it; -1 */
    int *rows;  /* [tensors] with that, its rows' scales; -1 */
    int *left;  /* [tensors] readers that want it as it is, the graph's outputs too */
} lowering;

static bool rounds(const tr_op *op)
{
    return op->def->quantize && ((const tr_fake_quantize_attrs *)op->attrs)->zero_point == 0;
}

/* The layer that rounds `id`, without a zero point, or what `id` was moved from; NULL: there is
 * none. */
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

/* The same op of 8 bits; NULL: there is none here. */
static const tr_op_def *int8_of(const lowering *w, const tr_op *op)
{
    const tr_graph *g = w->b->g;
    if (!op->def->int8) return NULL;
    const tr_tensor *x = &g->tensors[op->in[0]], *weight = &g->tensors[op->in[1]];
    const bool one = x->dims[tr_innermost(x)] == weight->dims[1];
    const tr_op_def *def = one ? op->def->int8 : op->def->int8_groups;
    return def && tr_int8_has(w->b->o, def) ? def : NULL;
}

/* A product that can be computed in 8 bits, if its input has them. */
static bool computable(const lowering *w, const tr_op *op)
{
    const tr_graph *g = w->b->g;
    if (!int8_of(w, op)) return false;
    const tr_tensor *weight = &g->tensors[op->in[1]];
    return weight->role == TR_ROLE_PARAM && g->model->params[weight->index].stored == TR_I8 &&
           weight->count / (size_t)weight->dims[0] <= TR_INT8_SUMMANDS;
}

static bool replaced(const lowering *w, const tr_op *op)
{
    return (op->act == TR_ACT_NONE || op->act == TR_ACT_RELU) && computable(w, op) &&
           rounded(w, op->in[0]) && (residual_of(op) < 0 || rounded(w, residual_of(op)));
}

/* The op that rounds what a product reads, row by row; NULL: none does. */
static const tr_op *by_rows(const lowering *w, const tr_op *op)
{
    const int p = op->nin > 0 && op->in[0] >= 0 ? w->u.producer[op->in[0]] : -1;
    return p >= 0 && w->ops[p].def->by_row && computable(w, op) ? &w->ops[p] : NULL;
}

/* The one reader of what the op makes, where that rounds it for a product. */
static const tr_op *rounder(const lowering *w, const tr_op *op)
{
    const int y = op->out[0];
    if (w->u.readers[y] != 1 || w->u.first[y] < 0) return NULL;
    const tr_op *next = &w->ops[w->u.first[y]];
    return next->def->quantize && w->steps[next->out[0]] >= 0 ? next : NULL;
}

/* No product, of rounded values, whose only reader rounds it for something that is computed in 8
 * bits. */
static bool carries(const lowering *w, const tr_op *op)
{
    if (!op->def->steps || !rounder(w, op)) return false;
    for (int k = 0; k < op->nin; k++)
        if (!rounded(w, op->in[k])) return false;
    return true;
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

static void make_rows(lowering *w, const tr_op *by)
{
    tr_graph *g = w->b->g;
    const tr_dynamic_attrs *a = by->attrs;
    const int id = by->out[0];
    w->left[id]--;
    if (w->steps[id] >= 0) return;
    const int64_t rows = (int64_t)tr_dynamic_rows(&g->tensors[id]);
    w->steps[id] = tr_build_like(w->b, by->layer, "steps", a->is_signed ? TR_I8 : TR_U8, id);
    g->tensors[w->steps[id]].scale = 1;
    w->rows[id] = tr_build_new(w->b, by->layer, "scales", TR_F32, 1, &rows);
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
    append(w, int8_of(w, op), op, TR_COUNT(in), in, next ? w->steps[next->out[0]] : op->out[0])
        ->act = op->act;
}

static void append_by_rows(lowering *w, const tr_op *op)
{
    const tr_graph *g = w->b->g;
    const tr_op_def *rescale = by_rows(w, op)->def->rescale;
    const tr_param *p = &g->model->params[g->tensors[op->in[1]].index];
    const int sums = tr_build_like(w->b, op->layer, "sums", TR_F32, op->out[0]);
    const int in[] = {w->steps[op->in[0]], op->in[1], w->b->first_state + p->scale, -1, -1},
              of[] = {sums, w->rows[op->in[0]], op->nin > 2 ? op->in[2] : -1, residual_of(op)};
    append(w, int8_of(w, op), op, TR_COUNT(in), in, sums);
    append(w, rescale, op, TR_COUNT(of), of, op->out[0])->act = op->act;
}

static void append_rows(lowering *w, const tr_op *op)
{
    const int y = op->out[0], out[] = {w->steps[y], w->rows[y]};
    tr_build_op(w->b, op->def->by_row, op->layer, op->layer_index, op->attrs, TR_PHASE_FORWARD, 1,
                &op->in[0], TR_COUNT(out), out);
    if (w->left[y] > 0) w->b->g->ops[w->b->g->nops++] = *op;
}

static void append_carrier(lowering *w, const tr_op *op)
{
    int in[TR_MAX_IN];
    for (int k = 0; k < op->nin; k++) in[k] = w->steps[op->in[k]];
    append(w, op->def->steps, op, op->nin, in, w->steps[rounder(w, op)->out[0]]);
}

/* What makes it writes 8 bits itself. */
static bool made_of_steps(const lowering *w, int id)
{
    const tr_op *op = w->u.producer[id] >= 0 ? &w->ops[w->u.producer[id]] : NULL;
    return op && ((replaced(w, op) && rounder(w, op)) || carries(w, op));
}

static void append_rounding(lowering *w, const tr_op *op)
{
    const int y = op->out[0];
    if (!made_of_steps(w, op->in[0])) append(w, op->def->quantize, op, 1, &op->in[0], w->steps[y]);
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
    TR_HAVE(w->rows = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *w->rows));
    TR_HAVE(w->left = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *w->left));
    memcpy(w->ops, g->ops, g->nops * sizeof *w->ops);
    for (size_t t = 0; t < g->ntensors; t++) {
        w->steps[t] = w->rows[t] = -1;
        w->left[t] = w->u.readers[t];
    }
    /* every op may become two, every layer's output get two more tensors */
    st = tr_build_reserve(w->b, 2 * g->nops, g->nops);
out:
    return st;
}

/* All operands are rounded, or moved from what is; from `known` on are those that were rounded
 * here. */
static bool of_rounded(const tr_graph *g, const tr_uses *u, size_t known, const tr_op *op)
{
    for (int k = 0; k < op->nin; k++) {
        int id = op->in[k];
        while ((size_t)id < known) {
            const int p = u->producer[id];
            if (p < 0 || (!rounds(&g->ops[p]) && !g->ops[p].def->moves)) return false;
            if (rounds(&g->ops[p])) break;
            id = g->ops[p].in[0];
        }
    }
    return true;
}

/* Whether `id`, which one op reads, is made by what computes in 8 bits, or moved from what is. */
static bool leads_to_product(const tr_graph *g, const tr_uses *u, size_t known, int id)
{
    while ((size_t)id < known) {
        const tr_op *op =
            u->readers[id] == 1 && u->producer[id] >= 0 ? &g->ops[u->producer[id]] : NULL;
        if (op && op->def->steps) return of_rounded(g, u, known, op);
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

/* product -> relu6 -> round becomes product -> round, where steps end before the ceiling. */
static tr_status leave_ceilings_out(tr_builder *b)
{
    tr_graph *g = b->g;
    tr_uses u;
    tr_status st = TR_OK;
    TR_TRY(tr_uses_open(g, &u));
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *round = &g->ops[i];
        if (!round->def || !rounds(round)) continue;
        const tr_fake_quantize_attrs *a = round->attrs;
        const int x = round->in[0], p = u.producer[x];
        tr_op *clamp = p >= 0 && u.readers[x] == 1 ? &g->ops[p] : NULL;
        if (!clamp || clamp->def->ceiling <= 0 || a->is_signed ||
            rintf(clamp->def->ceiling * (1.0f / (float)a->scale)) < 255 ||
            !leads_to_product(g, &u, g->ntensors, clamp->in[0]))
            continue;
        round->in[0] = clamp->in[0];
        clamp->def = NULL;
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}

tr_status tr_graph_pass_int8(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    lowering w = {.b = b};
    tr_status st = TR_OK;
    if (!b->o->int8) return TR_OK;
    TR_TRY(round_first(b));
    TR_TRY(leave_ceilings_out(b));
    TR_TRY(open_lowering(&w));
    for (size_t i = 0; i < w.nops; i++) {
        const tr_op *op = &w.ops[i], *by = by_rows(&w, op);
        if (!by && !replaced(&w, op)) continue;
        ++*found;
        if (by) {
            make_rows(&w, by);
            continue;
        }
        make_steps(&w, op->in[0]);
        if (residual_of(op) >= 0) make_steps(&w, residual_of(op));
    }
    for (size_t i = w.nops; i-- > 0;) { /* those that read them have been seen */
        if (!carries(&w, &w.ops[i])) continue;
        ++*found;
        for (int k = 0; k < w.ops[i].nin; k++) make_steps(&w, w.ops[i].in[k]);
    }
    g->nops = 0;
    for (size_t i = 0; i < w.nops; i++) {
        const tr_op *op = &w.ops[i];
        if (by_rows(&w, op))
            append_by_rows(&w, op);
        else if (replaced(&w, op))
            append_product(&w, op);
        else if (carries(&w, op))
            append_carrier(&w, op);
        else if (op->def->by_row && w.steps[op->out[0]] >= 0)
            append_rows(&w, op);
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
    tr_free(w.rows);
    tr_free(w.left);
    return st;
}
