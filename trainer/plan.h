/* What a run will take, known before it starts: the memory a rank holds by kind, and the report of
 * `trainer plan`. The same arithmetic serves the report and the summary at the end of a run. */
#ifndef TR_TRAINER_PLAN_H
#define TR_TRAINER_PLAN_H

#include "collectives/collectives.h"
#include "runtime/plan/plan.h"

struct tr_trainer;

/* Memory that grows with the model, the batch or the data. TR_MEM_OTHER (op lists, kernels, the
 * config) stays 0: it is neither predicted nor counted as held. */
typedef struct {
    size_t bytes[TR_MEM_KINDS];
    size_t total;
} tr_memory_total;

/* *Local.* What rank t->rank of the job holds: the reducer's arrays (window bytes / ranks of the
 * node), states, the session's plan (dry or not), datasets kept in memory, loader buffers, and on
 * rank 0 the checkpoint's snapshot. */
tr_status tr_predict_memory(const tr_config *c, const tr_model *m, const tr_topology *t,
                            const tr_memory_plan *session, size_t datasets, size_t loaders,
                            tr_memory_total *out);
/* *Local.* The same for an open trainer, in bytes. */
tr_status tr_predicted_memory(const struct tr_trainer *t, size_t *nbytes);
/* *Local.* What this process holds now of the kinds that are predicted. */
size_t tr_held_memory(const struct tr_trainer *t);

/* What the reducer of a run with `t` costs. *Local.* */
tr_status tr_predict_reducer(const tr_config *c, const tr_model *m, const tr_topology *t,
                             tr_reducer_cost *out);

/* *Local.* `trainer plan`: parameters, memory by kind, arithmetic, communication and a row for
 * every op, for training and evaluation, of rank 0 of `ranks`. Plans on the CPU backend; runs
 * nothing. Data files are opened to count samples; where that fails the report says so and assumes
 * full batches. */
tr_status tr_plan_report(const tr_config *c, const tr_model *m, int ranks, FILE *to);

#endif
