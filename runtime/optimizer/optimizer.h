/* The optimizer over the ranges that this rank owns: of a training, and of what times one. Local,
 * but for what sums. */
#ifndef TR_OPTIMIZER_H
#define TR_OPTIMIZER_H

#include "runtime/params/params.h"

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
/* Adds up the ranks' norms, in stream order. */
typedef tr_status (*tr_optimizer_sum)(void *ctx, double *norms, size_t count);
/* *Collective* where `sum` is; NULL: there is one rank. In stream order: decides on the step by its
 * sums, then tr_optimizer_update. */
tr_status tr_optimizer_step(tr_optimizer *o, tr_control *c, tr_optimizer_sum sum, void *ctx);
/* Likewise: updates w, moments and EMA of the owned ranges where c->apply. */
tr_status tr_optimizer_update(tr_optimizer *o, tr_control *c, tr_optimizer_sum sum, void *ctx);
/* Elements that an update reads and writes, for each that it updates. */
double tr_optimizer_traffic(const tr_config *c);
/* The weights of the owned ranges change places with their moving average (slot `ema`): evaluate
 * with the average, then swap back. Follow with tr_reducer_publish. */
tr_status tr_optimizer_swap_ema(tr_optimizer *o);

#endif
