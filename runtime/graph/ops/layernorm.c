/* Layer normalization (Ba, Kiros and Hinton 2016) and RMSNorm (Zhang and Sennrich 2019), over the
 * last dimension, of an image over its channels at each place, which lie innermost; or over as many
 * dimensions as `normalized_shape` has, in PyTorch's order: an image is then rearranged to it, and
 * back. */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_layernorm_attrs a;
    tr_ints shape;
} attributes;

#define SHAPE_FIELD                                                                                \
    TR_INTS("normalized_shape", offsetof(attributes, shape), "", 1, INT32_MAX, NULL,               \
            "the last dimensions of a sample, which are normalized together, as PyTorch's: "       \
            "[channels, height, width] a whole image; default: the last one, of an image "         \
            "its channels at each place")

static const tr_field fields[] = {
    TR_REAL("eps", offsetof(attributes, a.eps), "1e-5", 1e-12, 1, NULL, "added to the variance"),
    SHAPE_FIELD,
    {0},
};

static const tr_field rms_fields[] = {
    TR_REAL("eps", offsetof(attributes, a.eps), "1.1920929e-07", 1e-12, 1, NULL,
            "added to the mean square; default: PyTorch's, of float32"),
    SHAPE_FIELD,
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    attributes *a = at;
    (void)mk;
    a->a.rms = l->def == &tr_def_rmsnorm;
    a->a.dims = (int)a->shape.count;
    return TR_OK;
}

/* What is normalized together, as a parameter has it. */
static tr_status normalized(const tr_layer *l, tr_shape *out)
{
    const tr_ints *given = &((const attributes *)l->attrs)->shape;
    const tr_shape *x = &l->inputs[0];
    char text[TR_SHAPE_TEXT], have[TR_SHAPE_TEXT];
    tr_status st = TR_OK;
    *out = (tr_shape){.ndim = 1, .dims = {tr_shape_channels(x)}};
    if (given->count == 0) {
        if (x->layout != TR_LAYOUT_CHANNELS_LAST)
            TR_TRY(tr_layer_rank(l, 1, 2, "(features), (rows, features) or an image"));
        return TR_OK;
    }
    bool fits = given->count <= (size_t)x->ndim;
    out->ndim = fits ? (int)given->count : 0;
    for (int i = 0; i < out->ndim; i++) {
        out->dims[i] = given->v[i];
        fits = fits && out->dims[i] == x->dims[x->ndim - out->ndim + i];
    }
    if (!fits)
        st = tr_layer_fail(l, TR_SHAPE, "normalized_shape %s: expected the last dimensions of %s",
                           out->ndim ? tr_shape_text(out, text) : "has too many dimensions",
                           tr_shape_text(x, have));
out:
    return st;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    tr_status st = TR_OK;
    tr_shape of;
    l->output = l->inputs[0];
    TR_TRY(normalized(l, &of));
    tr_param_decl p = {.name = "weight", .ndim = of.ndim, .init = TR_INIT_ONES};
    for (int i = 0; i < of.ndim; i++) p.dims[i] = of.dims[i];
    TR_TRY(tr_layer_param(mk, l, &p));
    if (((const attributes *)l->attrs)->a.rms) return TR_OK;
    p.name = "bias";
    p.init = TR_INIT_ZEROS;
    TR_TRY(tr_layer_param(mk, l, &p));
out:
    return st;
}

static const char *together(const tr_layer *l)
{
    const int dims = ((const tr_layernorm_attrs *)l->attrs)->dims;
    return dims > 1 && dims == l->inputs[0].ndim
               ? "normalized_shape takes all rows of a sequence together"
               : NULL;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    /* of a row alone it is what lies innermost, however many rows a graph has */
    const bool shaped = ((const tr_layernorm_attrs *)l->attrs)->dims > 0 && tr_build_past(b) < 0;
    int x = tr_build_input(b, l, 0);
    const int weight = tr_build_param(b, l, 0);
    const int bias = l->nparams > 1 ? tr_build_param(b, l, 1) : -1;
    const int64_t D = (int64_t)tr_build_tensor(b, weight)->count;
    if (shaped) {
        size_t all;
        tr_shape_count(&l->output, &all);
        const tr_shape rows = {.ndim = 2, .dims = {(int64_t)all / D, D}};
        x = tr_build_as(b, l, x, &rows);
    }
    const int y = shaped ? tr_build_like(b, l->name, "normalized", tr_build_tensor(b, x)->dtype, x)
                         : tr_build_output(b, l);
    const int64_t dims[2] = {(int64_t)tr_build_tensor(b, y)->count / D, 2};
    const int stats = tr_build_new(b, l->name, "stats", TR_F32, 2, dims);
    tr_build_forward(b, l->def, l, TR_IDS(x, weight, bias), TR_IDS(y, stats));
    return shaped ? tr_build_as(b, l, y, &l->output) : y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    int dy = tr_grad_of(b, op->out[0]), x = op->in[0], w = op->in[1];
    /* dx is computed with the rest even where nobody wants it: the kernel makes all in one
     * sweep. */
    int dx = tr_grad_new(b, x);
    if (dx < 0) dx = tr_build_like(b, op->layer, "dx", tr_build_tensor(b, x)->dtype, x);
    int dweight = tr_grad_param(b, w), dbias = tr_grad_param(b, op->in[2]);
    tr_build_backward(b, op->def->backward, op, TR_IDS(dy, x, w, op->out[1]),
                      TR_IDS(dx, dweight, dbias));
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return 8.0 * (double)g->tensors[op->in[0]].count;
}

#define ROWS_OF_VALUES                                                                             \
    .attrs_size = sizeof(attributes), .learned = true, .min_in = 1, .max_in = 1, .finish = finish, \
    .infer = infer, .forward = forward, .gradient = gradient, .flops = flops,                      \
    .rows = TR_ROWS_APART, .anywhere = true, .together = together

/* Dimensions that are named stay. */
static int64_t keeps(const tr_layer *l)
{
    return ((const attributes *)l->attrs)->shape.count == 0;
}

const tr_op_def tr_def_layernorm = {
    .name = "layernorm",
    .example = "layernorm: {eps: 1e-6}",
    .keeps = keeps,
    .doc =
        "Layer normalization over the last dimension, of an image over its channels at each place "
        "(torchvision's LayerNorm2d), or over normalized_shape. Parameters: weight, bias "
        "(features, channels, or normalized_shape).",
    .fields = fields,
    ROWS_OF_VALUES,
    .backward = &tr_def_layernorm_grad};

const tr_op_def tr_def_layernorm_grad = {.name = "layernorm.grad", .flops = flops};

const tr_op_def tr_def_rmsnorm = {
    .name = "rmsnorm",
    .example = "rmsnorm: {eps: 1e-6}",
    .keeps = keeps,
    .doc = "Values divided by the root of their mean square (RMSNorm), over the same dimensions as "
           "layernorm's. Parameter: weight (features, channels, or normalized_shape).",
    .fields = rms_fields,
    ROWS_OF_VALUES,
    .backward = &tr_def_rmsnorm_grad};

const tr_op_def tr_def_rmsnorm_grad = {.name = "rmsnorm.grad", .flops = flops};
