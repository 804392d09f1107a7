/* Private to the sweep. */
#ifndef TR_TRAINER_SWEEP_INTERNAL_H
#define TR_TRAINER_SWEEP_INTERNAL_H

#include <glob.h>

#include "optimize/stage.h"
#include "optimize/sweep/sweep.h"
#include "trainer/device/affinity.h"
#include "trainer/pipeline/job.h"
#include "trainer/sweep/sweep.h"

/* ---- spec.c: what the sweep's file says ------------------------------------------------------ */

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
        int64_t trials, together, seed; /* together: 0: not yet decided */
        const tr_node *over;
    } search;
    int64_t ranks_per_trial; /* 0: all */
    int on_failure;          /* 0: continue; 1: stop */
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

/* REPLACED: of a record alone: with --force the run in its folder counts for nothing. */
typedef enum { TR_TRIAL_OPEN, TR_TRIAL_DONE, TR_TRIAL_FAILED, TR_TRIAL_REPLACED } tr_trial_state;

/* The same on all ranks. */
typedef struct {
    int state; /* tr_trial_state */
    char reason[TR_ERROR_TEXT];
    bool training_failed; /* the training itself: that of others would fail, too */
    bool away;            /* failed while its data could not be opened: its record stays open */
    bool has_model;       /* failed behind the training, whose model is in the folder */
    tr_trial_model trained, last; /* after training; after the last stage */
    /* in turns with other candidates for the front, 0: not measured: the last one's; what training
     * made, where bounds are held against that */
    double turns_ms, trained_turns_ms;
    char turns[17]; /* which timing that was: the same one of all that were timed together; "": none
                     */
    int64_t trained_by; /* number of the trial whose training it has; -1: not said */
} tr_trial_result;

/* One key of one trial. */
typedef struct {
    const tr_node *key; /* NULL: left as the config has it */
    tr_sweep_value value;
} tr_setting;

#define TR_NO_TRIAL SIZE_MAX

typedef struct {
    size_t place;         /* in the sweep as it is asked for: index in its trials */
    size_t number;        /* of its folder, which it keeps when its place is another one */
    tr_setting *settings; /* [sweep.ncolumns], owned */
    char *folder;
    char key[65];      /* SHA-256 of its config: tr_trial_key */
    char training[65]; /* of what its training depends on; "": there is no such config */
    size_t first;      /* place of the first trial with the same training; its own */
    size_t best;       /* of `first`: place of the one whose training the others take */
    size_t source;     /* that of its training; its own: it trains itself */
    int start;     /* what is in its folder to go on with: 2: a model, 1: checkpoints, 0: nothing */
    size_t lender; /* number of one of before, whose training it may take; TR_NO_TRIAL */
    bool recorded; /* the result was there, and it did not run */
    bool takes;    /* once it runs: its training is another's */
    bool prepared; /* once it runs: what is in its folder is its own */
    tr_trial_result result;
} tr_trial;

/* One that is recorded in the sweep's folder since before. */
typedef struct {
    size_t number;
    int state; /* tr_trial_state */
    char key[65],
        training[65];        /* as a trial's; "": the record does not say it, or cannot be read */
    bool recorded;           /* by a record; else by the run in its folder alone */
    bool says;               /* the record says its training */
    bool run, model;         /* a run is in its folder; a model that its training made */
    bool checkpoints;        /* which it wrote on the way */
    int whole;               /* the model: 1: it is whole, -1: it is not, 0: not looked at */
    bool taken;              /* it is a trial of this sweep */
    tr_trial_result *result; /* of tr_sweep_read_earlier: [1], owned */
    char **values;           /* likewise: [sweep.ncolumns], each NULL where nothing says it */
} tr_known_trial;

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
    double *points;        /* searches: [planned][space.count] */
    bool side_by_side;     /* trials of several groups of ranks */
    size_t nknown;         /* rank 0, when resuming */
    tr_known_trial *known; /* [nknown], by number */
    size_t free;           /* rank 0: no number below is free */
    int lock;              /* rank 0: on the sweep's folder, as long as the sweep runs; -1: none */
};

/* ---- open.c, trials.c ------------------------------------------------------------------------ */

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
/* What a training depends on, as a hash; what the whole trial does. */
tr_status tr_training_key(const tr_config *c, char out[65]);
tr_status tr_trial_key(const tr_config *c, char out[65]);

/* ---- folder.c -------------------------------------------------------------------------------- */

/* *Local*, rank 0. The sweep's folder is this job's, and says what was asked for. `groups` of ranks
 * run trials beside each other; how many trials a search chooses at a time is decided. */
tr_status tr_sweep_begin(tr_sweep *s, size_t groups);
/* Folders with names of trials: the first *count of found->gl_pathv. */
tr_status tr_sweep_folders(const tr_sweep *s, glob_t *found, size_t *count);
/* Of the trial with this number. Allocated; NULL with a record. */
char *tr_sweep_folder(const tr_sweep *s, size_t number);

/* ---- known.c --------------------------------------------------------------------------------- */

/* *Local*, rank 0. Fills s->known. */
tr_status tr_sweep_find_known(tr_sweep *s);
void tr_sweep_free_known(tr_sweep *s);
/* The index of the first whose number is at least this one; nknown: there is none. */
size_t tr_known_from(const tr_sweep *s, size_t number);
/* NULL: there is none of this number. */
tr_known_trial *tr_known_at(const tr_sweep *s, size_t number);

/* ---- match.c, earlier.c ---------------------------------------------------------------------- */

typedef struct {
    size_t number, lender; /* as a trial's */
    int start;             /* likewise */
    bool ended;            /* its result is recorded there */
} tr_trial_match;
/* *Local*, rank 0. Which folders trials from place `begin` on get: m[ntrials - begin]. Each number
 * once; none is given away that has a record or a run, but to the same trial, or where neither the
 * one that was there nor its training ended, and that is the same. */
tr_status tr_trials_find(tr_sweep *s, size_t begin, tr_trial_match *m);
/* *Collective.* Trials from place `begin` on get their folders, and the results that are recorded
 * there. A trial that is recorded is known by its key, wherever it stands now; what is recorded
 * otherwise keeps its folder. */
tr_status tr_trials_match(tr_sweep *s, size_t begin, tr_comm *comm);

/* Done in a sweep before, and none of this one's: a row of sweep.csv alone. */
static inline bool tr_is_earlier(const tr_known_trial *t)
{
    return t->state == TR_TRIAL_DONE && !t->taken;
}
/* *Local*, rank 0. "3 trials of before (0, 4, 7)", allocated; NULL: there are none. */
tr_status tr_sweep_earlier_text(const tr_sweep *s, char **text);
/* *Local*, rank 0. What those came to and what their settings were, as far as it was not read
 * yet. */
tr_status tr_sweep_read_earlier(const tr_sweep *s);

/* ---- sources.c ------------------------------------------------------------------------------- */

/* *Local*, the same on all ranks. Whose training each trial takes, by what came of trials until
 * now. */
void tr_trials_sources(tr_sweep *s);
/* Whether it is certain that a training fails: that of this trial did, by itself, since the sweep
 * was started. */
bool tr_trial_fails_others(const tr_trial *t);
typedef struct {
    size_t number;      /* of its folder */
    int64_t trained_by; /* whose training is there */
} tr_lender;
/* *Local*, the same on all ranks. Who may have done the training that the trial needs: its source
 * first, then the others of the same training, then one of before. v[ntrials + 1]; how many. */
size_t tr_trial_lenders(const tr_sweep *s, const tr_trial *t, tr_lender *v);

/* ---- groups.c -------------------------------------------------------------------------------- */

/* Groups of the job's ranks, each of which runs trials of its own. */
typedef struct {
    size_t count, own;   /* own: which of them this rank is in */
    int *leaders;        /* [count] the first rank of each, in the job. Owned */
    tr_comm *job, *comm; /* comm: of this rank's group; the job's where there is one group */
    bool dealt;
    tr_affinity cores; /* this rank's, of those of all the job's */
} tr_sweep_groups;

/* *Local.* TR_CONFIG where ranks cannot be split as the sweep asks for. */
tr_status tr_sweep_groups_check(const tr_sweep *s, int ranks);
/* *Local.* TR_CONFIG where what the trial makes goes by the clock, while others run beside it. */
tr_status tr_sweep_groups_check_timed(const tr_sweep *s, const tr_config *c);
/* *Collective.* Ranks of a node go together. Cores and GPUs are dealt out among all ranks first. */
tr_status tr_sweep_groups_open(const tr_sweep *s, tr_comm *job, tr_sweep_groups *out);
void tr_sweep_groups_close(tr_sweep_groups *g); /* *Collective* */

/* ---- there.c --------------------------------------------------------------------------------- */

/* *Local*, rank 0. Keys of the run that the folder holds, by its config.yaml, as they are once data
 * and device are known; "": it cannot be read. *any: there is one. */
tr_status tr_run_there(const char *folder, bool *any, char key[65], char training[65]);
typedef struct {
    bool any, settled, same; /* settled: `now` is open */
    tr_settled now;          /* the config as the run in the folder found it. To be closed */
    char key[65];            /* of that */
} tr_run_look;
/* *Collective.* Whether the folder holds a run, and one of the training of this config; what cannot
 * be is another's. */
tr_status tr_run_look_at(const char *folder, tr_config *c, tr_comm *comm, tr_run_look *l);
/* *Collective.* Whether the model in the folder is what the training of this config makes, and
 * whole: else l is closed. */
tr_status tr_run_lends(const char *folder, tr_config *c, tr_comm *comm, bool *lends,
                       tr_run_look *l);
/* *Local*. What is wrong with a model is said; *whole. */
tr_status tr_model_is_whole(const char *folder, bool *whole);

/* ---- trial.c, measure.c, record.c ------------------------------------------------------------ */

/* *Collective* over `comm`, whose ranks run it. Up to a result, on its rank 0: done, or failed for
 * a reason of its own. Any other failure is returned. */
tr_status tr_trial_run(tr_sweep *s, tr_trial *t, tr_comm *comm, bool *agreed);
/* *Collective.* What one sample takes through what the trial trained, or its last model: rank 0
 * measures, the others sleep. */
tr_status tr_trial_latency(const tr_sweep *s, const tr_trial *t, bool trained, tr_comm *comm,
                           double *ms);
/* *Local*, rank 0. Its settings and its result, or that it began, in its folder. */
tr_status tr_trial_record(const tr_sweep *s, const tr_trial *t);
/* *Collective.* What the trial's files say of its models; what no stage measured is measured. */
tr_status tr_trial_measure(const tr_trial *t, const tr_config *c, bool quiet, tr_comm *comm,
                           tr_trial_result *r);
/* *Local*, rank 0. Of the record in a folder key, training and state; *there false: there is none.
 * One that cannot be read, which is said, is open, and of no key. */
tr_status tr_record_look(const char *folder, tr_known_trial *t, bool *there);
/* *Local*, rank 0. What a trial came to, of this key; *found false: it says none. */
tr_status tr_record_read(const char *folder, const char *key, tr_trial_result *r, bool *found);
/* *Local*, rank 0. The same of any key, and values[sweep.ncolumns] as the record has them:
 * allocated, NULL: it does not. */
tr_status tr_record_values(const tr_sweep *s, const char *folder, tr_trial_result *r, char **values,
                           bool *found);
tr_status tr_record_write(const tr_sweep *s, const tr_trial *t);
/* What is in the folder counts for nothing, and is removed before its number is used again. */
tr_status tr_record_replace(const char *folder);

/* ---- judge.c --------------------------------------------------------------------------------- */

/* The model that budgets are held against: what the first trial that is done trained. NULL: none is
 * done. */
const tr_trial_model *tr_sweep_reference(const tr_sweep *s);
/* By how much the search's bounds are missed, added up in shares of the bounds; 0: none is. */
double tr_sweep_violation(const tr_sweep *s, const tr_trial_model *m);
double tr_sweep_minimized(const tr_sweep *s, const tr_trial_model *m);
/* [TR_SEARCH_OBJECTIVES]: latency, size, and 1 - accuracy, or the loss where there is none. */
void tr_sweep_objectives(const tr_trial_model *m, double *out);
#define TR_SWEEP_APART 1.02 /* a step of latencies in turns: those of one step are equal */
#define TR_SWEEP_NOISE 1.25 /* by so much latencies of two measurements may differ */
/* Which trials are done, may keep to the bounds, and may be on the front, as far as latencies can
 * be told apart: in[ntrials]. */
void tr_sweep_candidates(const tr_sweep *s, bool *in);
bool tr_sweep_bounds_latency(const tr_sweep *s);
/* The trial whose training's latency others are held against; NULL: none is. */
tr_trial *tr_sweep_timed_reference(const tr_sweep *s);
/* The timing in which all that decides was timed in turns; "": there is none. */
const char *tr_sweep_timed(const tr_sweep *s, const bool *candidates);

typedef struct {
    bool within; /* done, and keeps to the bounds */
    bool front;  /* and is dominated by no other such one */
    bool turns;  /* judged by its latency in turns */
} tr_verdict;
/* verdicts[ntrials]: by latencies in turns, once all candidates have one. *best: of the front the
 * one with the least of what a search minimizes; SIZE_MAX: there is none. */
tr_status tr_sweep_judge(const tr_sweep *s, tr_verdict *verdicts, size_t *best);
/* The latency in turns, where it belongs to the timing `turns`; NaN. */
double tr_turns_ms(const tr_trial_result *r, const char *turns);

/* ---- tables.c -------------------------------------------------------------------------------- */

/* *Local*, rank 0. sweep.csv, sweep.md, sweep.svg, sweep.size.svg. `table`: also to the log.
 * `untimed`: why candidates have no latency in turns, which the table then says; NULL: they have,
 * or the sweep goes on. */
tr_status tr_sweep_write(const tr_sweep *s, bool table, const char *untimed);

#endif
