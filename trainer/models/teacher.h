/* The teacher of a training (train.distill): another network, which runs in mode infer on the same
 * samples, right before the plan that learns from it. */
#ifndef TR_TEACHER_H
#define TR_TEACHER_H

#include "runtime/data/data.h"
#include "runtime/plan/plan.h"
#include "trainer/device/space.h"
#include "trainer/models/chain.h"

typedef struct tr_teacher tr_teacher;

typedef struct {
    tr_comm *comm;
    const tr_config *config; /* with train.distill */
    const tr_model *model;   /* that learns */
} tr_teacher_options;

/* Where a teacher is asked for. */
typedef struct {
    const tr_config *config;
    const char *key;       /* "train.distill", "pipeline.1.finetune" */
    bool model_may_change; /* stages before it may make other layers */
} tr_teacher_place;

/* *Local.* Ahead of a training: reads the model, without its values, in the file at `path`, which
 * d->teacher names; TR_CONFIG where its inputs, classes or features would not fit those of the
 * model that the pipeline begins with. */
tr_status tr_teacher_check(const tr_teacher_place *at, const tr_distill_config *d, const char *path,
                           const tr_model *m);

/* *Collective.* Reads the file; TR_CONFIG where its inputs, classes or features do not fit the
 * model's. */
tr_status tr_teacher_open(const tr_teacher_options *o, tr_teacher **out);
void tr_teacher_close(tr_teacher *t);
/* What a session's train plans need to know. */
const tr_distill *tr_teacher_distill(const tr_teacher *t);
const char *tr_teacher_sha256(const tr_teacher *t);

/* *Local.* Its kernels, for the train plans among the keys; `loader`: of the samples that the model
 * trains on, which has the teacher's too, unless its file says that they are normalized otherwise:
 * then it has a loader of its own. */
tr_status tr_teacher_ready(tr_teacher *t, const tr_session_options *session,
                           const tr_loader_options *loader);
/* *Local.* Instead: dry sessions, as `session` says, for what it would take. No loader of its own
 * is counted then. */
tr_status tr_teacher_plan(tr_teacher *t, const tr_session_options *session);
/* *Local.* Those go; NULL is fine. */
void tr_teacher_forget(tr_teacher *t);
const tr_model *tr_teacher_model(const tr_teacher *t);
/* *Local.* Of a sample, in batches of a train plan. */
double tr_teacher_flops(const tr_teacher *t, int64_t batch);
/* *Local.* As tr_session_stage, before each batch of any kind: both sessions count alike. */
tr_status tr_teacher_stage(tr_teacher *t);
tr_status tr_teacher_staged(const tr_teacher *t, bool *done);
/* *Local.* The samples of a batch that was staged; not of one without samples. */
tr_status tr_teacher_set(tr_teacher *t, const tr_batch *batch);
/* *Local.* Runs it and hands what it makes to the plan, which is to run next. */
tr_status tr_teacher_run(tr_teacher *t, tr_plan *plan, const tr_run *run);
/* What it takes: weights on the host, where those of a device come from, and what its session and
 * loader hold. */
void tr_teacher_memory(const tr_teacher *t, tr_memory_total *add);

#endif
