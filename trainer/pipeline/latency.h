/* How long networks take for one sample. */
#ifndef TR_LATENCY_H
#define TR_LATENCY_H

#include "collectives/collectives.h"
#include "optimize/network/network.h"
#include "runtime/device/backend.h"

typedef struct {
    const tr_backend *backend;
    void *backend_ctx;
    int threads;
    tr_precision precision;
    unsigned skip_passes; /* of the graph: a set of TR_PASS_IS */
    const char *of;       /* the file whose model is timed, or what is made of it */
} tr_latency_options;

/* *Collective.* Rank 0 measures, the others sleep: ms[i], what a call with one sample takes through
 * n[i], in milliseconds. The networks take turns of calls, so that what drifts on the machine meets
 * all alike, and of each the quietest turn counts, by its median: other work that comes and goes
 * does not. Where no three turns of a network agree on that, a warning says so, of each file once;
 * of trials beside each other none does, as they are timed again alone. */
tr_status tr_latency(tr_comm *comm, const tr_network *const *n, size_t count,
                     const tr_latency_options *o, double *ms);

#endif
