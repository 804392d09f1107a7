/* How long a network takes for one sample. */
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
} tr_latency_options;

/* *Collective.* Rank 0 measures, the others sleep: the median over calls with one sample, after as many
 * that are not counted, in milliseconds. */
tr_status tr_latency(tr_comm *comm, const tr_network *n, const tr_latency_options *o, double *ms);

#endif
