/* The machine that `trainer plan` plans for: the one it is asked on, or none that is at hand. */
#ifndef TR_TRAINER_ASSUME_H
#define TR_TRAINER_ASSUME_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"

typedef struct {
    const tr_backend *backend;
    int threads;                /* of a rank's kernels, on CPUs */
    tr_backend_options options; /* a GPU's backend is opened dry */
    tr_topology topology;
    char reason[160]; /* topology.reason */
    /* why device: auto plans for CPUs though there is a driver, GPUs that are missing here; "":
     * nothing */
    char note[640];
} tr_assumed;

/* *Local.* For as many ranks on each of `nodes` nodes. For device: cuda GPUs that need not be there
 * (they are counted, for the note, where it takes several), for auto GPUs where this machine has
 * one and it knows the precision. Fails as a run with this config would. Not to be copied:
 * topology.reason points into it. */
tr_status tr_assume(const tr_config *c, int ranks, int nodes, tr_assumed *out);
/* The same ranks on as many nodes. `reason` is referred to. */
void tr_assume_nodes(const tr_config *c, const tr_assumed *a, int nodes, tr_topology *t,
                     char *reason, size_t room);

#endif
