/* The frame around stages: what a pipeline's stages run in, one after the other. */
#ifndef TR_TRAINER_FRAME_H
#define TR_TRAINER_FRAME_H

#include "trainer/device/affinity.h"
#include "trainer/device/device.h"
#include "trainer/loop/trainer.h"
#include "trainer/models/chain.h"
#include "trainer/stages/stages.h"

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

/* *Collective.* The evaluator has something to run on: as many threads as a training would get; no
 * core is bound, as stages come and go. */
tr_status tr_frame_enter_device(tr_frame *f);
/* *Collective.* Another device beside that one: tr_stage_job.open_device. */
tr_status tr_frame_open_device(tr_frame *f, tr_device device, tr_precision precision,
                               tr_stage_device *out);
/* *Local.* Nothing of the device is held until it is entered again: a training takes its own. */
void tr_frame_leave_device(tr_frame *f);
/* *Collective.* Of one sample, as the frame's config has it run. */
tr_status tr_frame_latency(const tr_frame *f, const tr_network *n, double *ms);
/* *Collective.* The same of the chain's network and of `n`, side by side: only such times may be
 * divided. */
tr_status tr_frame_latencies(const tr_frame *f, const tr_network *n, double *parent_ms, double *ms);
/* *Collective.* TR_BUDGET where the chain's network misses one of the budget's absolute bounds
 * (accuracy, loss, size_mb, latency_ms); those that compare with a parent are not looked at.
 * `name`: of the stage that made the network, for the error. Measures f->latency_ms where the
 * budget bounds it and it is 0. */
tr_status tr_frame_judge(tr_frame *f, const char *name, const tr_budget *b);
void tr_frame_close(tr_frame *f);

#endif
