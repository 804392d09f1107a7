/* A stage of the pipeline: what `trainer` runs one after another under `pipeline:`. Each is a const
 * tr_stage in a file of its own; the one list of them is trainer/stages/stages.c. A stage is given
 * a network and makes another, or finds something out. All else is the frame's
 * (trainer/pipeline/stage_run.c): files, resuming, evaluation before and after, what the stage
 * promised. */
#ifndef TR_STAGE_H
#define TR_STAGE_H

#include "collectives/collectives.h"
#include "optimize/evaluation/evaluation.h"
#include "optimize/network/network.h"
#include "runtime/config/config.h"
#include "runtime/store/store.h"

/* ---- What every stage may be asked for ------------------------------------------------------- */

/* Bounds on what comes out; those above the gap against what went in. Negative: not asked for. */
typedef struct {
    bool present;         /* of the stage that has no model before it, whose budget is a block */
    double accuracy_drop; /* of the fraction that is right, at most */
    double loss_rise;     /* at most */
    double size;          /* of the file, as a fraction of its parent's, at most */
    double speedup;       /* parent's latency over its own, at least */

    double accuracy;   /* the fraction that is right, at least */
    double loss;       /* at most */
    double size_mb;    /* of the file, at most */
    double latency_ms; /* of one sample, median, at most */
} tr_budget;

typedef enum { TR_MISS_FAIL, TR_MISS_KEEP_PARENT, TR_MISS_RETRY } tr_on_miss;

typedef struct {
    tr_budget budget;
    int on_miss; /* tr_on_miss */
} tr_stage_common;

extern const tr_field tr_budget_fields[];
/* The bounds that need a model before. */
bool tr_budget_compares(const tr_budget *b);
extern const char *const tr_on_miss_names[];
/* The struct of a stage's options begins with a tr_stage_common `common`, its table of fields with
 * these. */
enum { TR_STAGE_COMMON_FIELDS = 2 };
#define TR_STAGE_COMMON(type)                                                                      \
    TR_MAP("budget", offsetof(type, common.budget), tr_budget_fields, "",                          \
           "what the stage's result must keep to"),                                                \
        TR_CHOICE(                                                                                 \
            "on_miss", offsetof(type, common.on_miss), tr_on_miss_names, "fail",                   \
            "where it does not: fail: end with status 1; keep_parent: hand on the model that "     \
            "the stage was given; retry: again with milder options, as far as the stage has "      \
            "any, then fail")

/* ---- Before anything runs -------------------------------------------------------------------- */

#define TR_STAGE_KEY 96
/* "pipeline.1.prune.amount" */
const char *tr_stage_key(const tr_config *c, size_t place, const char *option,
                         char key[TR_STAGE_KEY]);
/* TR_CONFIG where the option is given, else where the stage is: "FILE:LINE:COLUMN:
 * pipeline.1.prune.amount: " text. */
tr_status tr_stage_fail(const tr_config *c, size_t place, const char *option, const char *fmt, ...)
    TR_PRINTF(4, 5);
/* Hands a failure on, told of the option likewise. */
tr_status tr_stage_blame(const tr_config *c, size_t place, const char *option, tr_status st);

/* What a stage leaves, for those behind it. */
enum {
    TR_LEAVES_INT8 = 1,     /* perhaps: weights of 8 bits, layers that round values */
    TR_LEAVES_16_BITS = 2,  /* for certain: products' own weights are float32 no more */
    TR_LEAVES_NAMES = 4,    /* perhaps: parameters that were not there */
    TR_LEAVES_ALL_INT8 = 8, /* for certain: no product's weight can become one of 8 bits any more */
    TR_LEAVES_MASKS = 16    /* for certain: products' own weights have zeros that stay */
};

/* Where a stage stands. */
typedef struct {
    const tr_config *config;
    size_t place; /* in config->pipeline */
    /* That the first stage begins with: stages before this one may take layers of it away; by hand,
     * and while the stage runs: the one that it is given. */
    const tr_model *model;
    unsigned left; /* by stages before it: a set of TR_LEAVES_... */
    bool runs;     /* the stage is about to: `model` is what it is given */
} tr_stage_outlook;
/* names: a name, a list of them, or NULL. TR_CONFIG at its place where one is no layer of the
 * model, nor one that quantize puts into it. */
tr_status tr_stage_layers(const tr_stage_outlook *o, const char *option, const tr_node *names);
/* The same of layers that are to be left alone: one that a stage before took away is only told,
 * when its turn comes. */
tr_status tr_stage_spared(const tr_stage_outlook *o, const char *option, const tr_node *names);

/* The path of a file that options name: from where the job was started, where there is one, else
 * from the folder. */
char *tr_stage_file(const char *folder, const char *named);

/* ---- Running --------------------------------------------------------------------------------- */

/* A training within a stage. */
typedef struct {
    const tr_network *start; /* its model is trained, from its values on */
    const tr_node *train;    /* keys of `train` that are other than the config's; NULL: none */
    const char *override;    /* another key: "data.buckets=null"; NULL: none */
    const char *name;        /* of its folder, below the stage's path: what a stage trains again
                              * and again has a name each time */
} tr_training;

/* A device that a stage asked for. */
typedef struct {
    const tr_backend *backend;
    void *ctx; /* to be closed by backend->close */
    int threads;
} tr_stage_device;

/* What a stage gets to run with. Nothing in it is the stage's to release. */
typedef struct tr_stage_job tr_stage_job;
struct tr_stage_job {
    const tr_config *config; /* its model is the one that the pipeline began with */
    size_t place;            /* in config->pipeline */
    const void *options;     /* the struct that `fields` filled; NULL without fields */
    tr_comm *comm;
    const tr_network *parent; /* NULL: the pipeline has made none yet */
    /* The one that the parent's file carries: what is done to inputs may be other than in
     * `config`. */
    const tr_config *parent_config;
    const tr_evaluation *before; /* of the parent on data.eval; NULL: the config has none */
    tr_evaluator *evaluator;
    /* Of files beside the stage's own, to which an extension is added:
     * "runs/digits/stages/05-export". Rank 0 writes them, whole or not at all. */
    const char *path;
    const char *folder;        /* of the run; by hand: of the file */
    bool by_hand;              /* on a file that need not be in a run's folder */
    const char *file;          /* that the parent is in */
    const char *sha256;        /* of that file */
    const tr_lineage *lineage; /* of the parent, before this stage; rank 0's */
    tr_findings *findings;     /* to be filled alike on all ranks */
    /* *Collective.* Trains in a run folder of its own, from its last checkpoint where it has one,
     * to the end, a stop (TR_STOPPED) or a failure. *out: the caller's, on every rank the same. */
    tr_status (*train)(const tr_stage_job *job, const tr_training *t, tr_network **out,
                       bool *agreed);
    /* *Collective.* What one sample takes through the network over what it takes through the
     * parent, as budgets have it: measured by rank 0, both in turns, while the others sleep; the
     * same on every rank, other from call to call. */
    tr_status (*latency)(const tr_stage_job *job, const tr_network *n, double *share);
    /* *Local.* Whether the job is asked to stop; a stage that takes long asks, and all ranks return
     * TR_STOPPED. NULL: never. */
    bool (*stop)(void *trainer);
    /* *Collective.* Opens a device beside the evaluator's. Where this machine, a rank or this
     * program has none, or not in this precision, the error says why, agreed by all ranks; the
     * stage may go on without, but where a rank has no memory for CPUs. */
    tr_status (*open_device)(const tr_stage_job *job, tr_device device, tr_precision precision,
                             tr_stage_device *out);
    void *trainer;
};

typedef struct {
    tr_network *network; /* what the stage made; NULL: it hands on the parent's */
    /* An override that the config of the network needs ("data.normalize={mean: 0, std: 1}"), of
     * tr_alloc; NULL: none. */
    char *override;
    /* Of what it wrote in the model's place, which a budget's sizes are of; 0: of the stage's own
     * file. */
    uint64_t nbytes;
} tr_stage_result;

/* Rank 0. Notes in the findings a file that the stage wrote beside its own, at job->path or in
 * job->folder: where it is gone, the stage is not done, but for one behind which models were
 * made. */
tr_status tr_stage_wrote(const tr_stage_job *job, const char *path);
/* Rank 0. The first of those that is not there, of a stage whose own file is `file`; "": all
 * are. */
void tr_stage_gone(const tr_findings *f, const char *file, char *name, size_t size);
/* Rank 0. Removes those at `path`, the stage's, that it noted in `was`, when it ran before, and not
 * in `now`. */
void tr_stage_replaced(const tr_findings *was, const tr_findings *now, const char *path);

typedef struct {
    const char *name;
    const char *doc;        /* one sentence, for the reference page */
    const tr_field *fields; /* of its options; NULL: none, nor a budget */
    size_t options_size;    /* of the struct they fill */
    bool makes;             /* another model than it is given */
    /* *Local.* What the table of fields cannot say, before anything is opened: TR_CONFIG with the
     * position. `place`: of this stage in c->pipeline. May be NULL. */
    tr_status (*check)(const tr_config *c, size_t place);
    /* *Local.* The same of what the model says, in `trainer check`, and before the first stage
     * runs. May be NULL. */
    tr_status (*check_model)(const tr_stage_outlook *o);
    /* *Local.* A set of TR_LEAVES_...; the function NULL: nothing. */
    unsigned (*leaves)(const void *options);
    /* *Local.* File i that the stage reads (tr_stage_file), and the option that names it; NULL:
     * there are no more. The function NULL: none. */
    const char *(*file)(const void *options, size_t i, const char **option);
    /* *Local.* Distillation within the stage, from a teacher of its own; NULL: none. The function
     * NULL: none. */
    const tr_distill_config *(*teacher)(const void *options);
    /* *Local.* What of the stage goes by the clock ("measure: latency"), so that what runs beside
     * it on the same cores changes what comes out; NULL: nothing does. The function NULL: never. */
    const char *(*timed)(const void *options);
    /* *Local.* How many networks of the size of the one that it is given it holds while it trains
     * such a one, at the most, or 0: it trains none, or another model; *train: with these keys of
     * `train` beside the config's (NULL: none). The function NULL: none. */
    size_t (*trains)(const void *options, const tr_node **train);
    /* *Local.* For on_miss: retry, where what was missed is of accuracy or loss alone: makes the
     * options milder for the network that the stage is given (values alone: what they point to
     * stays), which may cost size and time; false: there is nothing milder. NULL: never is. */
    bool (*milder)(void *options, const tr_network *parent);
    /* *Collective.* *agreed false: this rank failed where the others do not know of it, and the job
     * must be ended; else all ranks return the same status. *out starts empty. */
    tr_status (*run)(const tr_stage_job *job, tr_stage_result *out, bool *agreed);
} tr_stage;

#endif
