/* Inverted dropout (Srivastava et al. 2014), and stochastic depth (Huang et al. 2016), which drops
 * whole samples of a branch. The mask is a function of the sample and the layer, so that backward
 * and recomputation make it again instead of keeping it. Absent from eval graphs. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_REAL("p", offsetof(tr_dropout_attrs, p), "0.5", 0, 1, NULL,
            "probability that an element is dropped; below 1"),
    {0},
};

static const tr_field path_fields[] = {
    TR_REAL("p", offsetof(tr_dropout_attrs, p), NULL, 0, 1, NULL,
            "probability that a sample is dropped; below 1"),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    (void)mk;
    const tr_dropout_attrs *a = at;
    return a->p < 1 ? TR_OK : tr_layer_fail(l, TR_CONFIG, "p: %g is not below 1", a->p);
}

static int build(tr_builder *b, const tr_layer *l)
{
    const tr_dropout_attrs *a = l->attrs;
    int x = tr_build_input(b, l, 0);
    if (!tr_build_train(b) || a->p == 0) return x;
    int y = tr_build_output(b, l);
    tr_build_forward(b, l->def, l, TR_IDS(x), TR_IDS(y));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0])),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

static bool same(const tr_layer *l)
{
    (void)l;
    return true;
}

const tr_op_def tr_def_dropout = {
    .name = "dropout",
    .example = "dropout: {p: 0.1}",
    .doc = "In training each element is dropped with probability p, the others scaled by 1/(1-p).",
    .fields = fields,
    .attrs_size = sizeof(tr_dropout_attrs),
    .min_in = 1,
    .max_in = 1,
    .rows = TR_ROWS_APART,
    .finish = finish,
    .forward = build,
    .gradient = gradient,
    .backward = &tr_def_dropout_grad,
    .channels = TR_CHANNELS_EACH,
    .commutes = TR_COMMUTES_ALL,
    .same = same,
    .flops = tr_flops_elements};

const tr_op_def tr_def_dropout_grad = {.name = "dropout.grad", .flops = tr_flops_elements};

const tr_op_def tr_def_drop_path = {
    .name = "drop_path",
    .example = "drop_path: {p: 0.1}",
    .doc = "In training each sample is dropped with probability p, all of it, the others scaled by "
           "1/(1-p): the last layer of a residual's body (stochastic depth; torchvision's "
           "StochasticDepth of mode `row`).",
    .fields = path_fields,
    .attrs_size = sizeof(tr_dropout_attrs),
    .min_in = 1,
    .max_in = 1,
    .rows = TR_ROWS_APART,
    .anywhere = true,
    .finish = finish,
    .forward = build,
    .gradient = gradient,
    .backward = &tr_def_drop_path_grad,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_EACH,
    .commutes = TR_COMMUTES_ALL,
    .same = same,
    .flops = tr_flops_elements};

const tr_op_def tr_def_drop_path_grad = {
    .name = "drop_path.grad", .flops = tr_flops_elements, .share = TR_SHARE_FIRST};
