/* model.round_dims: widths of hidden layers, as the device's kernels like them. */
#ifndef TR_TRAINER_ROUND_H
#define TR_TRAINER_ROUND_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"

/* *Collective*; `comm` NULL: *Local.* *out, allocated: the config with the layers of the rounded
 * model, one after the other, model.round_dims off; NULL: it is off, or nothing is to be rounded.
 * Says what changed. With `resume`, where the run's folder has a config: what a number says must be
 * the widths there; with auto, widths there hold that some device's rule makes of the written ones.
 * Other widths are TR_CONFIG. */
tr_status tr_config_round(tr_comm *comm, const tr_config *c, bool resume, tr_config **out);

#endif
