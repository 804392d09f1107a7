/* The training loop: everything one rank holds for it, and its parts. */
#ifndef TR_TRAINER_H
#define TR_TRAINER_H

#include "collectives/collectives.h"
#include "optimize/network/network.h"
#include "runtime/data/data.h"
#include "runtime/metrics/metrics.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/plan/plan.h"
#include "trainer/device/affinity.h"
#include "trainer/device/device.h"
#include "trainer/loop/profile.h"
#include "trainer/loop/watch.h"
#include "trainer/models/teacher.h"
#include "trainer/models/train_model.h"
#include "trainer/run/checkpoint.h"
#include "trainer/run/run_folder.h"

/* Seconds since the last record, by what they went to. */
typedef struct {
    double total, compute, comm_wait, data_wait, idle;
    uint64_t steps, samples, targets;
    double utilization; /* sum over the records in which it was known */
    uint64_t looks;
} tr_times;

typedef struct tr_trainer {
    const tr_config *config;
    const char *config_text; /* resolved */
    tr_config *chosen;       /* what memory allows of it (trainer/plan/choose.h); NULL: as it is */
    char *chosen_text;
    int *segments; /* train.recompute.segments; NULL: none */
    tr_memory_watch watch;
    tr_comm *comm;
    tr_comm *gatherers; /* sync_batchnorm: node, several nodes: this one's ranks; else NULL */
    const tr_topology *topology;
    tr_affinity affinity;
    tr_model *model;
    const tr_network *start; /* NULL: training starts from initial values, or model.init_from */
    tr_origin origin;        /* of model.init_from; rank 0's once restored */
    bool rounded;            /* model.round_dims made layers wider */
    tr_teacher *teacher;     /* NULL: none */
    const tr_backend *backend;
    const tr_gpu_reducers *gpu_reducers; /* NULL on CPUs */
    tr_backend_options backend_options;  /* that it was opened with */
    void *backend_ctx;
    bool recorded;     /* steps are, where the device does not refuse: gathers are not timed */
    bool nccl;         /* GPUs reduce over it; else through the host's memory */
    tr_gpu_link *link; /* NULL: one rank, or without NCCL */
    void *training;    /* what the backend trains with */
    tr_params *params;
    tr_reducer *reducer;
    tr_session *session;
    tr_optimizer *optimizer;
    tr_checkpointer *checkpointer;
    tr_step_profile *profile; /* NULL: none was asked for */
    tr_run_folder *folder;    /* rank 0's; not owned */
    tr_metrics *metrics;      /* rank 0's, once the run began (tr_report_begin) */
    bool resume, quiet;
    uint64_t from; /* the step that this start goes on from */
    tr_dataset *train_data, *eval_data;
    tr_loader *loader, *eval_loader;
    /* In the backend's memory. */
    tr_control *control;
    double *eval_tally;      /* [TR_TALLY] of an evaluation */
    int64_t *eval_confusion; /* tr_confusion_cells; NULL without */
    int64_t *confusion;      /* the last evaluation's, on the host; NULL without */
    float *states_copy;      /* [state_count] on the host, to be exchanged */
    int *section_class;      /* [2 * micro_batches], see section.c */
    uint64_t *gathered;      /* [ranks], scratch */
    int micro_batches;       /* a step */
    uint64_t steps_per_epoch, total_steps;
    tr_train_state state;
    tr_history history; /* rank 0 */
    tr_hooks hooks;
    int lag;         /* steps that may be under way when the next one is issued: 1 on devices */
    uint64_t issued; /* steps issued; state.step counts those collected */
    double mark;     /* when the last step was collected, or the first one issued */
    uint64_t laps[TR_LAPS]; /* of the control, as last collected */
    bool params_changed;
    /* filled by a step */
    double loss, grad_norm, lr;
    const char *skipped;
    char skipped_text[160];
    bool stop; /* some rank was asked to stop */
    tr_times since, all;
    double first_step_s;
    double started; /* tr_now() when the loop began */
    bool loop_began;
    bool agreed;       /* all ranks know of what the run ended by, and none waits for another */
    size_t rss_before; /* tr_mem_rss_first: program, libraries, MPI */
    size_t held_before[TR_MEM_KINDS]; /* by a stage that trains, which stays beside it */
    double stall;                     /* seconds that saving held up the loop */
    bool improved;                    /* the last evaluation is the best so far */
    bool eval_failed;                 /* the last evaluation's loss is not finite */
    bool eval_searched; /* for a sample of data.eval that is not finite; what was found: */
    uint64_t eval_bad;
} tr_trainer;

typedef struct {
    tr_comm *comm;
    const tr_config *config;
    const char *config_text;
    tr_model *model;       /* not owned; its buckets are cut for the device */
    tr_run_folder *folder; /* of rank 0; not owned */
    /* whose values are there at step 0; NULL: initial ones. Not owned */
    const tr_network *start;
    bool resume, quiet;
    bool rounded; /* model.round_dims made layers wider */
} tr_trainer_options;

/* *Collective.* Cores, backend and, of GPUs, the link between them. */
tr_status tr_trainer_open_device(tr_trainer *t);

/* *Local.* Rank 0 says what the config and the data have that is hardly meant. */
void tr_trainer_warn(const tr_trainer *t);

/* *Collective.* Everything up to step 1: data, model, plans, kernels, memory; restores a checkpoint
 * where asked. Ends in agreement. */
tr_status tr_trainer_open(const tr_trainer_options *o, tr_trainer **out);
void tr_trainer_close(tr_trainer *t); /* *Collective* */
/* *Collective.* A whole training. Where it ends with *agreed false, what it held stays open: other
 * ranks may be in the middle of a step. */
tr_status tr_train(const tr_trainer_options *o, bool *agreed);

/* *Collective.* Trains until the end, a stop (TR_STOPPED, with a checkpoint saved) or a failure;
 * then writes model.h5. */
tr_status tr_trainer_run(tr_trainer *t);

/* *Local.* What model.h5 is. */
tr_model_choice tr_trainer_choice(const tr_trainer *t);

/* ---- What it takes in memory: Local ---- */

/* What it takes as planned (tr_predict_memory), once all of it is open. */
void tr_predicted_memory(const tr_trainer *t, tr_memory_total *out);
/* Bytes that this process allocated since the trainer was opened, and holds now: of one kind; of
 * all kinds that are predicted. On the host and on the device together. */
size_t tr_held_of(const tr_trainer *t, tr_mem_kind kind);
size_t tr_held_memory(const tr_trainer *t);
/* Bytes that it held already when the trainer was opened: models and samples of the stage around a
 * training within it. */
size_t tr_held_beside(const tr_trainer *t);

/* ---- The parts of the loop ---- */

/* *Collective.* Puts the next optimizer step into the stream, with everything it takes to decide on
 * it. At most t->lag steps may be under way. */
tr_status tr_trainer_issue(tr_trainer *t);
/* *Collective.* Waits for the oldest step under way and takes in what came out of it: state, loss,
 * stop. TR_NONFINITE: it was skipped, and not in the search for a loss scale. */
tr_status tr_trainer_collect(tr_trainer *t);
/* *Local.* The sums of an epoch (tr_train_state) begin anew. */
void tr_trainer_new_epoch(tr_trainer *t);
/* *Local.* Steps under way are awaited and forgotten: after a failure they changed nothing. */
tr_status tr_trainer_discard(tr_trainer *t);
/* *Local.* What went by in the stream since the last lap counts as TR_LAP_... */
tr_status tr_trainer_lap(tr_trainer *t, int lap);
/* *Local.* The control starts from t->state. */
tr_status tr_trainer_control(tr_trainer *t);
/* *Local.* Finds which micro-batches are alike on all ranks; the key of the recorded section. */
tr_status tr_section_open(tr_trainer *t);
uint64_t tr_section_key(const tr_trainer *t, uint64_t step, int micro, int64_t rows);
/* *Collective.* One pass over data.eval; *through false when some rank was asked to stop meanwhile:
 * then nothing is recorded. */
tr_status tr_trainer_evaluate(tr_trainer *t, bool *through);
/* tr_config_measures of its model. */
bool tr_trainer_measures(const tr_trainer *t, tr_metric metric);
/* *Collective.* Weights and states as at step 0; `init_from`: those of the file that the config
 * names. Without, what a checkpoint is to be restored over. */
tr_status tr_trainer_initialize(tr_trainer *t, bool init_from);
/* *Collective.* Weights, optimizer, states and state of the newest good checkpoint, with what the
 * config decides in force; *found false, and nothing changed, when there is none. */
tr_status tr_trainer_restore(tr_trainer *t, bool *found);
/* *Collective.* Batchnorm without synchronization keeps statistics of its own on each rank: rank
 * 0's become everybody's, for evaluations and files. */
tr_status tr_trainer_share_states(tr_trainer *t);
/* *Local.* Waits until the loader's batches may be overwritten, with an eye on the other ranks. */
tr_status tr_trainer_staged(tr_trainer *t);
/* *Local.* As tr_session_stage, of all sessions that count batches. */
tr_status tr_trainer_next_slot(tr_trainer *t);
/* *Local.* Inputs and targets on their way to the plan for the batch's size. */
tr_status tr_trainer_stage(tr_trainer *t, bool train, const tr_batch *batch, tr_plan **plan);

/* What the user sees; rank 0. */
void tr_report_start(tr_trainer *t);
/* *Local.* The run has something to show: its folder becomes its own, records begin. To be called
 * before anything is recorded or saved; does nothing the second time, nor on other ranks. */
tr_status tr_report_begin(tr_trainer *t);
/* *Local.* To be called before the run folder is written to: goes along where it was moved, fails
 * where it was removed. */
tr_status tr_report_follow(tr_trainer *t);
tr_status tr_report_step(tr_trainer *t);
tr_status tr_report_eval(tr_trainer *t, const tr_eval_record *e);
/* Of a loss; NaN where it is not measured. */
double tr_report_perplexity(const tr_trainer *t, double loss);
double tr_report_bits_per_byte(const tr_trainer *t, double loss);
/* *Local.* The means of the epoch that the last step was in. */
tr_status tr_report_epoch(tr_trainer *t);
typedef enum { TR_ENDING_DONE, TR_ENDING_STOPPED, TR_ENDING_FAILED } tr_ending;
tr_status tr_report_end(tr_trainer *t, tr_ending how, const char *why);

#endif
