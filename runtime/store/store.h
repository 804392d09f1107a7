/* The run file: HDF5 that is either whole or absent. Reading, writing, verifying, comparing. All
 * Local.
 *
 * Layout: see the design; every dataset is contiguous, little-endian, with an attribute "crc32c"
 * (uint32, CRC-32C of the raw bytes, verified on load). Written to NAME.tmp-PID, fsync, rename,
 * fsync of the folder. */
#ifndef TR_STORE_H
#define TR_STORE_H

#include "runtime/graph/graph.h"

/* Everything a bitwise resume needs besides arrays: attributes of /train. */
typedef struct {
    uint64_t step,
        epoch;        /* optimizer steps taken (skipped ones included); epoch of the next step */
    uint64_t updates; /* optimizer updates applied: bias correction */
    uint64_t seed;
    double loss_scale;
    uint64_t loss_scale_good; /* good steps since it changed */
    double lr_factor;         /* plateau and rollbacks multiply the schedule by this */
    double plateau_best;
    uint64_t plateau_bad; /* evaluations without improvement */
    double best;          /* best evaluation so far (loss); NaN before the first */
    uint64_t best_step;
    double stop_best;  /* early stopping: the loss to be beaten by min_delta; NaN before */
    uint64_t stop_bad; /* evaluations since it was */
    uint64_t rollbacks, skipped;
    uint64_t failed, failed_row; /* of those skipped, not in the search for a loss scale: all, and
                                    the last ones in a row */
    uint64_t unsound;            /* 1: no run goes on from this file (tr_store_latest) */
    uint64_t samples; /* of the training set: an ordinal means the same only for the same set */
    uint64_t batch, micro_batches; /* global; a step, at the time */
    double seconds;                /* trained so far, all starts together */
    /* Sums over the samples so far of the epoch that the last step was in, of steps whose loss is
     * finite; at its last step over all of them. */
    double epoch_loss, epoch_weight, epoch_correct;
    uint64_t epoch_samples;
    uint64_t epoch_targets; /* of these, TR_TALLY_TARGETS; 0 of older files: as many as samples */
    double epoch_seconds;   /* of its steps, all starts together; NaN of older files, within one */
    uint64_t names;   /* of the files that training samples are (tr_dataset_names); 0: not known */
    uint64_t threads; /* rank 0's, which share out sums on CPUs; 0 of older files: not known */
} tr_train_state;

/* /history: columns step, epoch, loss, lr, grad_norm, seconds (one row a logged step) and
 * eval_step, eval_loss, eval_accuracy, eval_top5 (NaN where not meant); eval_f1, eval_auc, eval_mae
 * and eval_r2 where some evaluation measured them. */
typedef struct {
    size_t nsteps, nevals, cap_steps, cap_evals;
    struct tr_history_step {
        uint64_t step, epoch;
        double loss, lr, grad_norm, seconds;
    } * steps;
    struct tr_history_eval {
        uint64_t step;
        double loss, accuracy, top5, f1, auc, mae, r2;
    } * evals;
    int64_t classes; /* of the last confusion matrix, 0: none; saved as /history/confusion */
    int64_t *confusion;
} tr_history;

/* ---- What stages found ----------------------------------------------------------------------- */

typedef enum {
    TR_ATTR_COUNT,
    TR_ATTR_REAL,
    TR_ATTR_TEXT
} tr_attr_kind; /* uint64, float64, UTF-8 */
typedef struct {
    char name[TR_NAME];
    tr_attr_kind kind;
    uint64_t u;
    double f;
    char *text; /* owned */
} tr_attr;
/* Named values, in the order they were added. */
typedef struct {
    size_t count;
    tr_attr *v;
} tr_attrs;
/* One of a name that is there takes its place. */
tr_status tr_attrs_add_count(tr_attrs *a, const char *name, uint64_t u);
tr_status tr_attrs_add_real(tr_attrs *a, const char *name, double f);
tr_status tr_attrs_add_text(tr_attrs *a, const char *name, const char *text);
tr_status tr_attrs_add(tr_attrs *a, const tr_attr *v);            /* a copy of it */
const tr_attr *tr_attrs_get(const tr_attrs *a, const char *name); /* NULL when absent */
double tr_attrs_number(const tr_attrs *a, const char *name);      /* NAN when absent, or a text */
void tr_attrs_remove(tr_attrs *a, const char *name);              /* nothing where it is absent */
void tr_attrs_free(tr_attrs *a);

/* A table of numbers: rows have names, so have columns. */
typedef struct {
    char name[TR_NAME]; /* "layers" */
    size_t nrows, ncolumns;
    char *rows; /* their names, with a newline behind each */
    struct tr_table_column {
        char name[TR_NAME];
        double *v; /* [nrows] */
    } * columns;
} tr_table;

/* What a stage found: /stages/NN-NAME in a run file, its values as attributes, each table a group
 * with its rows' names as an attribute and a dataset a column. */
typedef struct {
    char stage[TR_NAME]; /* "03-prune" */
    tr_attrs values;
    size_t ntables;
    tr_table *tables;
} tr_findings;
/* A table without columns; names of rows must have no newline. `rows`: [nrows] texts. */
tr_status tr_findings_table(tr_findings *f, const char *name, size_t nrows,
                            const char *const *rows);
/* A column of the table that was added last. `v`: [nrows], copied. */
tr_status tr_findings_column(tr_findings *f, const char *name, const double *v);
const tr_table *tr_findings_get(const tr_findings *f, const char *table); /* NULL when absent */
void tr_findings_free(tr_findings *f);

/* The stages that made a file, the first one first. */
typedef struct {
    size_t count;
    tr_findings *v;
} tr_lineage;
/* Adds a stage without findings; *out: where to put them, until the next one is added. */
tr_status tr_lineage_add(tr_lineage *l, const char *stage, tr_findings **out);
/* Every value and table of a run file's stages; none for a file that no stage made. */
tr_status tr_lineage_read(const char *path, tr_lineage *out);
void tr_lineage_free(tr_lineage *l);

/* The file whose values a training began from; "" and "": none. */
typedef struct {
    char sha256[65];
    char text[TR_ERROR_TEXT]; /* which file, and what was taken of it */
} tr_origin;

/* The configs that a run went by, in order, each from the step at which it began: the last one is
 * in force. */
typedef struct {
    size_t count;
    struct tr_past_config {
        uint64_t step;
        char *text; /* owned */
    } * v;
} tr_past_configs;
/* Of a run file. What is there is taken; to be freed. */
tr_status tr_past_configs_read(const char *path, tr_past_configs *out);
/* From `step` on: those that began there or later were never in force, and go. */
tr_status tr_past_configs_add(tr_past_configs *p, uint64_t step, const char *text);
void tr_past_configs_free(tr_past_configs *p);

/* A flat array that lies in parts: ascending, and without a gap where the model has rows. */
typedef struct {
    const struct tr_flat_part {
        tr_range range; /* of the flat space */
        float *at;      /* where its first element is; NULL: zeros, which reading passes over */
        bool mapped;    /* of memory that another process maps too, and holds: its pages are let go
                           once they are used */
    } * v;
    size_t count;
} tr_flat_parts;
/* Elements [range.begin, range.end) of it, one behind the other. */
void tr_flat_copy(const tr_flat_parts *f, tr_range range, float *to);

/* What to write or what was read. Arrays are flat, laid out by the model's offsets. Slots: name and
 * array, e.g. "exp_avg", "exp_avg_sq", "momentum_buffer", "ema". */
#define TR_STORE_SLOTS 4
typedef struct {
    bool checkpoint; /* kind: checkpoint, else model (no /optimizer) */
    const char *config_text;
    /* Written, as attributes past_config_STEP of / and config_step; NULL: `config_text` is the only
     * one. Not read: tr_past_configs_read */
    const tr_past_configs *configs;
    char parent_sha256[65];  /* of the file this run was resumed from, or "" */
    char teacher_sha256[65]; /* of the file that it was distilled from, or "" */
    tr_origin origin;
    float *params, *states;
    int nslots;
    const char *slot_names[TR_STORE_SLOTS];
    float *slots[TR_STORE_SLOTS];
    /* Where such an array is NULL: its parts. None: not read, and never written so. */
    tr_flat_parts params_parts, slot_parts[TR_STORE_SLOTS];
    tr_train_state train;
    const tr_history *history;
    const tr_lineage *lineage; /* written; NULL: none. Not read: tr_lineage_read */
} tr_snapshot;

/* Writes `s` as `path`, atomically. A full disk or any failure leaves no trace but the error and
 * the files that were there. *nbytes: size of the file (may be NULL). */
tr_status tr_store_write(const char *path, const tr_model *m, const tr_snapshot *s, size_t *nbytes);
/* Verifies checksums, shapes and names against the model and fills the caller's arrays (params,
 * states, slots by the names given; NULL pointers are skipped), train and *history (owned by the
 * caller, grown). TR_FILE errors: "path: what, where, expected, found". Nothing is filled unless
 * all of it verifies... except that the arrays' contents are undefined after a failure.
 * A slot asked for that the file lacks is an error; s->checkpoint on entry: the run goes on from
 * it, so that slots nobody asked for are warned of, by name. */
tr_status tr_store_read(const char *path, const tr_model *m, tr_snapshot *s, tr_history *history);
/* Whether it calls itself a run file, whole or damaged; TR_IO where it cannot be read. */
tr_status tr_store_is(const char *path, bool *is);
/* From now on arrays of this process's run files whose checksum fails are taken as they are, each
 * with a warning: for files that were changed by hand. Attributes, shapes and places are checked as
 * ever. Like the log level, a setting of the process: to be made before anything is read. */
void tr_store_accept_unverified(bool accept);
/* Checks every attribute and dataset without a model; *train (may be NULL): what the file holds of
 * it. */
tr_status tr_store_verify(const char *path, tr_train_state *train);
/* What a file says of its training; its arrays are not looked at. */
tr_status tr_store_train(const char *path, tr_train_state *train);
/* Whether a file begins as HDF5 does, and so may be a run file, but is no text. */
bool tr_store_is_hdf5(const char *path);
/* The config in a run file: resolved, as YAML. Allocated; TR_FILE where it is none or its
 * attributes are damaged. */
tr_status tr_store_config(const char *path, char **text);
/* The history in a run file; *history is grown, and the caller's. */
tr_status tr_store_history(const char *path, tr_history *history);
/* Of a run file, without what its training left beside the model: its history, a checkpoint's slots
 * of the optimizer. */
tr_status tr_store_model_nbytes(const char *path, uint64_t *nbytes);
/* SHA-256 of the file's bytes: parent_sha256 of whatever is made from it. */
tr_status tr_store_sha256(const char *path, char hex[65]);
void tr_history_free(tr_history *h);

/* ---- A run folder's checkpoints -------------------------------------------------------------- */

/* "FOLDER/checkpoints/step-00000200.h5". Allocated. */
char *tr_store_checkpoint_path(const char *folder, uint64_t step);
/* For going on from it: the newest checkpoint that verifies and is of model `m` with the slots of
 * `s` (whose arrays are not touched; NULL, NULL: any model): allocated path in *path and its step;
 * *path NULL when there is none. best.h5 is one of them where files of steps are of no use, or none
 * is there.
 * What is damaged or no run file is logged as a warning, by name, and renamed NAME.damaged: kept to
 * be looked at, never considered again. What cannot be opened or read is skipped with a warning. A
 * whole file of another model is passed over for an earlier one that fits, and renamed NAME.other,
 * so that this run does not replace it; where none fits it is TR_FILE, and nothing is renamed for
 * that. A whole file that says it is unsound is renamed NAME.unsound: what was trained since the
 * one before it is what failed. Where files are of no use, those renamed at earlier starts among
 * them, and none is found, it is TR_FILE. A file that only a newer program reads is TR_FILE, and
 * stays. Removes left-over temporary files of processes that are gone. */
tr_status tr_store_latest(const char *folder, const tr_model *m, const tr_snapshot *s, char **path,
                          uint64_t *step);
/* Of the step files up to `newest`, the step just written, deletes all but the newest `keep` (0
 * keeps all); that of `newest` stays. Files of later steps (left by an earlier start, damaged or
 * given up by a rollback) neither count nor go. Never best.h5. */
tr_status tr_store_prune(const char *folder, int64_t keep, uint64_t newest);
/* The disk is full: deletes a step file, and says so. First those that were set aside as unsound,
 * then an unsound one of the step files up to `newest`. Then, where room is needed for a sound one
 * (`sound`), the oldest, as long as a newer one up to `newest` is whole and sound. *removed false
 * where there is none to give up. Never best.h5, with which a file may share its room. */
tr_status tr_store_make_room(const char *folder, uint64_t newest, bool sound, bool *removed);
/* Makes `link_name` in the checkpoints folder the same file as `path` (hard link, or copy),
 * atomically. */
tr_status tr_store_link(const char *path, const char *target);

/* ---- Inspect --------------------------------------------------------------------------------- */

/* What `trainer inspect` prints: what, when, from which config, progress, parameters by layer with
 * shape, mean, std, sparsity, norm; loss history as a plot of `width` columns. */
tr_status tr_store_inspect(const char *path, bool json, int width, FILE *to);
/* The differences of two files: attributes, arrays (max abs, relative norm), history. *same is
 * set. */
tr_status tr_store_diff(const char *a, const char *b, bool json, FILE *to, bool *same);

#endif
