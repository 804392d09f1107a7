/* What `trainer plan` plans: a config, its data and its teacher on a machine. All Local. */
#ifndef TR_TRAINER_PLANNED_H
#define TR_TRAINER_PLANNED_H

#include "trainer/loop/teacher.h"
#include "trainer/plan/assume.h"
#include "trainer/plan/plan.h"

typedef struct {
    const tr_config *c;
    const tr_model *m;
    FILE *to;
    tr_assumed on;
    void *backend_ctx;
    int micro_batches;
    size_t rss_before; /* resident before anything is planned */
    bool counted;      /* the data was there to be counted */
    uint64_t train_samples, eval_samples;
    size_t train_held, eval_held, train_loader, eval_loader;
    tr_session *both, *eval;         /* what training holds; evaluation alone */
    int64_t train_batch, eval_batch; /* the largest shares */
    tr_comm *comm;                   /* of one rank: the teacher is read over it */
    tr_teacher *teacher;             /* NULL: none, or its file could not be read */
} tr_planned;

/* Samples of the data, and what holding and loading them takes; where they cannot be counted `to` says so. */
void tr_planned_count(tr_planned *r);
/* Where its file cannot be read `to` says so, and there is none. */
tr_status tr_planned_teacher(tr_planned *r);
tr_session_options tr_planned_options(const tr_planned *r);
/* Those of r->c, r->micro_batches and the samples. */
tr_status tr_planned_sessions(tr_planned *r);
void tr_planned_close_sessions(tr_planned *r);
/* Of rank 0: in training, and in evaluation alone. */
void tr_planned_memory(const tr_planned *r, tr_memory_total *train, tr_memory_total *alone);

/* plan_fit.c: whether the job's ranks fit into a node's memory, or a rank into that of its GPU: `memory` bytes, 0: this
 * machine's as it is now. What helps where they do not, and the largest batch that fits; all of it planned. */
tr_status tr_plan_fit(const tr_planned *r, size_t memory);

#endif
