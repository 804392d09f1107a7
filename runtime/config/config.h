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
void tr_document_close(tr_document *doc);

const tr_node *tr_node_get(const tr_node *map, const char *key); /* NULL when absent or not a map */
/* TR_FAIL(TR_CONFIG, "file:line:column: " text). */
tr_status tr_node_fail(const tr_node *at, const char *fmt, ...) TR_PRINTF(2, 3);
/* Writes the tree as YAML that parses back to the same tree; block style, short lists on one line. */
tr_status tr_node_write(const tr_node *n, FILE *to);
/* `n`: one name, a list of names, "" or NULL; each stands in `names`, or TR_CONFIG at its place with the
 * nearest: "KEY: there is no WHAT ...". found: [count]: those that are named. */
tr_status tr_node_names(const tr_node *n, const char *key, const char *what,
                        const char *const *names, size_t count, bool *found);
/* The same in one line, as it can stand behind the = of an override. Allocated. */
tr_status tr_node_line(const tr_node *n, char **out);
/* A text as a scalar between single quotes, whatever is in it. Allocated; NULL: no memory. */
char *tr_yaml_quoted(const char *text);

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
#define TR_BOOL(key, at, dflt, doc) TR_ENTRY(key, BOOL, at, dflt, doc, )
#define TR_TEXT(key, at, dflt, doc) TR_ENTRY(key, STRING, at, dflt, doc, )
#define TR_NODE(key, at, dflt, doc) TR_ENTRY(key, NODE, at, dflt, doc, )
#define TR_LIST(key, at, dflt, doc) TR_ENTRY(key, LIST, at, dflt, doc, )
#define TR_CHOICE(key, at, names, dflt, doc) TR_ENTRY(key, CHOICE, at, dflt, doc, .choices = (names))
#define TR_MAP(key, at, table, dflt, doc) TR_ENTRY(key, MAP, at, dflt, doc, .fields = (table))
#define TR_BLOCK(key, at, table, dflt, doc) TR_ENTRY(key, BLOCK, at, dflt, doc, .fields = (table))
#define TR_VARIANT(key, at, defs, options, dflt, doc) \
    TR_ENTRY(key, VARIANT, at, dflt, doc, .variants = (defs), .variant_options = (options))
#define TR_END {.key = NULL}
/* clang-format on */

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

/* ---- The config ------------------------------------------------------------------------------ */

typedef enum { TR_DEVICE_AUTO, TR_DEVICE_CPU, TR_DEVICE_CUDA } tr_device;
typedef enum { TR_PRECISION_FP32, TR_PRECISION_BF16, TR_PRECISION_FP16 } tr_precision;
typedef enum { TR_OPT_SGD, TR_OPT_ADAMW, TR_OPT_LION } tr_optimizer_kind;
typedef enum {
    TR_SCHEDULE_CONSTANT,
    TR_SCHEDULE_STEP,
    TR_SCHEDULE_COSINE,
    TR_SCHEDULE_LINEAR,
    TR_SCHEDULE_PLATEAU
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
typedef enum { TR_LOSS_CROSS_ENTROPY, TR_LOSS_MSE, TR_LOSS_BCE } tr_loss_kind;
typedef enum { TR_RECOMPUTE_NONE, TR_RECOMPUTE_BLOCKS, TR_RECOMPUTE_EVERY } tr_recompute_kind;
typedef enum {
    TR_FORMAT_AUTO, /* from the extension: .h5 .hdf5; .idx*, *-ubyte, .gz; .npy; .bin */
    TR_FORMAT_HDF5,
    TR_FORMAT_IDX,
    TR_FORMAT_NPY,
    TR_FORMAT_CIFAR10,
    TR_FORMAT_CIFAR100,
    TR_FORMAT_SYNTHETIC
} tr_data_format;

typedef struct {
    bool present; /* the block stands in the config */
    char *path;   /* file with both arrays (HDF5, CIFAR; several CIFAR files: comma-separated) */
    int format;   /* tr_data_format */
    const tr_node *inputs; /* HDF5: dataset name; IDX, NPY: file of the inputs; a map of these by
                              input name where the model has named inputs */
    char *labels;          /* likewise */
    int64_t samples;       /* synthetic: how many; else 0 = all, or the first so many */
    int64_t classes; /* synthetic: number of classes; 0 = the model's outputs, regression if mse */
} tr_source_config;

/* (x - mean) / std: one value each, or one a channel of an image or a feature of anything else. */
typedef struct {
    const char *input; /* in the config's tree; NULL, and then alone: of every input of values */
    tr_reals mean, std;
} tr_normalize_config;

typedef struct {
    double lr, weight_decay, momentum, beta1, beta2, eps;
    bool nesterov;
    bool decay_all; /* decay biases and norms too */
} tr_optimizer_config;

typedef struct {
    int64_t warmup;      /* steps of linear warm-up */
    double warmup_start; /* of the first step, as a fraction of lr; 0: auto */
    double final;        /* cosine, linear: where the curve ends, as a fraction of lr */
    tr_ints milestones;  /* step: at these epochs ... */
    double gamma;        /* step, plateau: ... times this */
    int64_t patience;    /* plateau: evaluations without improvement */
    double threshold;    /* plateau: relative improvement that counts */
} tr_schedule_config;

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
        tr_source_config train, eval;
        struct {
            const tr_node *written; /* {mean: ..., std: ...}, or a map of these by input */
            size_t count;
            tr_normalize_config *inputs; /* owned */
        } normalize;
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
        const tr_node *layers;
        struct {
            tr_variant kind; /* tr_loss_kind */
            double label_smoothing;
            tr_reals class_weights;
        } loss;
        int init; /* tr_init_kind of graph.h: kaiming | xavier | normal | zeros */
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
        double ema; /* decay; 0 = off */
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
/* The format (tr_data_format) of a file by its name; TR_FORMAT_AUTO: it does not tell. */
int tr_source_format(const char *file);
/* Which dataset or file a source names for each of a model's inputs: out[k] for names[k], pointing
 * into the config; all NULL where it names none. One input takes a text, or, as several do, a map by
 * name. `block`: "data.train" or "data.eval", for errors. */
tr_status tr_source_inputs(const tr_source_config *s, const char *block, const char *const *names,
                           size_t count, const char **out);
/* Does the run evaluate? */
static inline bool tr_config_evaluates(const tr_config *c)
{
    return c->data.eval.present &&
           (c->train.eval.every_steps > 0 || c->train.eval.every_epochs > 0);
}
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
/* What its table cannot say; `classes`: the model's loss is cross_entropy; `at`: for errors. */
tr_status tr_distill_check(const tr_distill_config *d, bool classes, const tr_node *at,
                           const char *path);
/* A path from the config, relative to the config file's folder. Allocated. */
char *tr_config_path(const tr_config *c, const char *path);
/* Reads a whole file; TR_CONFIG error naming it when it cannot be read. *text is tr_alloc'ed. */
tr_status tr_read_text(const char *file, char **text, size_t *nbytes);

#endif
