/* model.round_dims: widths of hidden layers, as the device's kernels like them. */
#ifndef TR_TRAINER_ROUND_H
#define TR_TRAINER_ROUND_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"

/* *Collective*; `comm` NULL: *Local.* *out, allocated: the config with the layers of the rounded
 * model, one after the other, model.round_dims off; NULL: it is off, or nothing is to be rounded.
 * Logs what changed. Where `kept`, a run's folder (NULL: none), has a config, the widths there
 * count: with a number in model.round_dims this must come to the same ones; with auto, which asks
 * for other multiples on other devices, they are taken as they are where they are what some
 * device's multiples make of the written widths. TR_CONFIG otherwise. */
tr_status tr_config_round(tr_comm *comm, const tr_config *c, const char *kept, tr_config **out);

#endif
