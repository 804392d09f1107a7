/* The frame around stages: what a pipeline's stages run in, and one of them after the other. */
#ifndef TR_STAGE_RUN_H
#define TR_STAGE_RUN_H

#include "trainer/affinity.h"
#include "trainer/chain.h"
#include "trainer/device.h"
#include "trainer/stages.h"
#include "trainer/trainer.h"

typedef struct {
    tr_comm *comm;
    const tr_config *config; /* of the pipeline; by hand: of the file */
    bool quiet;
    bool by_hand;       /* one stage, on a file: data.eval may be out of reach */
    const char *folder; /* of the run; by hand: of the file */
    tr_chain chain;
    const tr_backend *backend; /* where it evaluates; held while no training runs */
    void *backend_ctx;
    int threads;
    tr_evaluator *evaluator;
    double latency_ms; /* of the chain's network; 0: not measured */
    int attempt;       /* of the stage, from 0 */
} tr_frame;

/* *Collective.* Runs the stage at `place` of the config's pipeline on f->chain, which must hold a network, and
 * writes what it made as `path`.h5; then the chain holds that. `name`: in the lineage, "03-prune". As
 * tr_stage.run otherwise. */
tr_status tr_stage_run(tr_frame *f, size_t place, const char *name, const char *path, bool *agreed);
/* *Local.* What the stage's result depends on besides the file it is made from: its options and the
 * config. Allocated. */
tr_status tr_stage_inputs(const tr_frame *f, size_t place, char **text);
/* *Collective.* Training within a stage: tr_stage_job.train; `job->trainer` is a tr_frame. */
tr_status tr_stage_train_within(const tr_stage_job *job, const tr_training *t, tr_network **out,
                                bool *agreed);
/* *Collective.* The evaluator has something to run on: as many threads as a training would get; no core
 * is bound, as stages come and go. */
tr_status tr_frame_enter_device(tr_frame *f);
/* *Local.* Nothing of the device is held until it is entered again: a training takes its own. */
void tr_frame_leave_device(tr_frame *f);
/* *Collective.* TR_BUDGET where the chain's network misses a bound that needs no model before it. `name`: of the
 * stage that made it, for the error. */
tr_status tr_frame_judge(tr_frame *f, const char *name, const tr_budget *b);
void tr_frame_close(tr_frame *f);

#endif
