/* The table of the config, continued: how training goes. */
#include "runtime/config/schema.h"

#define OPT(member)      offsetof(tr_optimizer_config, member)
#define SCHEDULE(member) offsetof(tr_schedule_config, member)

static const tr_field_word none_word[] = {{"none", 0}, {NULL, 0}};
static const tr_field_word scale_words[] = {{"none", 0}, {"dynamic", -1}, {NULL, 0}};

static const char *const precisions[] = {"fp32", "bf16", "fp16", NULL};
static const char *const nonfinites[] = {"skip", "stop", "rollback", NULL};

/* ---- optimizers ---------------------------------------------------------------------------- */

#define DECAY(text)                                                                                \
    {.key = "weight_decay",                                                                        \
     .kind = TR_FIELD_REAL,                                                                        \
     .offset = OPT(weight_decay),                                                                  \
     .dflt = (text),                                                                               \
     .min = 0,                                                                                     \
     .max = 1000,                                                                                  \
     .doc = "pulls weights towards zero; biases and norms are left out"},                          \
    {                                                                                              \
        .key = "decay_all", .kind = TR_FIELD_BOOL, .offset = OPT(decay_all), .dflt = "false",      \
        .doc = "weight decay for biases and norms too"                                             \
    }
#define RATE(text)                                                                                 \
    {                                                                                              \
        .key = "lr", .kind = TR_FIELD_REAL, .offset = OPT(lr), .dflt = (text), .min = 0,           \
        .max = 1e6, .doc = "learning rate, of the global batch"                                    \
    }
#define BETA(name, text, what)                                                                     \
    {                                                                                              \
        .key = #name, .kind = TR_FIELD_REAL, .offset = OPT(name), .dflt = (text), .min = 0,        \
        .max = 0.999999, .doc = (what)                                                             \
    }

static const tr_field sgd[] = {RATE(NULL),
                               {.key = "momentum",
                                .kind = TR_FIELD_REAL,
                                .offset = OPT(momentum),
                                .dflt = "0",
                                .min = 0,
                                .max = 0.999999,
                                .doc = "decay of the running gradient; 0: none is kept"},
                               {.key = "nesterov",
                                .kind = TR_FIELD_BOOL,
                                .offset = OPT(nesterov),
                                .dflt = "false",
                                .doc = "Nesterov's momentum; needs momentum"},
                               DECAY("0"),
                               {.key = NULL}};
static const tr_field adamw[] = {RATE("0.001"),
                                 BETA(beta1, "0.9", "decay of the mean gradient"),
                                 BETA(beta2, "0.999", "decay of the mean squared gradient"),
                                 {.key = "eps",
                                  .kind = TR_FIELD_REAL,
                                  .offset = OPT(eps),
                                  .dflt = "1e-8",
                                  .min = 1e-30,
                                  .max = 1,
                                  .doc = "added to the root of the mean squared gradient"},
                                 DECAY("0.01"),
                                 {.key = NULL}};
static const tr_field lion[] = {
    RATE("0.0001"),
    BETA(beta1, "0.9", "weight of the running gradient in the update's sign"),
    BETA(beta2, "0.99", "decay of the running gradient"),
    DECAY("0"),
    {.key = NULL}};
static const tr_variant_def optimizers[] = {
    [TR_OPT_SGD] = {"sgd", sgd, "Stochastic gradient descent"},
    [TR_OPT_ADAMW] = {"adamw", adamw, "AdamW (Loshchilov and Hutter, 2019)"},
    [TR_OPT_LION] = {"lion", lion, "Lion (Chen et al., 2023)"},
    {0}};

/* ---- schedules ----------------------------------------------------------------------------- */

#define WARMUP                                                                                     \
    {.key = "warmup",                                                                              \
     .kind = TR_FIELD_INT,                                                                         \
     .offset = SCHEDULE(warmup),                                                                   \
     .dflt = "0",                                                                                  \
     .min = 0,                                                                                     \
     .max = 1e12,                                                                                  \
     .unit = "steps",                                                                              \
     .doc = "the learning rate rises in a line over the first so many"},                           \
    {                                                                                              \
        .key = "warmup_start", .kind = TR_FIELD_REAL, .offset = SCHEDULE(warmup_start),            \
        .dflt = "0", .min = 0, .max = 1, .doc = "where the warm-up starts, as a fraction of lr"    \
    }
#define FINAL                                                                                      \
    {                                                                                              \
        .key = "final", .kind = TR_FIELD_REAL, .offset = SCHEDULE(final), .dflt = "0", .min = 0,   \
        .max = 1, .doc = "learning rate at the last step, as a fraction of lr"                     \
    }
#define GAMMA                                                                                      \
    {                                                                                              \
        .key = "gamma", .kind = TR_FIELD_REAL, .offset = SCHEDULE(gamma), .dflt = "0.1",           \
        .min = 1e-9, .max = 1, .doc = "factor of the learning rate each time"                      \
    }

static const tr_field constant[] = {WARMUP, {.key = NULL}};
static const tr_field step[] = {{.key = "milestones",
                                 .kind = TR_FIELD_INTS,
                                 .offset = SCHEDULE(milestones),
                                 .min = 1,
                                 .max = 1e9,
                                 .unit = "epochs",
                                 .doc = "epochs at which the learning rate drops, ascending"},
                                GAMMA,
                                WARMUP,
                                {.key = NULL}};
static const tr_field cosine[] = {WARMUP, FINAL, {.key = NULL}};
static const tr_field linear[] = {WARMUP, FINAL, {.key = NULL}};
static const tr_field plateau[] = {{.key = "patience",
                                    .kind = TR_FIELD_INT,
                                    .offset = SCHEDULE(patience),
                                    .dflt = "10",
                                    .min = 0,
                                    .max = 1e9,
                                    .unit = "evaluations",
                                    .doc = "without improvement before the learning rate drops"},
                                   {.key = "threshold",
                                    .kind = TR_FIELD_REAL,
                                    .offset = SCHEDULE(threshold),
                                    .dflt = "0.0001",
                                    .min = 0,
                                    .max = 1,
                                    .doc = "relative improvement of the loss that counts"},
                                   GAMMA,
                                   WARMUP,
                                   {.key = NULL}};
static const tr_variant_def schedules[] = {
    [TR_SCHEDULE_CONSTANT] = {"constant", constant, "The learning rate stays"},
    [TR_SCHEDULE_STEP] = {"step", step, "Drops at given epochs"},
    [TR_SCHEDULE_COSINE] = {"cosine", cosine, "Falls along half a cosine to the last step"},
    [TR_SCHEDULE_LINEAR] = {"linear", linear, "Falls in a line to the last step"},
    [TR_SCHEDULE_PLATEAU] = {"plateau", plateau, "Drops when the evaluation loss stops improving"},
    {0}};

/* ---- the rest ------------------------------------------------------------------------------ */

static const tr_field every[] = {{.key = "every",
                                  .kind = TR_FIELD_INT,
                                  .offset = IN(train.recompute, every),
                                  .min = 1,
                                  .max = 1e6,
                                  .unit = "layers",
                                  .doc = "length of a segment"},
                                 {.key = NULL}};
static const tr_variant_def recomputes[] = {
    [TR_RECOMPUTE_NONE] = {"none", NULL, "Every activation that the backward pass needs is kept"},
    [TR_RECOMPUTE_BLOCKS] = {"blocks", NULL,
                             "Residual blocks keep their input and run again in the backward pass"},
    [TR_RECOMPUTE_EVERY] = {"every", every,
                            "Segments of so many layers keep their input and run again"},
    {0}};

#define EVERY(outer)                                                                               \
    {.key = "every_steps",                                                                         \
     .kind = TR_FIELD_INT,                                                                         \
     .offset = IN(outer, every_steps),                                                             \
     .dflt = "none",                                                                               \
     ZERO("none"),                                                                                 \
     .min = 1,                                                                                     \
     .max = 1e12,                                                                                  \
     .unit = "steps",                                                                              \
     .doc = "after each so many"},                                                                 \
    {                                                                                              \
        .key = "every_epochs", .kind = TR_FIELD_INT, .offset = IN(outer, every_epochs),            \
        .dflt = "auto", .auto_text = "auto", .auto_value = -1, .words = none_word, .min = 1,       \
        .max = 1e9, .unit = "epochs",                                                              \
        .doc = "after each so many; auto: 1 where every_steps is none, else none"                  \
    }

static const tr_field checkpoint[] = {EVERY(train.checkpoint),
                                      {.key = "keep",
                                       .kind = TR_FIELD_INT,
                                       .offset = IN(train.checkpoint, keep),
                                       .dflt = "3",
                                       ZERO("all"),
                                       .min = 1,
                                       .max = 1e9,
                                       .unit = "files",
                                       .doc = "newest checkpoints that stay"},
                                      {.key = "best",
                                       .kind = TR_FIELD_BOOL,
                                       .offset = IN(train.checkpoint, best),
                                       .dflt = "true",
                                       .doc = "keep the one with the lowest evaluation loss as "
                                              "best.h5; without data.eval there is none"},
                                      {.key = NULL}};
static const tr_field eval[] = {EVERY(train.eval),
                                {.key = "batch",
                                 .kind = TR_FIELD_INT,
                                 .offset = IN(train.eval, batch),
                                 .dflt = "auto",
                                 ZERO("auto"),
                                 .min = 1,
                                 .max = 2147483647,
                                 .unit = "samples",
                                 .doc = "global batch of evaluations; auto: train.batch"},
                                {.key = NULL}};
static const tr_field early_stop[] = {
    {.key = "patience",
     .kind = TR_FIELD_INT,
     .offset = IN(train.early_stop, patience),
     .dflt = "none",
     ZERO("none"),
     .min = 1,
     .max = 1e9,
     .unit = "evaluations",
     .doc = "training ends after so many without improvement"},
    {.key = "min_delta",
     .kind = TR_FIELD_REAL,
     .offset = IN(train.early_stop, min_delta),
     .dflt = "0",
     .min = 0,
     .max = 1e9,
     .doc = "the loss must fall by more than this to count as improvement"},
    {.key = NULL}};

const tr_field tr_train_fields[] = {
    {.key = "epochs",
     .kind = TR_FIELD_INT,
     .offset = IN(train, epochs),
     .dflt = "none",
     ZERO("none"),
     .min = 1,
     .max = 1e9,
     .unit = "epochs",
     .doc = "how long to train; this or steps"},
    {.key = "steps",
     .kind = TR_FIELD_INT,
     .offset = IN(train, steps),
     .dflt = "none",
     ZERO("none"),
     .min = 1,
     .max = 1e12,
     .unit = "steps",
     .doc = "how long to train; wins over epochs"},
    {.key = "max_seconds",
     .kind = TR_FIELD_REAL,
     .offset = IN(train, max_seconds),
     .dflt = "none",
     ZERO("none"),
     .min = 0.001,
     .max = 1e9,
     .unit = "s",
     .doc = "wall-clock limit of one start: a checkpoint, then exit status 75"},
    {.key = "batch",
     .kind = TR_FIELD_INT,
     .offset = IN(train, batch),
     .min = 1,
     .max = 2147483647,
     .unit = "samples",
     .doc = "global batch of a step, over all ranks"},
    {.key = "micro_batch",
     .kind = TR_FIELD_INT,
     .offset = IN(train, micro_batch),
     .dflt = "auto",
     ZERO("auto"),
     .min = 1,
     .max = 2147483647,
     .unit = "samples",
     .doc = "what one rank pushes through at once; the rest of its share is accumulated. auto: the "
            "whole share"},
    {.key = "log_every",
     .kind = TR_FIELD_INT,
     .offset = IN(train, log_every),
     .dflt = "10",
     .min = 1,
     .max = 1e9,
     .unit = "steps",
     .doc = "distance of step records"},
    {.key = "tf32",
     .kind = TR_FIELD_BOOL,
     .offset = IN(train, tf32),
     .dflt = "false",
     .doc = "GPUs, precision fp32: products round their operands to TF32 (10 bits of mantissa)"},
    {.key = "precision",
     .kind = TR_FIELD_CHOICE,
     .offset = IN(train, precision),
     .choices = precisions,
     .dflt = "fp32",
     .doc = "of activations and arithmetic; master weights are always fp32. bf16: CPUs, and GPUs "
            "from compute capability 8.0; fp16: GPUs only"},
    {.key = "loss_scale",
     .kind = TR_FIELD_REAL,
     .offset = IN(train, loss_scale),
     .dflt = "auto",
     .auto_text = "auto",
     .auto_value = -2,
     .words = scale_words,
     .min = 1e-6,
     .max = 1e12,
     .doc = "factor that keeps small gradients from vanishing; auto: dynamic for fp16, else none"},
    {.key = "loss_scale_init",
     .kind = TR_FIELD_REAL,
     .offset = IN(train, loss_scale_init),
     .dflt = "65536",
     .min = 1,
     .max = 1e12,
     .doc = "dynamic: the first scale"},
    {.key = "loss_scale_window",
     .kind = TR_FIELD_INT,
     .offset = IN(train, loss_scale_window),
     .dflt = "2000",
     .min = 1,
     .max = 1e9,
     .unit = "steps",
     .doc = "dynamic: so many without overflow before the scale doubles"},
    {.key = "sync_batchnorm",
     .kind = TR_FIELD_BOOL,
     .offset = IN(train, sync_batchnorm),
     .dflt = "true",
     .doc = "batch statistics over all ranks"},
    {.key = "clip_norm",
     .kind = TR_FIELD_REAL,
     .offset = IN(train, clip_norm),
     .dflt = "none",
     ZERO("none"),
     .min = 1e-30,
     .max = 1e30,
     .doc = "longest gradient over the whole model (L2); longer ones are scaled down"},
    {.key = "optimizer",
     .kind = TR_FIELD_VARIANT,
     .offset = IN(train, optimizer.kind),
     .variants = optimizers,
     .variant_options = IN(train, optimizer.o),
     .dflt = "adamw",
     .doc = "how gradients change weights"},
    {.key = "schedule",
     .kind = TR_FIELD_VARIANT,
     .offset = IN(train, schedule.kind),
     .variants = schedules,
     .variant_options = IN(train, schedule.o),
     .dflt = "constant",
     .doc = "the learning rate over time"},
    {.key = "recompute",
     .kind = TR_FIELD_VARIANT,
     .offset = IN(train, recompute.kind),
     .variants = recomputes,
     .variant_options = IN(train, recompute),
     .dflt = "none",
     .doc = "trades time for memory in the backward pass"},
    {.key = "checkpoint",
     .kind = TR_FIELD_MAP,
     .offset = IN(train, checkpoint),
     .fields = checkpoint,
     .dflt = "",
     .doc = "when to save what a resume needs"},
    {.key = "eval",
     .kind = TR_FIELD_MAP,
     .offset = IN(train, eval),
     .fields = eval,
     .dflt = "",
     .doc = "when to evaluate on data.eval"},
    {.key = "early_stop",
     .kind = TR_FIELD_MAP,
     .offset = IN(train, early_stop),
     .fields = early_stop,
     .dflt = "",
     .doc = "when to end before time"},
    {.key = "ema",
     .kind = TR_FIELD_REAL,
     .offset = IN(train, ema),
     .dflt = "none",
     ZERO("none"),
     .min = 1e-6,
     .max = 0.9999999,
     .doc = "decay of a running average of the weights"},
    {.key = "on_nonfinite",
     .kind = TR_FIELD_CHOICE,
     .offset = IN(train, on_nonfinite),
     .choices = nonfinites,
     .dflt = "skip",
     .doc = "gradient with NaN or infinity: skip the update, stop, or roll back to the last "
            "checkpoint"},
    {.key = "max_rollbacks",
     .kind = TR_FIELD_INT,
     .offset = IN(train, max_rollbacks),
     .dflt = "3",
     .min = 1,
     .max = 1e6,
     .doc = "rollback: training fails after so many"},
    {.key = "rollback_lr",
     .kind = TR_FIELD_REAL,
     .offset = IN(train, rollback_lr),
     .dflt = "0.5",
     .min = 1e-6,
     .max = 1,
     .doc = "rollback: factor of the learning rate each time"},
    {.key = NULL}};
