/* Products in 8 bits. A fake_quantize layer says that a value has 8 bits; one whose reader is a
 * product with a weight stored as int8 becomes a tensor of 8 bits:
 *
 *     fake_quantize -> conv2d+relu -> fake_quantize -> linear
 *     quantize      -> conv2d.int8 ------------------> linear.int8
 *
 * A product whose only reader is such a layer writes its steps itself; what else is made is
 * quantized, and what else reads them gets them dequantized. Zero points are 0, or nothing is
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

/* The attributes of the layer that makes `id`, where it is one that rounds without a zero point. */
static const tr_fake_quantize_attrs *rounded(const lowering *w, int id)
{
    const int p = id >= 0 ? w->u.producer[id] : -1;
    if (p < 0 || !w->ops[p].def->quantize) return NULL;
    const tr_fake_quantize_attrs *a = w->ops[p].attrs;
    return a->zero_point == 0 ? a : NULL;
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

tr_status tr_graph_pass_int8(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    lowering w = {.b = b};
    tr_status st = TR_OK;
    if (!b->o->int8) return TR_OK;
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
