/* How long ops of a plan take, known before they run: as profiles in the run folder measured them,
 * of steps of one batch or of several; else by the roofline of machine.json there; else by their
 * arithmetic and bytes on a machine that is made up, which is good enough to tell what costs more,
 * not to say seconds. A call takes some time whatever its batch. All Local. */
#ifndef TR_TRAINER_OP_TIME_H
#define TR_TRAINER_OP_TIME_H

#include "runtime/config/config.h"
#include "runtime/plan/plan.h"

typedef struct tr_op_time tr_op_time;

typedef enum { TR_TIME_COUNTED, TR_TIME_ROOFLINE, TR_TIME_MEASURED } tr_time_source;

/* Looks into c->output. Files that cannot be read are as if they were not there. */
tr_status tr_op_time_open(const tr_config *c, const tr_backend *b, void *ctx, int threads,
                          tr_op_time **out);
void tr_op_time_close(tr_op_time *t);
tr_time_source tr_op_time_source(const tr_op_time *t);
/* Of row i; what was not measured is of the roofline, as is how an op that was measured goes with
 * the batch. */
double tr_op_time_of(const tr_op_time *t, const tr_plan *p, size_t i);
/* Of all rows. */
double tr_op_time_all(const tr_op_time *t, const tr_plan *p);

#endif
