/* What a run will take, known before it starts: the memory a rank holds by kind, and the report of
 * `trainer plan`. The same arithmetic serves the report and the summary at the end of a run. */
#ifndef TR_TRAINER_PLAN_H
#define TR_TRAINER_PLAN_H

#include "collectives/collectives.h"
#include "runtime/plan/plan.h"
#include "trainer/device/space.h"

/* What a prediction is made from, of one rank. */
typedef struct {
    const tr_config *config;
    const tr_model *model;
    const tr_backend *backend;
    const tr_topology *topology;
    bool nccl;                /* as in tr_reducer_options */
    size_t datasets, loaders; /* bytes kept in memory, of loader buffers */
} tr_memory_of;

/* *Local.* What rank t->rank of the job holds: the reducer's arrays (window bytes / ranks of the
 * node), states, the session's plan (dry or not), datasets kept in memory, loader buffers, what the
 * backend keeps for copies, and on rank 0 the checkpoint's snapshot, if there is one. */
void tr_predict_memory(const tr_memory_of *of, const tr_memory_plan *session, tr_memory_total *out);
/* *Local.* Whether rank 0 holds a snapshot for checkpoints: where files are written while training
 * goes on, and where the arrays lie with others, or on a device, or are not written as they are.
 * Datasets and loaders do not matter. */
bool tr_saves_copies(const tr_memory_of *of);
/* *Local.* As tr_predict_memory for evaluation alone (a model that is only used): its weights, its
 * session, data and loader, what the backend keeps. */
void tr_predict_evaluation(const tr_memory_of *of, const tr_memory_plan *session,
                           tr_memory_total *out);
/* *Local.* The totals, of what is there by kind now; TR_MEM_OTHER becomes 0. */
void tr_memory_add_up(tr_memory_total *t);

/* *Local.* "7 buckets of up to 26.4 MB", in which gradients are reduced. */
void tr_describe_buckets(const tr_model *m, char *buf, size_t size);

/* *Local.* What a run's parameter store and reducer are opened with; who has them adds the
 * backend's context and the program's reducers for GPUs. */
tr_params_options tr_params_options_of(const tr_config *c, const tr_model *m, const tr_backend *b);
tr_reducer_options tr_reducer_options_of(const tr_config *c, const tr_backend *b,
                                         const tr_topology *t, bool nccl);
/* What the reducer of a run costs. *Local.* */
void tr_predict_reducer(const tr_memory_of *of, tr_reducer_cost *out);

typedef enum { TR_PLAN_TEXT, TR_PLAN_SUMMARY, TR_PLAN_JSON } tr_plan_form;

typedef struct {
    int ranks, nodes; /* nodes: at most one with fewer ranks than the others */
    size_t memory;    /* of a node, or of a GPU, which the job is judged by; 0: this machine's */
    bool largest;     /* instead of the report: the largest batch and micro-batch that fit */
    tr_plan_form form;
} tr_plan_request;

/* *Local.* `trainer plan`: parameters, memory by kind, arithmetic, communication and a row for
 * every op, for training and evaluation, of rank 0. Runs nothing, and plans for GPUs
 * without one (trainer/plan/assume.h). Data files are opened to count samples; where that fails the
 * report says so and assumes full batches. TR_MEMORY, behind the report, where it says that the job
 * does not fit (unless run.overcommit_memory) or, with `largest`, that not one sample does. */
tr_status tr_plan_report(const tr_config *c, tr_model *m, const tr_plan_request *q, FILE *to);

#endif
