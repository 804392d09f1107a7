/* The optimizer over the ranges that this rank owns. Local, but for the step. */
#ifndef TR_OPTIMIZER_H
#define TR_OPTIMIZER_H

#include "collectives/collectives.h"

typedef struct tr_optimizer tr_optimizer;

/* Slots that an optimizer keeps (with EMA as the last), by PyTorch's names; returns how many. */
int tr_optimizer_slots(const tr_config *c, const char *names[TR_PARAM_SLOTS]);

/* Whether its moments are corrected for their first steps. */
bool tr_optimizer_corrects(const tr_config *c);
/* Float64 numbers that its norms take, where it has some. */
size_t tr_optimizer_norms(const tr_config *c, const tr_model *m);
/* Over the store's owned ranges, by `training` of its backend; cut where weight decay or
 * learning rate change. */
tr_status tr_optimizer_open(const tr_config *c, const tr_params *p, void *training,
                            tr_optimizer **out);
void tr_optimizer_close(tr_optimizer *o);
/* *Collective* over `r`'s ranks. In stream order: decides on the step by its sums, then updates w, moments and EMA of the owned
 * ranges where it is to be applied. */
tr_status tr_optimizer_step(tr_optimizer *o, tr_control *c, tr_reducer *r);
/* The weights of the owned ranges change places with their moving average (slot `ema`): evaluate
 * with the average, then swap back. Follow with tr_reducer_publish. */
tr_status tr_optimizer_swap_ema(tr_optimizer *o);

#endif
