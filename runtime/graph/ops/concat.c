/* Inputs side by side along the first dimension of a sample: channels, or features. */
#include "runtime/graph/ops/registry.h"

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    tr_concat_attrs *attrs = l->attrs;
    l->output = l->inputs[0];
    attrs->width[0] = l->output.dims[0];
    for (int i = 1; i < l->nin; i++) {
        const tr_shape *s = &l->inputs[i];
        bool fits = s->ndim == l->output.ndim && s->layout == l->output.layout;
        for (int d = 1; fits && d < s->ndim; d++) fits = s->dims[d] == l->output.dims[d];
        if (!fits || s->dims[0] > INT64_MAX - l->output.dims[0]) {
            char a[TR_SHAPE_TEXT], b[TR_SHAPE_TEXT];
            return tr_layer_fail(l, TR_SHAPE,
                                 "cannot concatenate %s and %s along the first dimension",
                                 tr_shape_text(&l->inputs[0], a), tr_shape_text(s, b));
        }
        l->output.dims[0] += attrs->width[i] = s->dims[0];
    }
    return TR_OK;
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

const tr_op_def tr_def_concat = {
    .name = "concat",
    .doc = "The layers named in `from`, side by side along channels (images) or features.",
    .attrs_size = sizeof(tr_concat_attrs),
    .min_in = 2,
    .max_in = TR_MAX_IN,
    .infer = infer,
    .gradient = gradient};

const tr_op_def tr_def_concat_grad = {.name = "concat.grad"};
