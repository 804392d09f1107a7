/* Group normalization (Wu and He 2018): the channels of a sample in groups, each normalized over
 * its places. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_INT(
        "groups", offsetof(tr_groupnorm_attrs, groups), NULL, 1, INT32_MAX, NULL,
        "groups of channels that are normalized apart: 1 is all of a sample, as many as channels "
        "is instance normalization"),
    TR_REAL("eps", offsetof(tr_groupnorm_attrs, eps), "1e-5", 1e-12, 1, NULL,
            "added to the variance"),
    TR_BOOL("affine", offsetof(tr_groupnorm_attrs, affine), "true", "it has a weight and a bias"),
    {0},
};

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const tr_groupnorm_attrs *a = l->attrs;
    const int64_t channels = l->inputs[0].dims[0];
    tr_status st = TR_OK;
    if (l->inputs[0].ndim != 2)
        TR_TRY(
            tr_layer_rank(l, 1, 3, "(features), (channels, length) or (channels, height, width)"));
    if (channels % a->groups != 0) {
        char t[TR_SHAPE_TEXT];
        st = tr_layer_fail(
            l, TR_SHAPE, "%lld channels of its input %s are not a multiple of groups %lld",
            (long long)channels, tr_shape_text(&l->inputs[0], t), (long long)a->groups);
        goto out;
    }
    l->output = l->inputs[0];
    if (!a->affine) return TR_OK;
    TR_TRY(tr_layer_param(
        mk, l,
        &(tr_param_decl){.name = "weight", .ndim = 1, .dims = {channels}, .init = TR_INIT_ONES}));
    TR_TRY(tr_layer_param(
        mk, l,
        &(tr_param_decl){.name = "bias", .ndim = 1, .dims = {channels}, .init = TR_INIT_ZEROS}));
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const tr_groupnorm_attrs *a = l->attrs;
    const int x = tr_build_input(b, l, 0), y = tr_build_output(b, l);
    const int64_t dims[2] = {tr_build_tensor(b, y)->dims[0] * a->groups, 2};
    const int stats = tr_build_new(b, l->name, "stats", TR_F32, 2, dims);
    tr_build_forward(b, &tr_def_groupnorm, l,
                     TR_IDS(x, a->affine ? tr_build_param(b, l, 0) : -1,
                            a->affine ? tr_build_param(b, l, 1) : -1),
                     TR_IDS(y, stats));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]), x = op->in[0], w = op->in[1];
    int dx = tr_grad_new(b, x);
    if (dx < 0 && !tr_grad_learned(b, w) && !tr_grad_learned(b, op->in[2])) return;
    if (dx < 0) dx = tr_build_like(b, op->layer, "dx", tr_build_tensor(b, x)->dtype, x);
    const int dweight = tr_grad_param(b, w), dbias = tr_grad_param(b, op->in[2]);
    tr_build_backward(b, &tr_def_groupnorm_grad, op, TR_IDS(dy, x, w, op->out[1]),
                      TR_IDS(dx, dweight, dbias));
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return 8.0 * (double)g->tensors[op->in[0]].count;
}

static int64_t keeps(const tr_layer *l)
{
    return ((const tr_groupnorm_attrs *)l->attrs)->groups;
}

const tr_op_def tr_def_groupnorm = {
    .name = "groupnorm",
    .example = "groupnorm: {groups: 8}",
    .doc = "Group normalization of features, a sequence or an image: each sample's channels in "
           "groups, over "
           "all of a group's places. Parameters: weight, bias (channels).",
    .fields = fields,
    .attrs_size = sizeof(tr_groupnorm_attrs),
    .learned = true,
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_CHANNELS,
    .infer = infer,
    .keeps = keeps,
    .forward = forward,
    .gradient = gradient,
    .flops = flops};

const tr_op_def tr_def_groupnorm_grad = {
    .name = "groupnorm.grad", .flops = flops, .share = TR_SHARE_FIRST};
