/* Batch normalization over all but the channels (Ioffe and Szegedy 2015), in parts, so that
 * statistics can be merged over ranks in between: stats, merge, normalize; backward likewise. Eval
 * mode normalizes by the running statistics, and so does training where a layer's `statistics` say
 * so: they take the batch's place, stay as they are, and backward they are constants. */
#include "runtime/graph/ops/registry.h"

#include <math.h>

static const char *const statistics[] = {"batch", "running", NULL};

typedef struct {
    tr_batchnorm_attrs a;
    bool affine;
    int statistics;
} attributes;

static const tr_field fields[] = {
    TR_REAL("eps", offsetof(attributes, a.eps), "1e-5", 1e-12, 1, NULL, "added to the variance"),
    TR_REAL("momentum", offsetof(attributes, a.momentum), "0.1", 0, 1, NULL,
            "weight of a batch in the running statistics"),
    TR_BOOL("affine", offsetof(attributes, affine), "true", "it has a weight and a bias"),
    TR_CHOICE("statistics", offsetof(attributes, statistics), statistics, "batch",
              "what training normalizes by: batch, or running, which then stay as they are, as in "
              "evaluation (a trunk that is only tuned)"),
    {0},
};

/* Operand places (ops.h): of batchnorm and batchnorm.infer; of batchnorm.grad_stats. */
enum { RUNNING_MEAN = 4, RESIDUAL = 6, INFER_RESIDUAL = 5 };
enum { MASK = 4, SECOND = 5 };

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    tr_status st = TR_OK;
    if (l->inputs[0].ndim != 2)
        TR_TRY(
            tr_layer_rank(l, 1, 3, "(features), (channels, length) or (channels, height, width)"));
    l->output = l->inputs[0];
    int64_t channels = l->output.dims[0];
    const tr_param_decl weight = {
        .name = "weight", .ndim = 1, .dims = {channels}, .init = TR_INIT_ONES};
    const tr_param_decl bias = {
        .name = "bias", .ndim = 1, .dims = {channels}, .init = TR_INIT_ZEROS};
    if (((const attributes *)l->attrs)->affine) {
        TR_TRY(tr_layer_param(mk, l, &weight));
        TR_TRY(tr_layer_param(mk, l, &bias));
    }
    TR_TRY(tr_layer_state(mk, l, "running_mean", channels, 0.0f));
    TR_TRY(tr_layer_state(mk, l, "running_var", channels, 1.0f));
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const bool fixed = ((const attributes *)l->attrs)->statistics == 1;
    const int w = l->nparams ? tr_build_param(b, l, 0) : -1;
    const int x = tr_build_input(b, l, 0), bias = l->nparams ? tr_build_param(b, l, 1) : -1;
    int mean = tr_build_state(b, l, 0), var = tr_build_state(b, l, 1);
    if (!tr_build_train(b)) {
        int y = tr_build_output(b, l);
        tr_build_forward(b, &tr_def_batchnorm_infer, l, TR_IDS(x, w, bias, mean, var, -1),
                         TR_IDS(y));
        return y;
    }
    int64_t n = 1 + 2 * l->output.dims[0];
    int stats = tr_build_new(b, l->name, "stats", TR_F64, 1, &n);
    if (fixed) {
        tr_build_forward(b, &tr_def_batchnorm_running, l, TR_IDS(mean, var), TR_IDS(stats));
        mean = var = -1;
    } else {
        tr_build_forward(b, &tr_def_batchnorm_stats, l, TR_IDS(x), TR_IDS(stats));
    }
    if (tr_build_sync(b) && !fixed) {
        int own = stats;
        stats = tr_build_new(b, l->name, "merged", TR_F64, 1, &n);
        tr_build_forward(b, &tr_def_batchnorm_merge, l, TR_IDS(own), TR_IDS(stats));
    }
    int y = tr_build_output(b, l);
    tr_build_forward(b, &tr_def_batchnorm, l, TR_IDS(x, w, bias, stats, mean, var, -1), TR_IDS(y));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int dy = tr_grad_of(b, op->out[0]), x = op->in[0], w = op->in[1], stats = op->in[3];
    const bool fixed = op->in[RUNNING_MEAN] < 0;
    const bool learned = tr_grad_learned(b, w) || tr_grad_learned(b, op->in[2]);
    const tr_tensor *y = tr_build_tensor(b, op->out[0]);
    int64_t n = 2 * y->dims[1];
    int dz = dy, sums = -1;
    if (!fixed || learned) {
        int dweight = tr_grad_param(b, w), dbias = tr_grad_param(b, op->in[2]);
        dz = tr_build_like(b, op->layer, "dz", y->dtype, op->out[0]);
        sums = tr_build_new(b, op->layer, "sums", TR_F64, 1, &n);
        tr_build_backward(b, &tr_def_batchnorm_grad_stats, op, TR_IDS(dy, x, stats, w, -1, -1),
                          TR_IDS(dz, sums, dweight, dbias));
        tr_build_share(b, dz, dy);
    }
    if (!tr_grad_wanted(b, x)) return;
    if (tr_build_sync(b) && !fixed) {
        int own = sums;
        sums = tr_build_new(b, op->layer, "merged_sums", TR_F64, 1, &n);
        tr_build_backward(b, &tr_def_batchnorm_grad_merge, op, TR_IDS(own), TR_IDS(sums));
    }
    tr_build_backward(b, &tr_def_batchnorm_grad_input, op,
                      TR_IDS(dz, fixed ? -1 : x, stats, w, fixed ? -1 : sums),
                      TR_IDS(tr_grad_new(b, x)));
}

static bool passes_dy(const tr_graph *g, const tr_op *op)
{
    (void)g;
    return op->in[MASK] < 0 && op->in[SECOND] < 0;
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return 4.0 * (double)g->tensors[op->in[0]].count;
}

static void affine(const tr_layer *l, const float *const *states, int64_t c, double *scale,
                   double *shift)
{
    const tr_batchnorm_attrs *a = l->attrs; /* what `attributes` begins with */
    *scale = 1 / sqrt((double)states[1][c] + a->eps);
    *shift = -*scale * (double)states[0][c];
}

const tr_op_def tr_def_batchnorm = {
    .name = "batchnorm",
    .example = "batchnorm: {momentum: 0.05}",
    .doc = "Batch normalization over all but the channels. Parameters: weight, bias "
           "(channels). State: running_mean, running_var. In training statistics are those of a "
           "micro-batch, over all ranks (train.accumulate, train.sync_batchnorm). Over one value a "
           "channel it puts out its bias, and running_var stays: such steps, which PyTorch refuses "
           "when it comes to them, are warned of before the first, so that a last batch of one "
           "sample does not end a run after an epoch.",
    .fields = fields,
    .attrs_size = sizeof(attributes),
    .learned = true,
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_CHANNELS,
    .infer = infer,
    .forward = forward,
    .gradient = gradient,
    .flops = flops,
    .collective = true,
    .channels = TR_CHANNELS_EACH,
    .affine = affine,
    .residual = RESIDUAL,
    .acts_train = TR_ACT_IS(TR_ACT_RELU)};

const tr_op_def tr_def_batchnorm_stats = {.name = "batchnorm.stats",
                                          .flops = flops,
                                          .collective = true,
                                          .statistics = true,
                                          .over_batch = true};

const tr_op_def tr_def_batchnorm_running = {
    .name = "batchnorm.running", .collective = true, .statistics = true};

const tr_op_def tr_def_batchnorm_merge = {
    .name = "batchnorm.merge", .collective = true, .gathers = true, .statistics = true};

const tr_op_def tr_def_batchnorm_infer = {.name = "batchnorm.infer",
                                          .flops = flops,
                                          .residual = INFER_RESIDUAL,
                                          .pitched = {.in = 1u << 0},
                                          .acts_infer = TR_ACT_IS(TR_ACT_RELU)};

const tr_op_def tr_def_batchnorm_grad_stats = {.name = "batchnorm.grad_stats",
                                               .flops = flops,
                                               .collective = true,
                                               .share = TR_SHARE_FIRST,
                                               .view = passes_dy,
                                               .absorbs = {.mask = MASK, .second = SECOND}};

const tr_op_def tr_def_batchnorm_grad_merge = {
    .name = "batchnorm.grad_merge", .collective = true, .gathers = true};

const tr_op_def tr_def_batchnorm_grad_input = {
    .name = "batchnorm.grad_input", .flops = flops, .share = TR_SHARE_FIRST};
