/* The config: YAML text to a tree that knows its positions (tree.h), tables of typed fields that
 * read the tree into structs (fields.h), and the one struct that the whole program is driven by.
 * All functions are Local. */
#ifndef TR_CONFIG_H
#define TR_CONFIG_H

#include "runtime/config/distill.h"

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
/* From a text that was written out of `c`, with overrides: errors name the places that `c` has.
 * What `o` stands in must stay open as long as *out. */
tr_status tr_config_reopen(const tr_config *c, const char *text, const tr_overrides *o,
                           tr_config **out);
/* The config that `c` writes out, likewise. */
tr_status tr_config_derive(const tr_config *c, const tr_overrides *o, tr_config **out);
/* The resolved config as YAML: every key with its value in force; parses back to the same
 * config. */
tr_status tr_config_write(const tr_config *c, FILE *to);
/* The same with another map below `model`. */
tr_status tr_config_write_with(const tr_config *c, const tr_node *model, FILE *to);
/* What another value of the key at this path, or below, does to a training that goes on. */
tr_change tr_config_change(const char *path);
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
 * into the config; all NULL where it names none. One input takes a text, or, as several do, a map
 * by name. `block`: "data.train" or "data.eval", for errors. */
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
/* TR_CONFIG where a key is left to the data (auto, balanced), which only training finds out:
 * data.normalize, data.normalize_targets, class weights, data.table.categories. */
tr_status tr_config_settled(const tr_config *c);
/* Does the run evaluate? */
static inline bool tr_config_evaluates(const tr_config *c)
{
    return tr_config_has_eval(c) &&
           (c->train.eval.every_steps > 0 || c->train.eval.every_epochs > 0);
}
/* Is this measured when the run evaluates? Where train.metrics is not given, accuracy is, and top5
 * of more than five classes, as far as the loss has them, and where each token of a sequence has a
 * label, perplexity, of bytes of text bits_per_byte. `classes`: of the model. */
bool tr_config_measures(const tr_config *c, tr_metric metric, int64_t classes, bool sequence);
const char *tr_metric_name(tr_metric metric);
/* Does it train towards a teacher? */
static inline bool tr_config_distills(const tr_config *c)
{
    return c->train.distill.present && c->train.distill.teacher && *c->train.distill.teacher;
}

/* ---- Places, groups and files ---------------------------------------------------------------- */

/* TR_CONFIG "path: text" at the node of a dotted path, or the nearest one above it that is
 * there. */
tr_status tr_config_fail(const tr_config *c, const char *path, const char *fmt, ...)
    TR_PRINTF(3, 4);
/* Hands a failure on, told of the key there likewise. */
tr_status tr_config_blame(const tr_config *c, const char *path, tr_status st);
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
/* A path from the config, relative to the config file's folder. Allocated. */
char *tr_config_path(const tr_config *c, const char *path);
/* Reads a whole file; TR_CONFIG error naming it when it cannot be read. *text is tr_alloc'ed. */
tr_status tr_read_text(const char *file, char **text, size_t *nbytes);

#endif
