/* (C, H, W) to (C*H*W), in that order: a copy for what is stored channels-last, unless
 * there is but one channel or one pixel; then, and for all else, only another view of the same
 * bytes. */
#include "runtime/graph/ops/registry.h"

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    size_t count;
    if (!tr_shape_count(&l->inputs[0], &count) || count > INT64_MAX)
        return tr_layer_fail(l, TR_SHAPE, "its input is too large");
    l->output = (tr_shape){.ndim = 1, .dims = {(int64_t)count}};
    return TR_OK;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_flatten_grad, op, TR_IDS(tr_grad_of(b, op->out[0])),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

static bool view(const tr_graph *g, const tr_op *op)
{
    const tr_tensor *a = &g->tensors[op->in[0]], *b = &g->tensors[op->out[0]];
    const tr_tensor *t = a->layout == TR_LAYOUT_CHANNELS_LAST ? a : b;
    int64_t places = 1;
    for (int i = 2; i < t->ndim; i++) places *= t->dims[i];
    return t->layout != TR_LAYOUT_CHANNELS_LAST || t->dims[1] == 1 || places == 1;
}

/* (C, H, W) stored channels-last is (H * W) x C; flat, C x (H * W). */
tr_transposition tr_flatten_of(const tr_graph *g, const tr_op *op)
{
    const tr_tensor *x = &g->tensors[op->in[0]], *y = &g->tensors[op->out[0]];
    const bool from = x->layout == TR_LAYOUT_CHANNELS_LAST,
               to = y->layout == TR_LAYOUT_CHANNELS_LAST;
    tr_transposition t = {.samples = (size_t)x->dims[0], .rows = 1};
    t.cols = x->count / (t.samples ? t.samples : 1);
    if (from || to) {
        const size_t channels = (size_t)(from ? x : y)->dims[1], area = t.cols / channels;
        t.rows = from ? area : channels;
        t.cols = from ? channels : area;
    }
    return t;
}

static bool same(const tr_layer *l)
{
    return l->inputs[0].ndim == 1;
}

static bool merged(const tr_layer *first, const tr_layer *second, tr_merged *out)
{
    (void)second, (void)out;
    return first->def == &tr_def_reshape || first->def == &tr_def_flatten;
}

const tr_op_def tr_def_flatten = {
    .name = "flatten",
    .doc = "All of a sample as one row of features, in (channels, height, width) order.",
    .min_in = 1,
    .max_in = 1,
    .infer = infer,
    .operands = 1,
    .gradient = gradient,
    .share = TR_SHARE_VIEW,
    .moves = true,
    .channels = TR_CHANNELS_SPREAD,
    .commutes = TR_COMMUTES_ALL,
    .same = same,
    .merged = merged,
    .view = view};

const tr_op_def tr_def_flatten_grad = {
    .name = "flatten.grad", .share = TR_SHARE_VIEW, .view = view};
