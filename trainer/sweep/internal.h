/* Private to the sweep. */
#ifndef TR_TRAINER_SWEEP_INTERNAL_H
#define TR_TRAINER_SWEEP_INTERNAL_H

#include "optimize/stage.h"
#include "optimize/sweep/sweep.h"
#include "trainer/sweep/sweep.h"

/* ---- spec.c: what the sweep's file says -------------------------------------------------------- */

typedef enum {
    TR_MINIMIZE_LATENCY,
    TR_MINIMIZE_SIZE,
    TR_MINIMIZE_MULTIPLY_ADDS,
    TR_MINIMIZE_LOSS,
    TR_MINIMIZE_ERROR
} tr_minimize;
extern const char *const tr_minimize_names[];

typedef struct {
    char *config, *output;
    const tr_node *set, *grid, *list;
    struct {
        bool present;
        int minimize; /* tr_minimize */
        tr_budget subject_to;
        int64_t trials, seed;
        const tr_node *over;
    } search;
    int on_failure; /* 0: continue; 1: stop */
} tr_sweep_spec;

extern const tr_field tr_sweep_fields[];

#define TR_TRIAL_OUTPUT "each trial has a folder of its own in the sweep's"

/* ---- Trials ---------------------------------------------------------------------------------- */

/* What a model came to. */
typedef struct {
    int64_t parameters, bytes; /* bytes: of the file */
    double multiply_adds, ms;  /* ms: one sample, as in tr_latency */
    bool evaluated;
    double loss, accuracy; /* accuracy: NaN where the loss has none */
} tr_trial_model;

typedef enum { TR_TRIAL_OPEN, TR_TRIAL_DONE, TR_TRIAL_FAILED } tr_trial_state;

/* The same on all ranks. */
typedef struct {
    int state; /* tr_trial_state */
    char reason[TR_ERROR_TEXT];
    bool training_failed;
    tr_trial_model trained, last; /* after training; after the last stage */
} tr_trial_result;

/* One key of one trial. */
typedef struct {
    const tr_node *key; /* NULL: left as the config has it */
    tr_sweep_value value;
} tr_setting;

typedef struct {
    size_t number;
    tr_setting *settings; /* [sweep.ncolumns], owned */
    char *folder;
    char key[65];      /* SHA-256 of all that the trial depends on */
    char training[65]; /* of what its training depends on; "": there is no such config */
    size_t source;     /* number of the trial whose training it takes; its own */
    bool recorded;     /* the result was there, and it did not run */
    tr_trial_result result;
} tr_trial;

struct tr_sweep {
    const tr_arguments *arguments;
    const char **overrides; /* of the config, from the command line; the texts are argv's */
    size_t noverrides;
    tr_document document; /* the sweep's file */
    tr_sweep_spec spec;
    char *file, *text; /* of the config that trials start from */
    size_t nbytes;
    tr_config *base;
    size_t ncolumns;
    const tr_node **columns; /* keys that trials set */
    tr_sweep_space space;    /* of the grid or the search */
    size_t ntrials, planned;
    tr_trial
        *trials; /* [ntrials]; grids and lists: all planned; searches: as far as they are known */
    double *points; /* searches: [planned][space.count] */
    int lock;       /* rank 0: on the sweep's folder, as long as the sweep runs; -1: none */
};

/* ---- open.c, trials.c ------------------------------------------------------------------------- */

/* *Local.* The trial's config. */
tr_status tr_trial_config(const tr_sweep *s, const tr_trial *t, tr_config **out);
/* *Local.* All trials of lists and grids; of a search none, but room for them. */
tr_status tr_trials_plan(tr_sweep *s);
/* *Local.* Every trial's config, as `trainer check` looks at it. */
tr_status tr_trials_check(tr_sweep *s);
/* *Local.* Appends a trial with the settings of a point of the space, all NULL before. */
tr_status tr_trials_add(tr_sweep *s, const double *point);
/* *Local.* The trial's keys, and whose training it takes. */
tr_status tr_trial_identify(tr_sweep *s, tr_trial *t, const tr_config *c);
/* *Local.* "key=value, key=value". Allocated; NULL with a record. */
char *tr_trial_text(const tr_sweep *s, const tr_trial *t);
/* What a training depends on, as a hash. */
tr_status tr_training_key(const tr_config *c, char out[65]);

/* ---- trial.c, measure.c ----------------------------------------------------------------------- */

/* *Collective.* Up to a result: done, or failed for a reason of its own. Any other failure is returned. */
tr_status tr_trial_run(tr_sweep *s, tr_trial *t, tr_comm *comm, bool *agreed);
/* *Collective.* What the trial's files say of its models; what no stage measured is measured. */
tr_status tr_trial_measure(const tr_trial *t, const tr_config *c, bool quiet, tr_comm *comm,
                           tr_trial_result *r);
/* *Local*, rank 0. The record of a trial that ended. *found false: there is none, or it is of other settings. */
tr_status tr_record_read(const tr_trial *t, tr_trial_result *r, bool *found);
tr_status tr_record_write(const tr_trial *t);

/* ---- judge.c ------------------------------------------------------------------------------------ */

/* The model that budgets are held against: what the first trial that is done trained. NULL: none is done. */
const tr_trial_model *tr_sweep_reference(const tr_sweep *s);
/* By how much the search's bounds are missed, added up in shares of the bounds; 0: none is. */
double tr_sweep_violation(const tr_sweep *s, const tr_trial_model *m);
double tr_sweep_minimized(const tr_sweep *s, const tr_trial_model *m);
/* [TR_SEARCH_OBJECTIVES]: latency, size, and 1 - accuracy, or the loss where there is none. */
void tr_sweep_objectives(const tr_trial_model *m, double *out);
/* Which trials are done, keep to the bounds, and are dominated by no other such one: front[ntrials]. *best: of
 * them the one with the least of what a search minimizes; SIZE_MAX: there is none. */
tr_status tr_sweep_front(const tr_sweep *s, bool *front, size_t *best);

/* ---- tables.c ----------------------------------------------------------------------------------- */

/* *Local*, rank 0. sweep.csv, sweep.md, sweep.svg. `table`: also to the log. */
tr_status tr_sweep_write(const tr_sweep *s, bool table);

#endif
