/* The training loop: everything one rank holds for it, and its parts. */
#ifndef TR_TRAINER_H
#define TR_TRAINER_H

#include "collectives/collectives.h"
#include "runtime/data/data.h"
#include "runtime/metrics/metrics.h"
#include "runtime/plan/plan.h"
#include "trainer/affinity.h"
#include "trainer/checkpoint.h"
#include "trainer/optimizer.h"

/* Seconds since the last record, by what they went to. */
typedef struct {
    double total, compute, comm_wait, data_wait;
    uint64_t steps, samples;
} tr_times;

typedef struct tr_trainer {
    const tr_config *config;
    const char *config_text; /* resolved */
    tr_comm *comm;
    const tr_topology *topology;
    tr_affinity affinity;
    const tr_model *model;
    const tr_backend *backend;
    void *backend_ctx;
    tr_reducer *reducer;
    tr_session *session;
    tr_optimizer *optimizer;
    tr_checkpointer *checkpointer;
    tr_metrics *metrics; /* rank 0 */
    tr_dataset *train_data, *eval_data;
    tr_loader *loader, *eval_loader;
    float *states;
    int64_t *confusion; /* tr_confusion_cells of the last evaluation; NULL without */
    uint64_t *gathered; /* [ranks], scratch */
    int micro;          /* micro-batches a step */
    uint64_t steps_per_epoch, total_steps;
    tr_train_state state;
    tr_history history; /* rank 0 */
    tr_hooks hooks;
    double gather_wait; /* seconds in collectives inside a plan, this step */
    bool params_changed;
    /* filled by a step */
    double loss, grad_norm, lr;
    const char *skipped;
    char skipped_text[160];
    bool stop; /* some rank was asked to stop */
    tr_times since, all;
    double first_step_s;
    double started;    /* tr_now() when the loop began */
    size_t rss_before; /* bytes resident before anything that is planned: program, libraries, MPI */
    double stall;      /* seconds that saving held up the loop */
    bool improved;     /* the last evaluation is the best so far */
} tr_trainer;

typedef struct {
    tr_comm *comm;
    const tr_config *config;
    const char *config_text;
    const tr_model *model; /* not owned */
    bool resume, quiet;
} tr_trainer_options;

/* *Local.* Cells of the confusion matrix of evaluations: classes squared, 0 beyond 1024 classes (8
 * MiB) and for regression. */
size_t tr_confusion_cells(const tr_model *m);

/* *Local.* TR_UNSUPPORTED when the config asks for a device or a precision that this build lacks.
 */
tr_status tr_device_check(const tr_config *c);

/* *Collective.* Everything up to step 1: data, model, plans, kernels, memory; restores a checkpoint
 * where asked. Ends in agreement. */
tr_status tr_trainer_open(const tr_trainer_options *o, tr_trainer **out);
void tr_trainer_close(tr_trainer *t); /* *Collective* */

/* *Collective.* Trains until the end, a stop (TR_STOPPED, with a checkpoint saved) or a failure;
 * then writes model.h5. */
tr_status tr_trainer_run(tr_trainer *t);

/* The parts of the loop. */
tr_status tr_trainer_step(tr_trainer *t); /* *Collective.* One optimizer step */
/* *Collective.* One pass over data.eval; *through false when some rank was asked to stop meanwhile:
 * then nothing is recorded. */
tr_status tr_trainer_evaluate(tr_trainer *t, bool *through);
tr_status tr_trainer_initialize(tr_trainer *t); /* *Collective.* Weights and states as at step 0 */
/* *Collective.* Weights, optimizer, states and state of the newest good checkpoint, with what the
 * config decides in force; *found false, and nothing changed, when there is none. */
tr_status tr_trainer_restore(tr_trainer *t, bool *found);
/* *Collective.* Batchnorm without synchronization keeps statistics of its own on each rank: rank
 * 0's become everybody's, for evaluations and files. */
tr_status tr_trainer_share_states(tr_trainer *t);
/* *Local.* Sets inputs and targets of the plan for `batch` and runs it. */
tr_status tr_trainer_run_batch(tr_trainer *t, bool train, const tr_batch *batch, tr_run *run);

/* What the user sees; rank 0. */
void tr_report_start(tr_trainer *t);
tr_status tr_report_step(tr_trainer *t);
tr_status tr_report_eval(tr_trainer *t, const tr_eval_record *e);
tr_status tr_report_end(tr_trainer *t, const char *why);

#endif
