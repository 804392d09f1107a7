/* The optimizer over the ranges that this rank owns. Local. */
#ifndef TR_OPTIMIZER_H
#define TR_OPTIMIZER_H

#include "runtime/params/params.h"

typedef struct tr_optimizer tr_optimizer;

/* Slots that an optimizer keeps (with EMA as the last), by PyTorch's names; returns how many. */
int tr_optimizer_slots(const tr_config *c, const char *names[TR_PARAM_SLOTS]);

/* Over the store's owned ranges, by `training` of its backend; cut where weight decay or
 * learning rate change. */
tr_status tr_optimizer_open(const tr_config *c, const tr_params *p, void *training,
                            tr_optimizer **out);
void tr_optimizer_close(tr_optimizer *o);
/* In stream order: decides on the step by its sums, then updates w, moments and EMA of the owned
 * ranges where it is to be applied. */
tr_status tr_optimizer_step(tr_optimizer *o, tr_control *c);
/* The weights of the owned ranges change places with their moving average (slot `ema`): evaluate
 * with the average, then swap back. Follow with tr_reducer_publish. */
tr_status tr_optimizer_swap_ema(tr_optimizer *o);

#endif
