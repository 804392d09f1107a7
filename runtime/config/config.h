/* The config: YAML text to a tree that knows its positions, tables of typed fields that read the
 * tree into structs, and the one struct that the whole program is driven by. All functions are
 * Local. */
#ifndef TR_CONFIG_H
#define TR_CONFIG_H

#include "runtime/base/base.h"

/* ---- The tree ------------------------------------------------------------------------------ */

typedef enum { TR_NODE_SCALAR, TR_NODE_MAP, TR_NODE_LIST } tr_node_kind;

typedef struct tr_node tr_node;
struct tr_node {
    tr_node_kind kind;
    const char *source; /* file name, or "command line: " and the override as typed */
    int line, column;   /* from 1; an aliased node shows where its anchor's text stands */
    char *text;         /* scalar: its text; "" for an empty one */
    bool quoted;        /* scalar: quoted or block style, hence a string whatever it looks like */
    bool override;      /* a map's key: an override put it there */
    size_t count;       /* children of a map or list */
    tr_node **keys;     /* map: scalar nodes, in file order; list: NULL */
    tr_node **values;
};

/* A parsed document and the overrides applied to it; owns its nodes. Anchors, aliases and merge
 * keys
 * (<<) are resolved (alias expansion is bounded: a billion-laughs file is an error); duplicate
 * keys, several documents, non-UTF-8, too deep nesting (64) are TR_CONFIG errors "file:line:column:
 * ...". */
typedef struct tr_document {
    tr_node *root;
    void *storage;
} tr_document;

tr_status tr_document_parse(const char *source, const char *text, size_t nbytes, tr_document *out);
/* `key.path=value`, value in YAML flow syntax: replaces or adds the node at that path (list
 * elements by index: model.layers.0.conv2d.out=8; or by name, where only one goes by it:
 * pipeline.quantize.samples=64 is pipeline.3.quantize.samples=64). Errors name the override as typed. */
tr_status tr_document_override(tr_document *doc, const char *assignment);
/* The same with a path and a value that stand in another document, which errors then point into: it must stay open as
 * long as `doc`. */
tr_status tr_document_set(tr_document *doc, const tr_node *key, const tr_node *value);
/* Without what stands at a key of the root. */
void tr_document_drop(tr_document *doc, const char *key);
void tr_document_close(tr_document *doc);

const tr_node *tr_node_get(const tr_node *map, const char *key); /* NULL when absent or not a map */
/* TR_FAIL(TR_CONFIG, "file:line:column: " text). */
tr_status tr_node_fail(const tr_node *at, const char *fmt, ...) TR_PRINTF(2, 3);
/* Writes the tree as YAML that parses back to it; what has no more lists or maps inside on one line. */
tr_status tr_node_write(const tr_node *n, FILE *to);
/* `n`: one name, a list of names, "" or NULL; each stands in `names`, or TR_CONFIG at its place with the
 * nearest: "KEY: there is no WHAT ...". found: [count]: those that are named. */
tr_status tr_node_names(const tr_node *n, const char *key, const char *what,
                        const char *const *names, size_t count, bool *found);
/* The same in one line, as it can stand behind the = of an override. Allocated. */
tr_status tr_node_line(const tr_node *n, char **out);
/* A text as a scalar between single quotes, whatever is in it. Allocated; NULL: no memory. */
char *tr_yaml_quoted(const char *text);

/* ---- Parameters in a tree: template.c -------------------------------------------------------- */

#define TR_PARAMETERS 64 /* that count at one place */
#define TR_PARAMETER  48 /* bytes of a name */
typedef struct {
    const char *name;
    const tr_node *value;
} tr_parameter;
/* Owns the nodes that it makes. */
typedef struct tr_template tr_template;
tr_status tr_template_open(tr_template **out);
void tr_template_close(tr_template *t);
/* Letters, digits and _, no digit first. */
bool tr_parameter_valid(const char *name);
/* A copy of `from` with `$name` replaced by the parameter's node, `($a + 2) * 4` by the number, and `${name}` within a
 * text by the parameter's text; of two of one name the last counts. What is below the key `layers` of a map that also
 * has `params` (a list of names, or a map) keeps these as they are. TR_CONFIG at its place: a name that is not bound, no
 * number, a division by 0 or with a remainder, 2^22 nodes of one template. The copy is the template's. */
tr_status tr_template_bind(tr_template *t, const tr_node *from, const tr_parameter *bound,
                           size_t count, const tr_node **out);

/* The shortest decimal that reads back as the same number. Returns buf. */
const char *tr_format_real(double v, char buf[32]);

/* ---- Tables of fields ------------------------------------------------------------------------ */

typedef enum {
    TR_FIELD_INT,     /* int64_t */
    TR_FIELD_REAL,    /* double */
    TR_FIELD_BOOL,    /* bool */
    TR_FIELD_STRING,  /* char *, owned by the struct's tr_fields_free */
    TR_FIELD_CHOICE,  /* int: index into choices */
    TR_FIELD_INTS,    /* tr_ints: a list, or one scalar for a list of one */
    TR_FIELD_REALS,   /* tr_reals: likewise */
    TR_FIELD_SPAN,    /* tr_span: a number in the field's unit, steps or epochs; or with its own:
                         `500 steps`, `2 epochs`, `5%` of the run */
    TR_FIELD_SPANS,   /* tr_spans: a list, or one */
    TR_FIELD_MAP,     /* a nested struct at offset, read by `fields` */
    TR_FIELD_BLOCK,   /* as MAP, but it may be absent: the struct begins with a bool that tells; an
                         absent block is neither read nor written */
    TR_FIELD_VARIANT, /* tr_variant at offset: a name, or a map of one name to its options:
                         `adamw`, `adamw: {lr: 0.1}`; each of `variants` brings its own fields. One
                         with a single field takes its value bare (`every: 2`). Options may also
                         stand beside the name, as an override `train.optimizer.lr=0.1` puts them */
    TR_FIELD_LIST,    /* tr_list at offset: a list whose items are written like a VARIANT, each with
                         a struct of options of its own; a variant may stand in it more than once */
    TR_FIELD_NODE     /* const tr_node *: kept as it is for a later reader */
} tr_field_kind;

#define TR_LIST_MAX 8
typedef struct {
    size_t count;
    int64_t v[TR_LIST_MAX];
} tr_ints;
#define TR_REALS_MAX 4096
typedef struct {
    size_t count;
    double *v; /* owned */
} tr_reals;

/* A stretch of a training. */
typedef enum { TR_SPAN_STEPS, TR_SPAN_EPOCHS, TR_SPAN_PERCENT } tr_span_unit;
typedef struct {
    double value;
    int unit; /* tr_span_unit */
} tr_span;
typedef struct {
    size_t count;
    tr_span v[TR_LIST_MAX];
} tr_spans;
/* In steps, to the nearest, of a run of `total` steps. */
uint64_t tr_span_steps(tr_span s, uint64_t total, uint64_t steps_per_epoch);

/* A word that stands for a value of an INT or REAL field, such as "none" for 0. */
typedef struct {
    const char *text; /* NULL ends a list */
    double value;
} tr_field_word;

typedef struct tr_field tr_field;
typedef struct {
    const char *name;
    const tr_field *fields; /* offsets relative to the struct that holds the tr_variant's options */
    const char *doc;
    size_t size; /* LIST: of the struct of options; 0 where `fields` is NULL */
} tr_variant_def;

struct tr_field {
    const char *key; /* NULL ends a table */
    const char *was; /* another name that is read and never written; NULL */
    tr_field_kind kind;
    size_t offset;    /* in the struct */
    const char *dflt; /* text parsed as if the user had written it; NULL: required;
                         "" with STRING/NODE/INTS/REALS/MAP/VARIANT: absent (NULL / count 0 / all
                         defaults) */
    const char
        *auto_text; /* a word that stands for `auto_value` in INT and REAL fields, such as "auto" */
    double auto_value;
    double min, max; /* INT and REAL, and elements of INTS/REALS; min == max: unchecked */
    const char *const *choices; /* NULL-ended */
    const tr_field *fields;
    const tr_variant_def *variants; /* ended by name NULL */
    size_t variant_options; /* VARIANT: offset of the options struct (shared by all variants) */
    const char *unit;       /* "samples", "bytes", "s", ... or NULL */
    const char *doc;
    const char *schema; /* NODE: the JSON schema of what may stand there; NULL: anything */
    const tr_field_word
        *words; /* INT and REAL: more words like auto_text; CHOICE: other words for an
                                   index, read and never written */
};

/* Entries of a table, one a line. `at`: offset in the struct; a number's `low` and `high` both 0:
 * unchecked; what stands after `doc` is taken as further initializers of tr_field. */
/* clang-format off */
#define TR_ENTRY(key_, type, at, text, doc_, ...) \
    {.key = (key_), .kind = TR_FIELD_##type, .offset = (at), .dflt = (text), .doc = (doc_), __VA_ARGS__}
#define TR_NUMBER(key, type, at, dflt, low, high, unit_, doc, ...) \
    TR_ENTRY(key, type, at, dflt, doc, .min = (low), .max = (high), .unit = (unit_), __VA_ARGS__)
#define TR_INT(key, ...)   TR_NUMBER(key, INT, __VA_ARGS__, )   /* at, dflt, low, high, unit, doc */
#define TR_REAL(key, ...)  TR_NUMBER(key, REAL, __VA_ARGS__, )  /* likewise */
#define TR_INTS(key, ...)  TR_NUMBER(key, INTS, __VA_ARGS__, )  /* likewise */
#define TR_REALS(key, ...) TR_NUMBER(key, REALS, __VA_ARGS__, ) /* likewise */
#define TR_SPAN(key, ...)  TR_NUMBER(key, SPAN, __VA_ARGS__, )  /* likewise */
#define TR_SPANS(key, ...) TR_NUMBER(key, SPANS, __VA_ARGS__, ) /* likewise */
#define TR_BOOL(key, at, dflt, doc) TR_ENTRY(key, BOOL, at, dflt, doc, )
#define TR_TEXT(key, at, dflt, doc) TR_ENTRY(key, STRING, at, dflt, doc, )
#define TR_NODE(key, at, dflt, doc) TR_ENTRY(key, NODE, at, dflt, doc, )
#define TR_SHAPED(key, at, dflt, doc, shape) TR_ENTRY(key, NODE, at, dflt, doc, .schema = (shape))
#define TR_LIST(key, at, dflt, doc) TR_ENTRY(key, LIST, at, dflt, doc, )
#define TR_CHOICE(key, at, names, dflt, doc) TR_ENTRY(key, CHOICE, at, dflt, doc, .choices = (names))
#define TR_MAP(key, at, table, dflt, doc) TR_ENTRY(key, MAP, at, dflt, doc, .fields = (table))
#define TR_BLOCK(key, at, table, dflt, doc) TR_ENTRY(key, BLOCK, at, dflt, doc, .fields = (table))
#define TR_VARIANT(key, at, defs, options, dflt, doc) \
    TR_ENTRY(key, VARIANT, at, dflt, doc, .variants = (defs), .variant_options = (options))
#define TR_END {.key = NULL}
/* clang-format on */

/* JSON schemas of what a NODE may hold. */
#define TR_SCHEMA_LAYERS "{\"$ref\":\"#/$defs/layers\"}"
#define TR_SCHEMA_MAP    "{\"type\":\"object\"}"
#define TR_SCHEMA_LIST   "{\"type\":\"array\"}"
#define TR_SCHEMA_INPUTS                                                                           \
    "{\"type\":\"object\",\"minProperties\":1,\"additionalProperties\":{\"type\":\"array\","       \
    "\"minItems\":1,\"items\":{\"type\":\"integer\",\"minimum\":1}}}"
#define TR_SCHEMA_SOURCES                                                                          \
    "{\"type\":[\"string\",\"number\",\"array\"]},{\"type\":\"object\","                           \
    "\"additionalProperties\":{\"type\":[\"string\",\"number\",\"array\"]}}"
#define TR_SCHEMA_NORMALIZE                                                                        \
    "{\"anyOf\":[{\"const\":\"auto\"},{\"$ref\":\"#/$defs/"                                        \
    "normalize-one\"},{\"type\":\"object\",\"minProperties\":1,\"not\":{"                          \
    "\"propertyNames\":{\"enum\":[\"mean\",\"std\"]}},\"additionalProperties\":{\"$ref\":\"#/"     \
    "$defs/normalize-one\"}}]}"
#define TR_SCHEMA_NAMES "{\"type\":\"array\",\"items\":{\"type\":\"string\"}},{\"type\":\"string\"}"

typedef struct {
    int which; /* index into variants; -1: absent */
} tr_variant;

typedef struct {
    int which;         /* index into variants */
    void *options;     /* owned; NULL for a variant without options */
    const tr_node *at; /* for errors; of a default: the map that lacks the key */
} tr_list_item;
typedef struct {
    size_t count;
    tr_list_item *items; /* owned */
} tr_list;

/* Reads a map node into `out` by a table: fills defaults, checks types and ranges, and fails on an
 * unknown key with the nearest known one. `n` NULL: all defaults (at NULL a required key fails with
 * `what` as its place). */
tr_status tr_fields_read(const tr_node *n, const tr_field *fields, const char *what, void *out);
void tr_fields_free(const tr_field *fields, void *out);
/* Writes `key: value` lines of everything resolved, `indent` spaces in, keys in table order. */
tr_status tr_fields_write(const tr_field *fields, const void *in, int indent, FILE *to);
/* Writes the reference of a table: key, type, default, unit, meaning, under the heading `path`. */
void tr_fields_help(const tr_field *fields, const char *path, FILE *to);
/* Writes the JSON schema of a table. `open`: any value may be a text with a $ in it. */
void tr_fields_schema(const tr_field *fields, bool open, FILE *to);
/* A text as JSON's; of documentation, so without control characters. */
void tr_schema_text(const char *text, FILE *to);

/* ---- The config ------------------------------------------------------------------------------ */

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
typedef enum {
    TR_SYNC_ALL,
    TR_SYNC_NODE,
    TR_SYNC_NONE
} tr_sync_kind; /* ranks that share statistics */
typedef enum { TR_GRAPH_AUTO, TR_GRAPH_OFF } tr_cuda_graph;
typedef enum { TR_DETERMINISTIC_AUTO, TR_DETERMINISTIC_ON, TR_DETERMINISTIC_OFF } tr_deterministic;
typedef enum { TR_SHARD_AUTO, TR_SHARD_ON, TR_SHARD_OFF } tr_shard_kind;
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
    TR_METRICS
} tr_metric;
/* Whose weights model.h5 holds. auto: ema where train.ema is set, else last. */
typedef enum { TR_RESULT_AUTO, TR_RESULT_LAST, TR_RESULT_BEST, TR_RESULT_EMA } tr_result;
typedef enum { TR_RECOMPUTE_NONE, TR_RECOMPUTE_BLOCKS, TR_RECOMPUTE_EVERY } tr_recompute_kind;
typedef enum {
    TR_FORMAT_AUTO, /* from the extension: .h5 .hdf5; .idx*, *-ubyte, .gz; .npy; .bin */
    TR_FORMAT_HDF5,
    TR_FORMAT_IDX,
    TR_FORMAT_NPY,
    TR_FORMAT_CIFAR10,
    TR_FORMAT_CIFAR100,
    TR_FORMAT_SYNTHETIC,
    TR_FORMAT_CSV
} tr_data_format;
/* What a table's empty fields are. */
typedef enum { TR_MISSING_ERROR, TR_MISSING_DROP, TR_MISSING_ZERO } tr_missing;

typedef struct {
    bool present; /* the block stands in the config */
    char *path;   /* file with both arrays (HDF5, CIFAR; several CIFAR files: comma-separated) */
    int format;   /* tr_data_format */
    const tr_node *inputs; /* HDF5: dataset name; IDX, NPY: file of the inputs; a map of these by
                              input name where the model has named inputs */
    char *labels;          /* likewise */
    int64_t samples;       /* synthetic: how many; else 0 = all, or so many from `offset` on */
    int64_t offset;        /* the first sample */
    int64_t classes; /* synthetic: number of classes; 0 = the model's outputs, regression if mse */
} tr_source_config;

/* (x - mean) / std: one value each, or one a channel of an image or a feature of anything else. */
typedef struct {
    const char *input; /* in the config's tree; NULL, and then alone: of every input of values */
    tr_reals mean, std;
} tr_normalize_config;

/* Samples of data.train that are held out. */
typedef struct {
    bool present;    /* without data.eval they are what is evaluated on */
    double fraction; /* of the samples */
    int64_t seed;
    bool stratify; /* as much of each class as of all */
} tr_split_config;

typedef struct {
    double lr, weight_decay, momentum, beta1, beta2, eps; /* rmsprop: beta2 is alpha */
    bool nesterov, centered;
    bool decay_all;           /* decay biases and norms too */
    double trust_coefficient; /* lars */
    bool adapt_all;           /* lars, lamb: trust ratios for biases and norms too */
} tr_optimizer_config;

/* One of train.groups. */
typedef struct {
    const tr_node *match; /* a pattern, or a list of them */
    double lr;            /* < 0: the optimizer's */
    double weight_decay;  /* < 0: the optimizer's */
    int decay_all;        /* TR_GROUP_... */
    const tr_node *at;    /* for errors */
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
    double label_smoothing; /* cross_entropy, and the next three */
    tr_reals class_weights;
    int64_t ignore_index; /* TR_NO_LABEL: none */
    int targets;          /* tr_targets_kind */
    double delta;         /* huber; smooth_l1: its beta */
    double gamma, alpha;  /* focal; alpha < 0: none */
    tr_reals pos_weight;  /* bce */
} tr_loss_config;
#define TR_NO_LABEL INT64_MIN
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
/* Its table: one field `loss`, of a tr_loss_config. */
extern const tr_field tr_loss_fields[];

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
            char *delimiter;
            int missing;               /* tr_missing */
            const tr_node *categories; /* by column: a list of texts, or auto */
        } table;
        struct {
            int64_t crop; /* pixels of zero padding for a random crop; 0 = none */
            bool flip;    /* random horizontal flip */
        } augment;
        int64_t workers, prefetch; /* loader threads a rank (0: in the step loop); batches ahead */
        bool shuffle, drop_last;
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
        const tr_node *init_from; /* tr_config_init_from */
    } model;
    struct {
        int64_t epochs, steps; /* steps > 0 wins */
        double max_seconds;    /* 0 = no limit */
        int64_t batch;
        int64_t accumulate;  /* micro-batches a step, over all ranks; 0 = auto: by micro_batch */
        int64_t micro_batch; /* samples of a rank; 0 = auto */
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
            tr_variant kind; /* tr_recompute_kind: none | blocks | {every: k} (plain `every: k`) */
            int64_t every;
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
        const tr_node *skip_passes; /* tr_graph_passes_skipped */
        double timeout;             /* seconds a rank waits for its peers before it gives up */
        double start_timeout; /* seconds for calls of MPI's in which peers cannot be looked at */
        struct {
            int64_t wait, warmup, active; /* steps; active 0: no profile */
        } profile;
    } run;
    tr_list pipeline; /* of `stages` */
    tr_variant_def *stages;
} tr_config;

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
/* The config that `c` writes out, with overrides. */
tr_status tr_config_derive(const tr_config *c, const char *const *overrides, size_t noverrides,
                           tr_config **out);
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
 * five classes, as far as the loss has them. `outputs`: of the model. */
bool tr_config_measures(const tr_config *c, tr_metric metric, int64_t outputs);
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

/* ---- Patterns of names: patterns.c ----------------------------------------------------------- */

#define TR_PATTERN_STARS 4 /* in a pattern; each * stands for any text */
typedef struct {
    const char *at;
    size_t n;
} tr_capture;
/* Whether the pattern is all of the name; caps: [TR_PATTERN_STARS + 1] what each * of it stands for, as
 * short as can be from the left. */
bool tr_pattern_match(const char *pattern, const char *name, tr_capture *caps);
/* Whether one of a pattern, or a list of them, is. NULL: none is. */
bool tr_patterns_match(const tr_node *patterns, const char *name);
/* They are texts of at most TR_PATTERN_STARS *; TR_CONFIG at its place: "KEY: ...". */
tr_status tr_patterns_check(const tr_node *patterns, const char *key);
/* Each matches one of the names; TR_CONFIG at its place with the nearest: "KEY: there is no WHAT ...". */
tr_status tr_patterns_find(const tr_node *patterns, const char *key, const char *what,
                           const char *const *names, size_t count);
/* train.groups. *out: [*count], to be released by tr_free; NULL where there are none. */
tr_status tr_config_groups(const tr_config *c, tr_group_config **out, size_t *count);

/* model.init_from. file NULL: there is none. */
typedef struct {
    char *file; /* owned; as it is written: tr_config_path */
    bool strict;
    size_t nrules;
    struct tr_init_rule {
        const char *from, *to; /* the config's; no more * in `to`; "": left out */
    } * rules;                 /* owned; the first that matches counts */
} tr_init_from;
tr_status tr_config_init_from(const tr_config *c, tr_init_from *out);
void tr_init_from_free(tr_init_from *o);
/* What its table cannot say; `classes`: the model's loss is cross_entropy; `at`: for errors. */
tr_status tr_distill_check(const tr_distill_config *d, bool classes, const tr_node *at,
                           const char *path);
/* A path from the config, relative to the config file's folder. Allocated. */
char *tr_config_path(const tr_config *c, const char *path);
/* Reads a whole file; TR_CONFIG error naming it when it cannot be read. *text is tr_alloc'ed. */
tr_status tr_read_text(const char *file, char **text, size_t *nbytes);

#endif
