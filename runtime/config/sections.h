/* What the tables of the config's larger blocks are read into: sources and changes of data, the
 * optimizer, the schedule, the loss. */
#ifndef TR_CONFIG_SECTIONS_H
#define TR_CONFIG_SECTIONS_H

#include "runtime/config/choices.h"
#include "runtime/config/fields.h"

typedef struct {
    bool present; /* the block stands in the config */
    char *path; /* file with both arrays (HDF5, NPZ, CIFAR; several CIFAR files: comma-separated) */
    int format; /* tr_data_format */
    const tr_node *inputs;  /* HDF5: dataset name; IDX, NPY: file of the inputs; a map of these by
                              input name where the model has named inputs */
    char *labels;           /* likewise */
    const tr_node *targets; /* CSV: columns in the place of labels, a list; NULL */
    char *weights;          /* likewise: what each sample counts; NULL: 1 */
    int64_t samples;        /* synthetic: how many; else 0 = all, or so many from `offset` on */
    int64_t offset;         /* the first sample */
    int64_t classes; /* synthetic: number of classes; 0 = the model's outputs, regression if mse */
    int64_t stride;  /* text, tokens: from one window to the next; 0: its length */
    int64_t documents;      /* likewise: the separator that samples are cut at; -1: none */
    int dtype;              /* tr_tokens_type: of a file of tokens that does not tell */
    double bytes_per_token; /* tokens: of the text that they stand for, in the mean; 0: not known */
} tr_source_config;

/* (x - mean) / std: one value each, or one a channel of an image or a feature of anything else. */
typedef struct {
    const char *input; /* in the config's tree; NULL, and then alone: of every input of values */
    tr_reals mean, std;
} tr_normalize_config;

/* A random part of an image, of so much of its area and of such ratios of width to height, at the
 * model's size. */
typedef struct {
    bool present;
    tr_reals scale, ratio; /* two each: least, most */
} tr_resized_crop_config;

/* How far a factor may be from 1, of the hue from 0. */
typedef struct {
    bool present;
    double brightness, contrast, saturation, hue;
} tr_jitter_config;

/* A rectangle of an image, of so much of its area and of such ratios of height to width. */
typedef struct {
    bool present;
    double p;
    tr_reals scale, ratio; /* two each: least, most */
    tr_reals value;        /* one, or one a channel */
} tr_erasing_config;

/* Samples of a step mixed with others of it, by a share from Beta(alpha, alpha), in this part of
 * the steps. */
typedef struct {
    bool present;
    double alpha, probability;
} tr_mix_config;

/* Samples of data.train that are held out. */
typedef struct {
    bool present;    /* without data.eval they are what is evaluated on */
    double fraction; /* of the samples */
    int64_t seed;
    bool stratify;  /* as much of each class as of all */
    int64_t stride; /* of windows of tokens; 0: their length */
} tr_split_config;

typedef struct {
    double lr, weight_decay, momentum, beta1, beta2, eps; /* rmsprop: beta2 is alpha */
    bool nesterov, centered;
    bool decay_all;           /* decay biases and norms too */
    double trust_coefficient; /* lars */
    bool adapt_all;           /* lars, lamb: trust ratios for biases and norms too */
} tr_optimizer_config;
const char *tr_optimizer_name(tr_optimizer_kind kind); /* "adamw" */

/* One of train.groups. */
typedef struct {
    const tr_node *match;               /* a pattern, or a list of them */
    double lr;                          /* < 0: the optimizer's */
    double weight_decay;                /* < 0: the optimizer's */
    int decay_all;                      /* TR_GROUP_... */
    double momentum, beta1, beta2, eps; /* < 0: the optimizer's */
    const tr_node *at;                  /* for errors */
} tr_group_config;
enum { TR_GROUP_FALSE, TR_GROUP_TRUE, TR_GROUP_AUTO };

typedef struct {
    tr_span warmup;      /* linear warm-up */
    double warmup_start; /* of the first step, as a fraction of lr; 0: auto */
    double final;        /* cosine, linear, ...: where the curve ends, as a fraction of lr */
    tr_spans milestones; /* step: at these times ... */
    double gamma;        /* step, plateau, exponential: ... times this */
    int64_t patience;    /* plateau: evaluations without improvement */
    double threshold;    /* plateau: relative improvement that counts */
    double power;        /* polynomial */
    tr_span period;      /* restarts: of the first cycle; exponential: how often */
    int64_t mult;        /* restarts: each cycle is so many times as long as the one before */
    double pct_start, div_factor, final_div_factor; /* one_cycle */
    int anneal;                                     /* one_cycle: tr_anneal_kind */
    bool three_phase;                               /* one_cycle */
    tr_spans
        restart; /* cosine, linear, polynomial, one_cycle: when the curve begins anew; ascending */
} tr_schedule_config;

/* model.loss; of each kind only what its table names counts. */
typedef struct {
    tr_variant kind;        /* tr_loss_kind */
    double label_smoothing; /* cross_entropy, and the next three; its gamma is below */
    tr_reals class_weights;
    int64_t ignore_index; /* TR_NO_LABEL: none */
    int targets;          /* tr_targets_kind */
    double delta;         /* huber; smooth_l1: its beta */
    double gamma, alpha;  /* focal; cross_entropy's gamma is 0 for none; alpha < 0: none */
    bool weighted;        /* samples have weights (data.train.weights, data.eval.weights) */
    tr_reals pos_weight;  /* bce: none, one, or one for each output (channel of an image) */
} tr_loss_config;
#define TR_NO_LABEL INT64_MIN
/* Where ignore_index is not set: the label of rows behind the end of a text that is evaluated, or
 * that count elsewhere. */
#define TR_FILLED_LABEL (-1)
/* Whether outputs of a model with this loss are right or wrong, so that they can be counted. */
static inline bool tr_loss_counts(int kind)
{
    return kind == TR_LOSS_CROSS_ENTROPY || kind == TR_LOSS_BCE || kind == TR_LOSS_FOCAL;
}
/* Whether it is of logits and targets from 0 to 1, an output each. */
static inline bool tr_loss_binary(int kind)
{
    return kind == TR_LOSS_BCE || kind == TR_LOSS_FOCAL;
}
/* Whether targets are probabilities of all classes, not a class number each. */
static inline bool tr_loss_soft(const tr_loss_config *c)
{
    return c->kind.which == TR_LOSS_CROSS_ENTROPY && c->targets == TR_TARGETS_PROBABILITIES;
}
/* Its table: one field `loss`, of a tr_loss_config. */
extern const tr_field tr_loss_fields[];

#define TR_ROUND_AUTO (-1) /* of model.round_dims: what the device's kernels like */

/* model.sketch: matrices that are learned in sketches. */
typedef struct {
    bool present;
    const tr_node *match; /* patterns of layers' names; NULL: all that are cheaper as a sketch */
    int64_t terms, rank;
} tr_sketch_config;

#endif
