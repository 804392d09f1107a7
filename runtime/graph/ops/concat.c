/* Inputs side by side along one dimension, counted as PyTorch's torch.cat does: 0 would be the
 * samples, negative ones count from the last. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_INT("axis", offsetof(tr_concat_attrs, axis), "1", 1 - TR_MAX_DIMS, TR_MAX_DIMS - 1, NULL,
           "the dimension that grows, where 0 counts samples: 1 is the channels of an image or a "
           "sequence, the features of (features), the rows of (rows, features); -1 is the last"),
    {0},
};

/* Counted from the front. */
static tr_status resolve(const tr_layer *l, tr_concat_attrs *a)
{
    const int ndim = l->inputs[0].ndim;
    const int64_t axis = a->axis < 0 ? a->axis + 1 + ndim : a->axis;
    char text[TR_SHAPE_TEXT];
    if (axis < 1 || axis > ndim)
        return tr_layer_fail(l, TR_SHAPE,
                             "axis %lld: expected 1 to %d or -%d to -1 for samples of %s",
                             (long long)a->axis, ndim, ndim, tr_shape_text(&l->inputs[0], text));
    a->axis = axis;
    return TR_OK;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    tr_concat_attrs *attrs = l->attrs;
    tr_status st;
    TR_TRY(resolve(l, attrs));
    const int along = (int)attrs->axis - 1; /* of a sample */
    /* sequences one behind the other: as they are written */
    for (int i = 0; i < l->nin && along > 0; i++)
        if (l->inputs[i].ndim == 2) l->inputs[i].layout = TR_LAYOUT_PLAIN;
    l->output = l->inputs[0];
    attrs->width[0] = l->output.dims[along];
    for (int i = 1; i < l->nin; i++) {
        const tr_shape *s = &l->inputs[i];
        bool fits = s->ndim == l->output.ndim && s->layout == l->output.layout;
        for (int d = 0; fits && d < s->ndim; d++)
            fits = d == along || s->dims[d] == l->output.dims[d];
        if (!fits || s->dims[along] > INT64_MAX - l->output.dims[along]) {
            char a[TR_SHAPE_TEXT], b[TR_SHAPE_TEXT];
            st = tr_layer_fail(l, TR_SHAPE, "cannot concatenate %s and %s along axis %lld",
                               tr_shape_text(&l->inputs[0], a), tr_shape_text(s, b),
                               (long long)attrs->axis);
            goto out;
        }
        l->output.dims[along] += attrs->width[i] = s->dims[along];
    }
out:
    return st;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    int dx[TR_MAX_OUT];
    bool any = false;
    for (int i = 0; i < op->nin; i++) any |= (dx[i] = tr_grad_new(b, op->in[i])) >= 0;
    if (any)
        tr_build_backward(b, &tr_def_concat_grad, op, TR_IDS(tr_grad_of(b, op->out[0])), op->nin,
                          dx);
}

tr_concat_place tr_concat_place_of(const tr_graph *g, const tr_op *op, int k)
{
    const tr_concat_attrs *a = op->attrs;
    const tr_tensor *y = &g->tensors[op->out[0]];
    const size_t inner = tr_stored_behind(y, (int)a->axis), row = inner * (size_t)y->dims[a->axis];
    tr_concat_place p = {
        .rows = y->count / row, .pitch = (int64_t)row, .innermost = tr_innermost(y) == a->axis};
    for (int i = 0; i < k; i++) p.at += inner * (size_t)a->width[i] * tr_dtype_size(y->dtype);
    return p;
}

bool tr_concat_in_place(const tr_graph *g, const tr_op *op, int k)
{
    const tr_tensor *y = &g->tensors[op->out[0]], *x = &g->tensors[op->in[k]];
    const tr_concat_place p = tr_concat_place_of(g, op, k);
    return tr_root(g, op->in[k]) == tr_root(g, op->out[0]) && x->at == y->at + p.at &&
           (p.rows == 1 || x->pitch == (y->pitch > 0 ? y->pitch : p.pitch));
}

static bool nothing_to_copy(const tr_graph *g, const tr_op *op)
{
    bool all = true;
    for (int k = 0; k < op->nin && all; k++) all = tr_concat_in_place(g, op, k);
    return all;
}

static tr_channels channels(const tr_layer *l)
{
    const tr_concat_attrs *a = l->attrs;
    const int axis = l->output.layout == TR_LAYOUT_CHANNELS_LAST ? 1 : l->output.ndim;
    return a->axis == axis ? TR_CHANNELS_JOINED : TR_CHANNELS_EACH;
}

const tr_op_def tr_def_concat = {
    .name = "concat",
    .example = "concat: {from: [left, right]}",
    .doc = "The layers named in `from`, one behind the other along `axis`; their other dimensions "
           "must be equal.",
    .fields = fields,
    .attrs_size = sizeof(tr_concat_attrs),
    .min_in = 2,
    .max_in = TR_MAX_IN,
    .sequence = TR_SEQUENCE_EITHER,
    .rows = TR_ROWS_APART,
    .infer = infer,
    .gradient = gradient,
    .steps = &tr_def_concat_int8,
    .share = TR_SHARE_PARTS,
    .view = nothing_to_copy,
    .pitched = {.in = ~0u, .out = true},
    .channels_of = channels,
    .commutes = TR_COMMUTES_ALL};

const tr_op_def tr_def_concat_grad = {.name = "concat.grad"};
