/* The config: YAML text to a tree that knows its positions (tree.h), tables of typed fields that read the tree into
 * structs (fields.h), and the one struct that the whole program is driven by. All functions are Local. */
#ifndef TR_CONFIG_H
#define TR_CONFIG_H

#include "runtime/config/fields.h"

typedef enum { TR_DEVICE_AUTO, TR_DEVICE_CPU, TR_DEVICE_CUDA } tr_device;
typedef enum { TR_PRECISION_FP32, TR_PRECISION_BF16, TR_PRECISION_FP16 } tr_precision;
typedef enum {
    TR_OPT_SGD,
    TR_OPT_ADAMW,
    TR_OPT_LION,
    TR_OPT_ADAM,
    TR_OPT_RMSPROP,
    TR_OPT_LARS,
    TR_OPT_LAMB
} tr_optimizer_kind;
typedef enum {
    TR_SCHEDULE_CONSTANT,
    TR_SCHEDULE_STEP,
    TR_SCHEDULE_COSINE,
    TR_SCHEDULE_LINEAR,
    TR_SCHEDULE_PLATEAU,
    TR_SCHEDULE_ONE_CYCLE,
    TR_SCHEDULE_EXPONENTIAL,
    TR_SCHEDULE_POLYNOMIAL,
    TR_SCHEDULE_RESTARTS
} tr_schedule_kind;
typedef enum { TR_NONFINITE_SKIP, TR_NONFINITE_STOP, TR_NONFINITE_ROLLBACK } tr_on_nonfinite;
typedef enum { TR_COLL_AUTO, TR_COLL_SHARED, TR_COLL_MPI, TR_COLL_NCCL } tr_collectives_kind;
typedef enum { TR_AFFINITY_AUTO, TR_AFFINITY_NONE } tr_affinity_kind;
typedef enum { TR_WIRE_FP32, TR_WIRE_BF16 } tr_wire_kind;
typedef enum { TR_SYNC_ALL, TR_SYNC_NODE, TR_SYNC_NONE } tr_sync_kind; /* who shares statistics */
typedef enum { TR_GRAPH_AUTO, TR_GRAPH_OFF } tr_cuda_graph;
typedef enum { TR_DETERMINISTIC_AUTO, TR_DETERMINISTIC_ON, TR_DETERMINISTIC_OFF } tr_deterministic;
typedef enum { TR_SHARD_AUTO, TR_SHARD_ON, TR_SHARD_OFF } tr_shard_kind;
typedef enum { TR_OFFLOAD_AUTO, TR_OFFLOAD_ON, TR_OFFLOAD_OFF } tr_offload_kind;
typedef enum {
    TR_LOSS_CROSS_ENTROPY,
    TR_LOSS_MSE,
    TR_LOSS_BCE,
    TR_LOSS_L1,
    TR_LOSS_HUBER,
    TR_LOSS_SMOOTH_L1,
    TR_LOSS_FOCAL
} tr_loss_kind;
typedef enum { TR_TARGETS_LABELS, TR_TARGETS_PROBABILITIES } tr_targets_kind;
typedef enum { TR_ANNEAL_COS, TR_ANNEAL_LINEAR } tr_anneal_kind;
/* What evaluations measure beside the loss. */
typedef enum {
    TR_METRIC_ACCURACY,
    TR_METRIC_TOP5,
    TR_METRIC_F1,
    TR_METRIC_AUC,
    TR_METRIC_MAE,
    TR_METRIC_R2,
    TR_METRIC_PERPLEXITY,
    TR_METRIC_BITS_PER_BYTE,
    TR_METRICS
} tr_metric;
/* Whose weights model.h5 holds. auto: ema where train.ema is set, else last. */
typedef enum { TR_RESULT_AUTO, TR_RESULT_LAST, TR_RESULT_BEST, TR_RESULT_EMA } tr_result;
typedef enum {
    TR_RECOMPUTE_NONE,
    TR_RECOMPUTE_BLOCKS,
    TR_RECOMPUTE_EVERY,
    TR_RECOMPUTE_SEGMENTS,
    TR_RECOMPUTE_AUTO /* what run.memory_limit takes; without one: none */
} tr_recompute_kind;
typedef enum {
    TR_FORMAT_AUTO, /* from the extension: .h5 .hdf5; .idx*, *-ubyte, .gz; .npy; .npz; .bin; .csv, .tsv */
    TR_FORMAT_HDF5,
    TR_FORMAT_IDX,
    TR_FORMAT_NPY,
    TR_FORMAT_CIFAR10,
    TR_FORMAT_CIFAR100,
    TR_FORMAT_SYNTHETIC,
    TR_FORMAT_CSV,
    TR_FORMAT_FOLDER, /* of images, by class */
    TR_FORMAT_NPZ,
    TR_FORMAT_TEXT,  /* a file's bytes as ids, in windows of the model's input */
    TR_FORMAT_TOKENS /* numbers of tokens, likewise */
} tr_data_format;
typedef enum { TR_TOKENS_AUTO, TR_TOKENS_U8, TR_TOKENS_U16, TR_TOKENS_U32 } tr_tokens_type;
/* What a table's empty fields are. */
typedef enum { TR_MISSING_ERROR, TR_MISSING_DROP, TR_MISSING_ZERO } tr_missing;

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

/* A random part of an image, of so much of its area and of such ratios of width to height, at the model's size. */
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

/* Samples of a step mixed with others of it, by a share from Beta(alpha, alpha), in this part of the steps. */
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
/* Where ignore_index is not set: the label of rows behind the end of a text that is evaluated, or that count elsewhere. */
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

/* What a model learns from another one. */
typedef struct {
    bool present;            /* the block stands in the config */
    char *teacher;           /* run file; NULL or "": none, and nothing of this counts */
    double temperature;      /* of the soft loss */
    double hard, soft;       /* weights of the two losses */
    const tr_node *features; /* tr_config_features */
} tr_distill_config;
/* Entries of a table for it at `at` in its struct. */
#define TR_DISTILL_FIELDS(at)                                                                      \
    TR_TEXT("teacher", (at) + offsetof(tr_distill_config, teacher), "",                            \
            "run file of a model with the same inputs and classes, which is learned from; absent " \
            "or \"\": none"),                                                                      \
        TR_REAL("temperature", (at) + offsetof(tr_distill_config, temperature), "4", 0.01, 1000,   \
                NULL, "T: what logits are divided by before the soft loss compares them"),         \
        TR_REAL("hard", (at) + offsetof(tr_distill_config, hard), "0.5", 0, 1e6, NULL,             \
                "weight of the model's own loss"),                                                 \
        TR_REAL(                                                                                   \
            "soft", (at) + offsetof(tr_distill_config, soft), "0.5", 0, 1e6, NULL,                 \
            "weight of T^2 * the KL divergence of softmax(logits / T) from softmax(teacher / T)"), \
        TR_NODE("features", (at) + offsetof(tr_distill_config, features), "",                      \
                "list of {student: LAYER, teacher: LAYER, weight: 1}: the mean squared distance "  \
                "of the two layers' outputs, which must have one shape, times the weight")

typedef struct {
    char *student, *teacher; /* layers */
    double weight;
} tr_feature_config;
#define TR_FEATURES_MAX 7

typedef struct tr_config {
    tr_document document; /* the tree the nodes below point into */
    char *file;           /* as given on the command line */
    char *directory; /* data paths are relative to it: the file's folder, or data.folder in it */
    char *name;
    int64_t seed;
    char *output;
    int device;
    struct {
        /* NULL: the config file's; tr_config_write writes it out, as an absolute path */
        char *folder;
        tr_source_config train, eval, predict; /* predict: inputs without labels */
        tr_split_config split;
        struct {
            const tr_node *written; /* {mean: ..., std: ...}, or a map of these by input */
            bool automatic;         /* of the training part, yet to be computed */
            size_t count;
            tr_normalize_config *inputs; /* owned */
        } normalize;
        struct {
            const tr_node *written;
            bool present, automatic;
            tr_normalize_config stats; /* one value, or one for each output */
        } normalize_targets;
        const tr_node *class_names; /* a list; NULL: not known */
        struct {
            tr_ints resize; /* none; the shorter side; height, width */
            bool center_crop;
        } image;
        struct {
            char *delimiter;
            bool header;
            int missing;               /* tr_missing */
            const tr_node *categories; /* by column: a list of texts, or auto */
        } table;
        struct {
            int64_t crop; /* pixels of zero padding for a random crop; 0 = none */
            bool flip;    /* random horizontal flip */
            tr_resized_crop_config resized_crop;
            double rotate;      /* degrees to either side */
            tr_reals scale;     /* none, or least and most */
            tr_reals translate; /* none, or parts of the width and the height; one for both */
            tr_jitter_config jitter;
            tr_erasing_config erasing;
            tr_mix_config mixup, cutmix;
        } augment;
        int64_t workers, prefetch; /* loader threads a rank (0: in the step loop); batches ahead */
        bool shuffle, drop_last;
        tr_ints buckets;  /* none, or rows, rising, that batches of shorter sequences are cut to */
        int64_t cache_mb; /* a source up to this size is kept in memory; larger ones stream */
    } data;
    struct {
        tr_ints input;         /* dims of one sample, channels first */
        const tr_node *inputs; /* named inputs instead: {image: [1, 8, 8], meta: [4]} */
        const tr_node *params; /* a map: values for $NAME in layers and define */
        const tr_node *define; /* a map: lists of layers with parameters */
        const tr_node *layers;
        tr_loss_config loss;
        int init;                 /* tr_init_kind of graph.h: kaiming | xavier | normal | zeros */
        const tr_node *init_from; /* init_from.h */
        tr_sketch_config sketch;
        const tr_node *skip_passes; /* tr_graph_passes_of */
        int64_t round_dims; /* widths to multiples of so many; 0: as they are; TR_ROUND_AUTO */
    } model;
    struct {
        int64_t epochs, steps; /* steps > 0 wins */
        double max_seconds;    /* 0 = no limit */
        int64_t batch;
        int64_t accumulate;  /* micro-batches a step, over all ranks; 0 = auto: by micro_batch */
        int64_t micro_batch; /* samples of a rank; 0 = auto, TR_MICRO_BATCH_MAX */
        int64_t log_every;
        int precision;
        bool tf32;
        double loss_scale;         /* 0 = none, -1 = dynamic, else fixed */
        double loss_scale_init;    /* dynamic */
        int64_t loss_scale_window; /* dynamic: good steps before it doubles */
        int sync_batchnorm;        /* tr_sync_kind */
        double clip_norm;          /* 0 = none */
        struct {
            tr_variant kind;
            tr_optimizer_config o;
        } optimizer;
        const tr_node *groups; /* tr_config_groups */
        const tr_node *freeze; /* patterns of names of parameters: tr_patterns_match */
        bool freeze_statistics;
        struct {
            tr_variant kind;
            tr_schedule_config o;
        } schedule;
        struct {
            tr_variant kind; /* tr_recompute_kind */
            int64_t every;
            const tr_node *segments; /* a list of [first layer, last layer]: tr_segments_read */
        } recompute;
        struct {
            int64_t every_steps, every_epochs, keep; /* 0 = not by this */
            bool best;
        } checkpoint;
        struct {
            int64_t every_steps, every_epochs; /* both 0: never, nor at the end */
            int64_t batch;                     /* 0 = train.batch */
        } eval;
        struct {
            int64_t patience; /* evaluations without improvement; 0 = off */
            double min_delta;
        } early_stop;
        tr_distill_config distill;
        double ema;      /* decay; 0 = off */
        int result;      /* tr_result */
        tr_list metrics; /* tr_metric; empty: tr_config_measures says which */
        int on_nonfinite;
        int64_t max_skips_in_a_row, max_skips; /* of updates; the latter 0: half of the steps */
        int64_t max_rollbacks;
        double rollback_lr; /* learning rate factor at each rollback */
    } train;
    struct {
        int64_t threads;   /* a rank; 0 = auto */
        int64_t nice;      /* of every process; 0: as it was started */
        int affinity;      /* tr_affinity_kind */
        int collectives;   /* tr_collectives_kind */
        int cuda_graph;    /* tr_cuda_graph */
        int deterministic; /* tr_deterministic */
        bool benchmark;
        double workspace_mb;
        double bucket_mb;           /* 0 = auto */
        int wire;                   /* tr_wire_kind: type of gradients between nodes */
        int shard_optimizer;        /* tr_shard_kind */
        int offload;                /* tr_offload_kind */
        const tr_node *skip_passes; /* tr_graph_passes_skipped */
        bool overcommit_memory;     /* train where memory is short */
        int level;                  /* level.h */
        uint64_t level_set;         /* which rows of its table the level set: a bit each */
        char *memory_limit;         /* none, auto or a size: tr_memory_limit_of */
        const tr_node *chosen;      /* what stood where memory chose: tr_config_unchoose */
        double memory_warn;         /* share of the limit; 0: no warning; below 0: auto */
        double timeout;             /* seconds a rank waits for its peers before it gives up */
        double start_timeout; /* seconds for calls of MPI's in which peers cannot be looked at */
        struct {
            int64_t wait, warmup, active; /* steps; active 0: no profile */
        } profile;
    } run;
    tr_list pipeline; /* of `stages` */
    tr_variant_def *stages;
} tr_config;

#define TR_MICRO_BATCH_MAX  (-1) /* train.micro_batch: the largest that fits */
#define TR_MEMORY_WARN_AUTO 0.95 /* run.memory_warn: auto */

/* The default of run.start_timeout, which holds before there is a config. */
#define TR_START_TIMEOUT "600"

/* Parses and checks everything but model.layers' attributes (the graph reads those) from text that
 * is already in memory (rank 0 reads the file, all ranks parse the same bytes). On failure nothing
 * is left allocated. `overrides`: key.path=value strings. `stages`: what a pipeline may hold, ended
 * by name NULL, copied but for the tables of fields; a pipeline that is not given is the first one
 * alone. NULL: none. */
tr_status tr_config_open(const char *file, const char *text, size_t nbytes,
                         const char *const *overrides, size_t noverrides,
                         const tr_variant_def *stages, tr_config **out);
/* The same from a document, parsed and with its overrides; taken on success. */
tr_status tr_config_resolve(const char *file, tr_document *doc, const tr_variant_def *stages,
                            tr_config **out);
void tr_config_close(tr_config *c);
/* What tr_config_write writes, as a text; to be freed by free(), set only on success. */
tr_status tr_config_text(const tr_config *c, char **text);
/* What is set over a config: key.path=value, then keys of `train`. */
typedef struct {
    const char *const *texts;
    size_t count;
    const tr_node *train; /* a map that stands elsewhere, where errors then point; NULL: none */
} tr_overrides;
/* From a text that was written out of `c`, with overrides: errors name the places that `c` has. What `o` stands in must stay
 * open as long as *out. */
tr_status tr_config_reopen(const tr_config *c, const char *text, const tr_overrides *o,
                           tr_config **out);
/* The config that `c` writes out, likewise. */
tr_status tr_config_derive(const tr_config *c, const tr_overrides *o, tr_config **out);
/* The resolved config as YAML: every key with its value in force; parses back to the same config. */
tr_status tr_config_write(const tr_config *c, FILE *to);
/* The same with another map below `model`. */
tr_status tr_config_write_with(const tr_config *c, const tr_node *model, FILE *to);
/* The reference page (Markdown) of every key outside model.layers. */
void tr_config_help(const tr_variant_def *stages, FILE *to);
/* The beginning of the JSON schema of a config: up to within its "$defs", which lack "layers". */
void tr_config_schema(const tr_variant_def *stages, FILE *to);
/* The format (tr_data_format) of a file by its name; TR_FORMAT_AUTO: it does not tell. */
int tr_source_format(const char *file);
/* What stands between the fields of a table, where nobody says: a tab in a .tsv, else a comma. */
const char *tr_source_delimiter(const char *file);
/* That of a source: as it says, or by its path's name, or a folder that is there. */
int tr_source_kind(const tr_config *c, const tr_source_config *s);
/* Which dataset or file a source names for each of a model's inputs: out[k] for names[k], pointing
 * into the config; all NULL where it names none. One input takes a text, or, as several do, a map by
 * name. `block`: "data.train" or "data.eval", for errors. */
tr_status tr_source_inputs(const tr_source_config *s, const char *block, const char *const *names,
                           size_t count, const char **out);
/* Is there something to evaluate on? */
static inline bool tr_config_has_eval(const tr_config *c)
{
    return c->data.eval.present || c->data.split.present;
}
/* Are samples of a step mixed, so that class labels become probabilities in training? */
static inline bool tr_config_mixes(const tr_config *c)
{
    return c->data.augment.mixup.present || c->data.augment.cutmix.present;
}
/* Are class weights yet to be computed from data.train? */
static inline bool tr_config_balances(const tr_config *c)
{
    return c->model.loss.class_weights.count == 1 && c->model.loss.class_weights.v[0] < 0;
}
/* TR_CONFIG where a key is left to the data (auto, balanced), which only training finds out: data.normalize,
 * data.normalize_targets, class weights, data.table.categories. */
tr_status tr_config_settled(const tr_config *c);
/* Does the run evaluate? */
static inline bool tr_config_evaluates(const tr_config *c)
{
    return tr_config_has_eval(c) &&
           (c->train.eval.every_steps > 0 || c->train.eval.every_epochs > 0);
}
/* Is this measured when the run evaluates? Where train.metrics is not given, accuracy is, and top5 of more than
 * five classes, as far as the loss has them, and where each token of a sequence has a label, perplexity, of bytes of
 * text bits_per_byte. `classes`: of the model. */
bool tr_config_measures(const tr_config *c, tr_metric metric, int64_t classes, bool sequence);
const char *tr_metric_name(tr_metric metric);
/* Does it train towards a teacher? */
static inline bool tr_config_distills(const tr_config *c)
{
    return c->train.distill.present && c->train.distill.teacher && *c->train.distill.teacher;
}
/* The features of d, at most TR_FEATURES_MAX, to be released by
 * tr_features_free, also after a failure: *count says how many. `path`: of the block, for errors. */
tr_status tr_config_features(const tr_distill_config *d, const char *path,
                             tr_feature_config out[TR_FEATURES_MAX], size_t *count);
void tr_features_free(tr_feature_config *f, size_t count);

/* ---- Parts of it ------------------------------------------------------------------------------ */

/* TR_CONFIG "path: text" at the node of a dotted path, or the nearest one above it that is there. */
tr_status tr_config_fail(const tr_config *c, const char *path, const char *fmt, ...)
    TR_PRINTF(3, 4);
/* As TR_NEED, at a place of the config: needs `tr_config *c` in scope beside `st` and `out`. */
#define TR_REQUIRE(cond, path, ...)                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            st = tr_config_fail(c, (path), __VA_ARGS__);                                           \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
/* train.groups. *out: [*count], to be released by tr_free; NULL where there are none. */
tr_status tr_config_groups(const tr_config *c, tr_group_config **out, size_t *count);

/* What its table cannot say; `loss`: the model's; `weighted`: samples have weights; `at`: for errors. */
tr_status tr_distill_check(const tr_distill_config *d, const tr_loss_config *loss, bool weighted,
                           const tr_node *at, const char *path);
/* A path from the config, relative to the config file's folder. Allocated. */
char *tr_config_path(const tr_config *c, const char *path);
/* Reads a whole file; TR_CONFIG error naming it when it cannot be read. *text is tr_alloc'ed. */
tr_status tr_read_text(const char *file, char **text, size_t *nbytes);

#endif
