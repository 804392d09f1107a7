/* The table of the config, continued: how training goes. */
#include "runtime/config/schema.h"

#define OPT(member)      offsetof(tr_optimizer_config, member)
#define SCHEDULE(member) offsetof(tr_schedule_config, member)

static const tr_field_word none_word[] = {{"none", 0}, {NULL, 0}};
static const tr_field_word max_word[] = {{"max", TR_MICRO_BATCH_MAX}, {NULL, 0}};
static const char *const syncs[] = {"all", "node", "none", NULL};
static const tr_field_word sync_words[] = {
    {"true", TR_SYNC_ALL}, {"false", TR_SYNC_NONE}, {NULL, 0}};
static const tr_field_word scale_words[] = {{"none", 0}, {"dynamic", -1}, {NULL, 0}};

static const char *const results[] = {"auto", "last", "best", "ema", NULL};
static const char *const precisions[] = {"fp32", "bf16", "fp16", NULL};
static const char *const nonfinites[] = {"skip", "stop", "rollback", NULL};

/* ---- optimizers ---------------------------------------------------------------------------- */

#define DECAY(text)                                                                                \
    TR_REAL("weight_decay", OPT(weight_decay), (text), 0, 1000, NULL,                              \
            "pulls weights towards zero; biases and norms are left out"),                          \
        TR_BOOL("decay_all", OPT(decay_all), "false", "weight decay for biases and norms too")
#define RATE(text)                                                                                 \
    TR_REAL("lr", OPT(lr), (text), 0, 1e6, NULL, "learning rate, of the global batch")
#define BETA(name, text, what) TR_REAL(#name, OPT(name), (text), 0, 0.999999, NULL, (what))
#define EPS(text)                                                                                  \
    TR_REAL("eps", OPT(eps), (text), 1e-30, 1, NULL,                                               \
            "added to the root of the mean squared gradient")
#define MOMENTS                                                                                    \
    BETA(beta1, "0.9", "decay of the mean gradient"),                                              \
        BETA(beta2, "0.999", "decay of the mean squared gradient")

static const tr_field sgd[] = {
    RATE(NULL),
    TR_REAL("momentum", OPT(momentum), "0", 0, 0.999999, NULL,
            "decay of the running gradient; 0: none is kept"),
    TR_BOOL("nesterov", OPT(nesterov), "false", "Nesterov's momentum; needs momentum"),
    DECAY("0"),
    TR_END,
};
static const tr_field adamw[] = {
    RATE("0.001"), MOMENTS, EPS("1e-8"), DECAY("0.01"), TR_END,
};
static const tr_field lion[] = {
    RATE("0.0001"),
    BETA(beta1, "0.9", "weight of the running gradient in the update's sign"),
    BETA(beta2, "0.99", "decay of the running gradient"),
    DECAY("0"),
    TR_END,
};
static const tr_field adam[] = {
    RATE("0.001"), MOMENTS, EPS("1e-8"), DECAY("0"), TR_END,
};
static const tr_field rmsprop[] = {
    RATE("0.01"),
    TR_REAL("alpha", OPT(beta2), "0.99", 0, 0.999999, NULL, "decay of the mean squared gradient"),
    EPS("1e-8"),
    TR_REAL("momentum", OPT(momentum), "0", 0, 0.999999, NULL,
            "decay of the running step; 0: none is kept"),
    TR_BOOL("centered", OPT(centered), "false",
            "divides by the deviation of the gradient, not by its root mean square"),
    DECAY("0"),
    TR_END,
};
#define ADAPT                                                                                      \
    TR_BOOL("adapt_all", OPT(adapt_all), "false",                                                  \
            "steps of biases and norms go by their norms, too, not only those of weights")
static const tr_field lars[] = {
    RATE(NULL),
    TR_REAL("momentum", OPT(momentum), "0.9", 0, 0.999999, NULL,
            "decay of the running gradient; 0: none is kept"),
    TR_REAL("trust_coefficient", OPT(trust_coefficient), "0.001", 1e-9, 1e3, NULL,
            "length of a step as a share of the weight's"),
    TR_REAL("eps", OPT(eps), "1e-8", 1e-30, 1, NULL,
            "added to what the weight's norm is divided by"),
    DECAY("0"),
    ADAPT,
    TR_END,
};
static const tr_field lamb[] = {
    RATE("0.001"), MOMENTS, EPS("1e-6"), DECAY("0.01"), ADAPT, TR_END,
};
static const tr_variant_def optimizers[] = {
    [TR_OPT_SGD] = {"sgd", sgd, "Stochastic gradient descent", 0},
    [TR_OPT_ADAMW] = {"adamw", adamw, "AdamW (Loshchilov and Hutter, 2019)", 0},
    [TR_OPT_LION] = {"lion", lion, "Lion (Chen et al., 2023)", 0},
    [TR_OPT_ADAM] =
        {"adam", adam,
         "Adam (Kingma and Ba, 2015): weight decay is part of the gradient, unlike adamw's", 0},
    [TR_OPT_RMSPROP] = {"rmsprop", rmsprop, "RMSprop (Tieleman and Hinton, 2012), as PyTorch's", 0},
    [TR_OPT_LARS] =
        {"lars", lars,
         "LARS (You et al., 2017), for large batches: SGD with momentum, where g + "
         "weight_decay w of each parameter is multiplied by trust_coefficient |w| / (|g| "
         "+ weight_decay |w| + eps). Norms are of whole parameters with any number of "
         "ranks, the same bits however they are sharded",
         0},
    [TR_OPT_LAMB] = {"lamb", lamb,
                     "LAMB (You et al., 2019), for large batches: AdamW's step u, weight decay in "
                     "it, of each parameter multiplied by |w| / |u|",
                     0},
    {0}};

const char *tr_optimizer_name(tr_optimizer_kind kind)
{
    return optimizers[kind].name;
}

/* ---- schedules ----------------------------------------------------------------------------- */

#define WARMUP                                                                                     \
    TR_SPAN("warmup", SCHEDULE(warmup), "0", 0, 1e12, "steps",                                     \
            "the learning rate rises in a line over the first so many"),                           \
        TR_REAL(                                                                                   \
            "warmup_start", SCHEDULE(warmup_start), "auto", 0, 1, NULL,                            \
            "learning rate of the first step, as a fraction of lr, which the last step of the "    \
            "warm-up has; auto: 1 / warmup",                                                       \
            ZERO("auto"))
#define FINAL                                                                                      \
    TR_REAL(                                                                                       \
        "final", SCHEDULE(final), "0", 0, 1, NULL,                                                 \
        "where the curve ends, as a fraction of lr: with n steps after the warm-up, step i of "    \
        "them (from 0) is at i/n of it, so that the end lies one step behind the last and no "     \
        "step is spent at 0; as PyTorch's CosineAnnealingLR(T_max=n) and "                         \
        "LinearLR(total_iters=n) when stepped after every update")
#define GAMMA                                                                                      \
    TR_REAL("gamma", SCHEDULE(gamma), "0.1", 1e-9, 1, NULL, "factor of the learning rate each time")

static const char *const anneals[] = {"cos", "linear", NULL};
#define RESTART                                                                                    \
    TR_SPANS("restart", SCHEDULE(restart), "", 1, 1e12, "steps",                                   \
             "when the curve begins anew, warm-up and all, ascending: each part, up to "           \
             "the next one or the end, is as a run of its length. So a run that is extended goes " \
             "on from a full learning rate")

static const tr_field constant[] = {WARMUP, TR_END};
static const tr_field step[] = {
    TR_SPANS("milestones", SCHEDULE(milestones), NULL, 1, 1e9, "epochs",
             "when the learning rate drops, ascending; counted from the run's first step, the "
             "warm-up's among them"),
    GAMMA,
    WARMUP,
    TR_END,
};
static const tr_field cosine[] = {WARMUP, FINAL, RESTART, TR_END};
static const tr_field linear[] = {WARMUP, FINAL, RESTART, TR_END};
static const tr_field polynomial[] = {
    TR_REAL("power", SCHEDULE(power), "1", 1e-3, 100, NULL,
            "the learning rate falls as (1 - i/n)^power; as PyTorch's PolynomialLR(total_iters=n)"),
    WARMUP,
    FINAL,
    RESTART,
    TR_END,
};
static const tr_field exponential[] = {
    TR_REAL("gamma", SCHEDULE(gamma), NULL, 1e-9, 1, NULL, "factor of the learning rate each time"),
    TR_SPAN("period", SCHEDULE(period), "1", 1e-9, 1e9, "epochs",
            "how often: all at once at the end of each; 1 step falls smoothly. Counted from the "
            "run's first step: step i has lr times gamma^floor(i / period), also the first one "
            "behind a warm-up of i steps"),
    WARMUP,
    TR_END,
};
static const tr_field restarts[] = {
    TR_SPAN("period", SCHEDULE(period), NULL, 1e-9, 1e9, "epochs", "length of the first cycle"),
    TR_INT("mult", SCHEDULE(mult), "1", 1, 1000, NULL,
           "each cycle is so many times as long as the one before"),
    TR_REAL("final", SCHEDULE(final), "0", 0, 1, NULL,
            "where each cycle ends, as a fraction of lr"),
    WARMUP,
    TR_END,
};
static const tr_field one_cycle[] = {
    TR_REAL("pct_start", SCHEDULE(pct_start), "0.3", 1e-6, 1, NULL,
            "share of the run in which the learning rate rises"),
    TR_CHOICE("anneal_strategy", SCHEDULE(anneal), anneals, "cos",
              "how it goes from one to the next: half a cosine, or a line"),
    TR_REAL("div_factor", SCHEDULE(div_factor), "25", 1, 1e9, NULL,
            "the run begins with lr / div_factor"),
    TR_REAL("final_div_factor", SCHEDULE(final_div_factor), "10000", 1, 1e12, NULL,
            "its last step has lr / div_factor / final_div_factor"),
    TR_BOOL("three_phase", SCHEDULE(three_phase), "false",
            "down to where it began in as long as it rose, and only then to the end"),
    RESTART,
    TR_END,
};
static const tr_field plateau[] = {
    TR_INT("patience", SCHEDULE(patience), "10", 0, 1e9, "evaluations",
           "without improvement before the learning rate drops"),
    TR_REAL("threshold", SCHEDULE(threshold), "0.0001", 0, 1, NULL,
            "relative improvement of the loss that counts"),
    GAMMA,
    WARMUP,
    TR_END,
};
static const tr_variant_def schedules[] = {
    [TR_SCHEDULE_CONSTANT] = {"constant", constant, "The learning rate stays", 0},
    [TR_SCHEDULE_STEP] = {"step", step, "Drops at given times", 0},
    [TR_SCHEDULE_COSINE] = {"cosine", cosine, "Falls along half a cosine to the last step", 0},
    [TR_SCHEDULE_LINEAR] = {"linear", linear, "Falls in a line to the last step", 0},
    [TR_SCHEDULE_PLATEAU] = {"plateau", plateau, "Drops when the evaluation loss stops improving",
                             0},
    [TR_SCHEDULE_ONE_CYCLE] =
        {"one_cycle", one_cycle,
         "Up to lr and down to next to nothing (Smith and Topin, 2018), as PyTorch's OneCycleLR "
         "with cycle_momentum=False: the last step of the run has the end's",
         0},
    [TR_SCHEDULE_EXPONENTIAL] = {"exponential", exponential,
                                 "Falls by the same factor again and again, as PyTorch's "
                                 "ExponentialLR",
                                 0},
    [TR_SCHEDULE_POLYNOMIAL] = {"polynomial", polynomial,
                                "Falls as a power of what is left of the run", 0},
    [TR_SCHEDULE_RESTARTS] = {"restarts", restarts,
                              "Half a cosine again and again (SGDR; Loshchilov and Hutter, 2017), "
                              "as PyTorch's CosineAnnealingWarmRestarts when stepped after every "
                              "update; counted from the end of the warm-up",
                              0},
    {0}};

/* ---- the rest ------------------------------------------------------------------------------ */

static const tr_field every[] = {
    TR_INT("every", IN(train.recompute, every), NULL, 1, 1e6, "layers", "length of a segment"),
    TR_END,
};
static const tr_field segments[] = {
    TR_SHAPED("segments", IN(train.recompute, segments), NULL,
              "list of [first layer, last layer], by their names",
              "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"array\",\"minItems\":2,"
              "\"maxItems\":2,\"items\":{\"type\":[\"string\",\"number\"]}}}"),
    TR_END,
};
static const tr_variant_def recomputes[] = {
    [TR_RECOMPUTE_NONE] = {"none", NULL, "Every activation that the backward pass needs is kept",
                           0},
    [TR_RECOMPUTE_BLOCKS] = {"blocks", NULL,
                             "Residual blocks keep their input and run again in the backward pass",
                             0},
    [TR_RECOMPUTE_EVERY] = {"every", every,
                            "Segments of so many layers keep their input and run again", 0},
    [TR_RECOMPUTE_SEGMENTS] =
        {"segments", segments,
         "These parts of the model keep what comes in and run again, as far as their backward pass "
         "needs it: what `auto` chose is written so into the run's config",
         0},
    [TR_RECOMPUTE_AUTO] = {"auto", NULL,
                           "The parts that bring training below run.memory_limit for the least "
                           "arithmetic, by planning; without a limit none",
                           0},
    {0}};

#define EVERY(outer)                                                                               \
    TR_INT("every_steps", IN(outer, every_steps), "none", 1, 1e12, "steps", "after each so many",  \
           ZERO("none")),                                                                          \
        TR_INT("every_epochs", IN(outer, every_epochs), "auto", 1, 1e9, "epochs",                  \
               "after each so many; auto: 1 where every_steps is none, else none",                 \
               .auto_text = "auto", .auto_value = -1, .words = none_word)

static const tr_field checkpoint[] = {
    EVERY(train.checkpoint),
    TR_INT("keep", IN(train.checkpoint, keep), "3", 1, 1e9, "files", "newest checkpoints that stay",
           ZERO("all")),
    TR_BOOL(
        "best", IN(train.checkpoint, best), "true",
        "keep the one with the lowest evaluation loss as best.h5; without data.eval there is none"),
    TR_END,
};
static const tr_field eval[] = {
    EVERY(train.eval),
    TR_INT("batch", IN(train.eval, batch), "auto", 1, 2147483647, "samples",
           "global batch of evaluations; auto: train.batch", ZERO("auto")),
    TR_END,
};
static const tr_field early_stop[] = {
    TR_INT("patience", IN(train.early_stop, patience), "none", 1, 1e9, "evaluations",
           "training ends after so many without improvement", ZERO("none")),
    TR_REAL("min_delta", IN(train.early_stop, min_delta), "0", 0, 1e9, NULL,
            "the loss must fall by more than this to count as improvement"),
    TR_END,
};

static const tr_variant_def metrics[] = {
    [TR_METRIC_ACCURACY] =
        {"accuracy", NULL,
         "The share of samples whose class was predicted (cross_entropy, bce, focal)", 0},
    [TR_METRIC_TOP5] = {"top5", NULL,
                        "The share of samples whose class is among the five most probable "
                        "(cross_entropy, more than five classes)",
                        0},
    [TR_METRIC_F1] = {"f1", NULL,
                      "The harmonic mean of precision and recall: of two classes that of class 1, "
                      "else the mean over classes (cross_entropy, bce, focal)",
                      0},
    [TR_METRIC_AUC] = {"auc", NULL,
                       "The area under the ROC curve: of two classes that of class 1, else the "
                       "mean over classes (cross_entropy, bce, focal)",
                       0},
    [TR_METRIC_MAE] = {"mae", NULL, "The mean absolute error (losses of values)", 0},
    [TR_METRIC_R2] = {"r2", NULL,
                      "The coefficient of determination, a mean over outputs (losses of values)",
                      0},
    [TR_METRIC_PERPLEXITY] =
        {"perplexity", NULL,
         "exp(loss) (cross_entropy without label_smoothing, gamma, class_weights and "
         "weights; measured by itself where each token of a sequence has a label)",
         0},
    [TR_METRIC_BITS_PER_BYTE] = {"bits_per_byte", NULL,
                                 "loss / ln 2, of data of format text, or of tokens by "
                                 "bytes_per_token (cross_entropy; likewise)",
                                 0},
    {0}};

const char *tr_metric_name(tr_metric metric)
{
    return metrics[metric].name;
}

static const tr_field distill[] = {
    TR_DISTILL_FIELDS(0),
    TR_END,
};

const tr_field tr_train_fields[] = {
    TR_INT("epochs", IN(train, epochs), "none", 1, 1e9, "epochs",
           "how long to train; this or steps", ZERO("none"), CHANGES(LENGTH)),
    TR_INT("steps", IN(train, steps), "none", 1, 1e12, "steps",
           "how long to train; wins over epochs", ZERO("none"), CHANGES(LENGTH)),
    TR_REAL("max_seconds", IN(train, max_seconds), "none", 0.001, 1e9, "s",
            "wall-clock limit of one start: a checkpoint, then exit status 75", ZERO("none"),
            CHANGES(NOTHING)),
    TR_INT("batch", IN(train, batch), NULL, 1, 2147483647, "samples",
           "global batch of a step, over all ranks"),
    TR_INT("micro_batch", IN(train, micro_batch), "auto", 1, 2147483647, "samples",
           "what one rank pushes through at once; the rest of its share is accumulated. auto: the "
           "whole share, or what run.memory_limit leaves room for; max: the largest that fits, by "
           "planning, into run.memory_limit or what is free, with nothing recomputed where one "
           "does so. A limit on memory: how many micro-batches it makes depends on the number "
           "of ranks, and with it what batchnorm normalizes over; there use accumulate",
           .auto_text = "auto", .auto_value = 0, .words = max_word),
    TR_INT("accumulate", IN(train, accumulate), "auto", 1, 2147483647, "micro-batches",
           "the batch is cut into so many, each shared by all ranks, whose gradients are added up: "
           "synchronized batchnorm sees batch / accumulate samples with any number of ranks. A "
           "short last batch is cut into as few of that size as hold it. auto: as micro_batch asks",
           ZERO("auto")),
    TR_INT("log_every", IN(train, log_every), "10", 1, 1e9, "steps", "distance of step records",
           CHANGES(NOTHING)),
    TR_BOOL("tf32", IN(train, tf32), "false",
            "GPUs, precision fp32: products round their operands to TF32 (10 bits of mantissa)"),
    TR_CHOICE("precision", IN(train, precision), precisions, "fp32",
              "of activations and arithmetic; master weights are always fp32. bf16: CPUs, and GPUs "
              "from compute capability 8.0; fp16: GPUs only"),
    TR_REAL("loss_scale", IN(train, loss_scale), "auto", 1e-6, 1e12, NULL,
            "factor that keeps small gradients from vanishing; auto: dynamic for fp16, else none",
            .auto_text = "auto", .auto_value = -2, .words = scale_words),
    TR_REAL("loss_scale_init", IN(train, loss_scale_init), "65536", 1, 1e12, NULL,
            "dynamic: the first scale"),
    TR_INT("loss_scale_window", IN(train, loss_scale_window), "2000", 1, 1e9, "steps",
           "dynamic: so many without overflow before the scale doubles"),
    TR_ENTRY(
        "sync_batchnorm", CHOICE, IN(train, sync_batchnorm), "all",
        "batch statistics over all ranks, over those of a node, or of each rank's share alone; "
        "true is all, false none. With node over several nodes, and with none, ranks keep "
        "running statistics of their own, and rank 0's are everybody's at an evaluation or a "
        "checkpoint",
        .choices = syncs, .words = sync_words),
    TR_REAL(
        "clip_norm", IN(train, clip_norm), "none", 1e-30, 1e30, NULL,
        "longest gradient over the whole model (L2); longer ones are scaled down to exactly "
        "this (PyTorch's clip_grad_norm_ divides by the norm plus 1e-6, and ends a little short)",
        ZERO("none")),
    TR_VARIANT("optimizer", IN(train, optimizer.kind), optimizers, IN(train, optimizer.o), "adamw",
               "how gradients change weights"),
    TR_SHAPED(
        "groups", IN(train, groups), "",
        "parameters that are trained otherwise, as PyTorch's param_groups: [{match: \"head.*\", "
        "lr: 0.01, weight_decay: 0}]. match: a pattern of names as `trainer inspect` lists them "
        "(`head.weight`), or a list; each * stands for any text. The first group that matches "
        "counts. lr: in the place of optimizer.lr, and follows the schedule alike; weight_decay, "
        "decay_all, and momentum, beta1, beta2 (rmsprop: alpha) and eps as far as the optimizer "
        "has them (with momentum 0 it has no buffer): in the place of the optimizer's. What is "
        "left out is the optimizer's. A layer's lr_factor and decay_factor are multiplied in",
        "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/group\"}}"),
    TR_SHAPED(
        "freeze", IN(train, freeze), "",
        "parameters that stay as they are, a pattern or a list: [\"conv*\", \"layer1.*\"]; as "
        "PyTorch's requires_grad = False. They have no gradients, no moments, no part in "
        "clip_norm. "
        "A layer of the model may say `freeze: true` of itself, too",
        TR_SCHEMA_NAMES),
    TR_BOOL("freeze_statistics", IN(train, freeze_statistics), "false",
            "batchnorm layers whose `running_mean` a pattern of freeze matches normalize by their "
            "running statistics, which stay as they are (PyTorch's .eval())"),
    TR_VARIANT("schedule", IN(train, schedule.kind), schedules, IN(train, schedule.o), "constant",
               "the learning rate over time"),
    TR_VARIANT("recompute", IN(train, recompute.kind), recomputes, IN(train, recompute), "auto",
               "trades time for memory in the backward pass; changes no number", CHANGES(NOTHING)),
    TR_MAP("checkpoint", IN(train, checkpoint), checkpoint, "", "when to save what a resume needs",
           CHANGES(NOTHING)),
    TR_MAP(
        "eval", IN(train, eval), eval, "",
        "when to evaluate on data.eval: as said here, and after the last step; with none for both "
        "steps and epochs never",
        CHANGES(EVALUATIONS)),
    TR_MAP("early_stop", IN(train, early_stop), early_stop, "", "when to end before time",
           CHANGES(EVALUATIONS)),
    TR_BLOCK(
        "distill", IN(train, distill), distill, "",
        "distillation: what is learned from another model, for cross_entropy; a sample counts as "
        "its class does. The teacher runs on each batch as it was augmented"),
    TR_REAL("ema", IN(train, ema), "none", 1e-6, 0.9999999, NULL,
            "decay of a running average of the weights: average = ema * average + (1 - ema) * "
            "weights after every update, from the initial weights on (PyTorch's AveragedModel "
            "starts with those after the first update instead)",
            ZERO("none")),
    TR_CHOICE("result", IN(train, result), results, "auto",
              "whose weights model.h5 holds: those after the last step, those of the evaluation "
              "with the lowest loss (checkpoint.best), or their running average after the last "
              "step (ema). auto: ema where it is set, else last",
              CHANGES(NOTHING)),
    TR_ENTRY("metrics", LIST, IN(train, metrics), "",
             "what evaluations measure beside the loss; where it is not given, accuracy and top5 "
             "where the loss has them. f1, auc, mae and r2 keep a rank's "
             "outputs and targets in memory while it evaluates",
             .variants = metrics, CHANGES(NOTHING)),
    TR_CHOICE("on_nonfinite", IN(train, on_nonfinite), nonfinites, "skip",
              "gradient with NaN or infinity: skip the update, stop, or roll back to the last "
              "checkpoint"),
    TR_INT("max_skips_in_a_row", IN(train, max_skips_in_a_row), "10", 1, 1e9, "steps",
           "skip: training fails after so many skipped updates in a row. Those in which a dynamic "
           "loss scale is halved while the loss is finite do not count: fp16 begins with some",
           CHANGES(NOTHING)),
    TR_INT("max_skips", IN(train, max_skips), "auto", 1, 1e9, "steps",
           "skip: training fails beyond so many skipped updates in all, counted alike. auto: half "
           "of the run's steps",
           ZERO("auto"), CHANGES(NOTHING)),
    TR_INT("max_rollbacks", IN(train, max_rollbacks), "3", 1, 1e6, NULL,
           "rollback: training fails after so many", CHANGES(NOTHING)),
    TR_REAL("rollback_lr", IN(train, rollback_lr), "0.5", 1e-6, 1, NULL,
            "rollback: factor of the learning rate each time"),
    TR_END,
};
