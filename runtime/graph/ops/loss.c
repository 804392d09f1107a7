/* Losses: the last op of a forward pass; in training they write the gradient of the model's output
 * at once. Which one is config's model.loss; build.c appends it. */
#include "runtime/graph/ops/registry.h"

static double flops(const tr_graph *g, const tr_op *op)
{
    return 6.0 * (double)g->tensors[op->in[0]].count;
}

/* Two softmaxes. */
static double soft_flops(const tr_graph *g, const tr_op *op)
{
    return 2 * flops(g, op);
}

/* Probabilities in the place of labels have rows of their own, one behind the other. */
static unsigned apart(const tr_graph *g, const tr_op *op)
{
    return g->tensors[op->in[1]].dtype == TR_I32 ? 1u << 0 | TR_APART_OUT : 0;
}

const tr_op_def tr_def_cross_entropy = {.name = "cross_entropy",
                                        .flops = flops,
                                        .applies = &tr_def_softmax,
                                        .share = TR_SHARE_FIRST,
                                        .apart = apart};

const tr_op_def tr_def_mse = {.name = "mse", .flops = flops};

const tr_op_def tr_def_l1 = {.name = "l1", .flops = flops};

const tr_op_def tr_def_huber = {.name = "huber", .flops = flops};

const tr_op_def tr_def_smooth_l1 = {.name = "smooth_l1", .flops = flops};

const tr_op_def tr_def_bce = {.name = "bce", .flops = flops, .applies = &tr_def_sigmoid};

const tr_op_def tr_def_focal = {.name = "focal", .flops = soft_flops, .applies = &tr_def_sigmoid};

/* Beside cross entropy, where a model is distilled (runtime/graph/distill.c). */
const tr_op_def tr_def_soft_loss = {.name = "soft_loss", .flops = soft_flops};

const tr_op_def tr_def_feature_loss = {.name = "feature_loss", .flops = flops};

const tr_op_def *const tr_losses[TR_LOSS_FOCAL + 1] = {[TR_LOSS_CROSS_ENTROPY] =
                                                           &tr_def_cross_entropy,
                                                       [TR_LOSS_MSE] = &tr_def_mse,
                                                       [TR_LOSS_BCE] = &tr_def_bce,
                                                       [TR_LOSS_L1] = &tr_def_l1,
                                                       [TR_LOSS_HUBER] = &tr_def_huber,
                                                       [TR_LOSS_SMOOTH_L1] = &tr_def_smooth_l1,
                                                       [TR_LOSS_FOCAL] = &tr_def_focal};

const tr_op_def *const tr_taught_losses[] = {
    [TR_TAUGHT_LOGITS] = &tr_def_soft_loss, [TR_TAUGHT_FEATURE] = &tr_def_feature_loss};
