/* Layers whose matrix is learned in sketches (tr_sketch): sklinear, and skconv2d, whose filters
 * are. Each is two plain products, so that nothing is as large as (batch, terms, out): a fixed half
 * of a stacked matrix costs no gradient.
 *
 *     sklinear   x --[S1 above u U2]--> h (.., 2 K) --[u U1^T beside S2]--> y
 *     skconv2d   x --conv2d with S1---> h (N, 2 K, H, W) --[u U1^T]--> y
 *
 * u is in the fixed halves alone: S1 and S2 are what Panther's layers hold, and so are their
 * gradients. Where theirs differ: a Kaiming-uniform W has the fan of the dense layer, in, not
 * out. */
#include "runtime/graph/ops/registry.h"

/* The layer's seed where none is given: its name's FNV-1a, so that layers differ and a layer keeps
 * its signs whatever stands before it. */
static int64_t seed_of(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619u;
    return (int64_t)(h >> 1);
}

void tr_sketch_finish(const tr_layer *l, tr_sketch *s, tr_sketch_side side)
{
    s->side = side;
    if (s->seed < 0) s->seed = seed_of(l->name);
}

/* ---- The products ---- */

static double flops_of(const tr_graph *g, const tr_op *op, int y)
{
    const tr_linear_matrix m = tr_linear_matrix_of(op, &g->tensors[op->in[1]]);
    return 2 * (double)g->tensors[y].count * (double)m.in;
}

static double flops_forward(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op, op->out[0]);
}

static double flops_grad_input(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op, op->in[0]);
}

/* Of the learned half alone. */
static double flops_grad_weight(const tr_graph *g, const tr_op *op)
{
    const tr_tensor *dweight = &g->tensors[op->out[0]], *x = &g->tensors[op->in[0]];
    const tr_linear_matrix m = tr_linear_matrix_of(op, dweight);
    return 2.0 * (double)x->count / (double)m.in * (double)dweight->count;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    tr_grad_product(b, op, &tr_def_sklinear_grad_input, &tr_def_sklinear_grad_weight);
}

/* ---- sklinear ---- */

typedef struct {
    tr_linear_attrs a; /* of the second product, then of the first */
    tr_linear_attrs down;
    int init;
} attrs;

static const tr_field fields[] = {
    TR_INT("out", offsetof(attrs, a.out), NULL, 1, INT32_MAX, NULL, "output features"),
    TR_SKETCH_FIELDS(attrs, a.sketch,
                     "sketches of the rows, and of the columns, that are averaged"),
    TR_BOOL("bias", offsetof(attrs, a.bias), "true", "add a learned bias"),
    TR_INIT_FIELD(attrs),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    attrs *a = at;
    a->init = (int)tr_layer_init(mk, a->init);
    tr_sketch_finish(l, &a->a.sketch, TR_SKETCH_UP);
    a->down =
        (tr_linear_attrs){.out = 2 * a->a.sketch.terms * a->a.sketch.rank, .sketch = a->a.sketch};
    a->down.sketch.side = TR_SKETCH_DOWN;
    return TR_OK;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const attrs *a = l->attrs;
    tr_status st = TR_OK;
    TR_TRY(tr_layer_rank(l, 1, 2, "(features) or (rows, features): put flatten before it"));
    l->output = l->inputs[0];
    const int64_t out = a->a.out, in = l->inputs[0].dims[l->inputs[0].ndim - 1];
    const int64_t sketches = a->a.sketch.terms * a->a.sketch.rank;
    l->output.dims[l->output.ndim - 1] = out;
    tr_param_decl s = {.name = "s1",
                       .ndim = 2,
                       .dims = {sketches, in},
                       .init = (tr_init_kind)a->init,
                       .fan_in = (double)in,
                       .fan_out = (double)out,
                       .decay = true,
                       .sketch = a->down.sketch,
                       .of = {out, in}};
    TR_TRY(tr_layer_param(mk, l, &s));
    s.name = "s2";
    s.dims[0] = out;
    s.dims[1] = sketches;
    s.sketch = a->a.sketch;
    s.behind = 1;
    TR_TRY(tr_layer_param(mk, l, &s));
    if (a->a.bias) TR_TRY(tr_layer_bias(mk, l, &s, out));
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const attrs *a = l->attrs;
    const int x = tr_build_input(b, l, 0);
    const tr_tensor *t = tr_build_tensor(b, x);
    const tr_dtype type = t->dtype;
    const int ndim = t->ndim;
    int64_t dims[TR_MAX_DIMS];
    for (int i = 0; i < ndim; i++) dims[i] = t->dims[i];
    dims[ndim - 1] = a->down.out;
    const int h = tr_build_new(b, l->name, "sketches", type, ndim, dims);
    const int y = tr_build_output(b, l);
    tr_build_op(b, &tr_def_sklinear_down, l->name, l->index, &a->down, TR_PHASE_FORWARD,
                TR_IDS(x, tr_build_param(b, l, 0), -1), TR_IDS(h));
    tr_build_op(b, l->def, l->name, l->index, &a->a, TR_PHASE_FORWARD,
                TR_IDS(h, tr_build_param(b, l, 1), a->a.bias ? tr_build_param(b, l, 2) : -1),
                TR_IDS(y));
    return y;
}

const tr_op_def tr_def_sklinear = {
    .name = "sklinear",
    .example = "sklinear: {out: 1024, terms: 4, rank: 64}",
    .doc = "Fully connected, its matrix learned in sketches (Panther's SKLinear; Seddik et al. "
           "2026): `y = 1 / (2 terms) * sum of (U1_i^T S1_i + S2_i U2_i) x + b` over the last "
           "dimension, U1_i and U2_i fixed signs / sqrt(rank), made from the seed and in no file. "
           "Initial values are sketches of a dense layer's. Parameters: s1 (terms * rank, in), s2 "
           "(out, terms * rank), bias (out).",
    .fields = fields,
    .attrs_size = sizeof(attrs),
    .learned = true,
    .rounds = 3u, /* s1, s2 */
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .min_in = 1,
    .max_in = 1,
    .finish = finish,
    .infer = infer,
    .forward = forward,
    .operands = 3,
    .gradient = gradient,
    .acts_infer = TR_ACT_ANY,
    .acts_train = TR_ACT_IS(TR_ACT_RELU),
    .multiplies = true,
    .width = "out",
    .flops = flops_forward};

const tr_op_def tr_def_sklinear_down = {.name = "sklinear.down",
                                        .anywhere = true,
                                        .operands = 3,
                                        .gradient = gradient,
                                        .multiplies = true,
                                        .flops = flops_forward};

const tr_op_def tr_def_sklinear_grad_input = {.name = "sklinear.grad_input",
                                              .acts_gradient = TR_ACT_IS(TR_ACT_GELU_TANH),
                                              .flops = flops_grad_input};

const tr_op_def tr_def_sklinear_grad_weight = {.name = "sklinear.grad_weight",
                                               .flops = flops_grad_weight};
