/* Whether the passes over a graph keep what a network answers, on data. */
#ifndef TR_GRAPH_PROOF_H
#define TR_GRAPH_PROOF_H

#include "optimize/evaluation/evaluation.h"

typedef struct {
    const tr_network *network;
    const tr_config *config; /* for what is done to inputs */
    tr_over_source source;
    uint64_t samples; /* the first so many of it */
    unsigned skip;    /* passes that are left out beforehand: a set of TR_PASS_IS */
    double bound;     /* on `difference` */
} tr_graph_proof;

typedef struct {
    size_t found[TR_GRAPH_PASSES]; /* as one sample is answered; 0 of one that is not to run */
    /* The most that an output differs by with and without the pass, those before it at work, over
     * the largest output or 1; 0 of one that finds nothing, NaN where an output is none. */
    double difference[TR_GRAPH_PASSES];
    unsigned undone; /* those that are not to run, as they make more than the bound of it */
} tr_graph_proven;

/* *Collective.* Each pass that finds something is added to those before it, in their order, in mode
 * infer: in batches as evaluations have, then for each of a few samples by itself. The same on
 * every rank, and on any number of them. */
tr_status tr_graph_prove(tr_evaluator *e, const tr_graph_proof *p, tr_graph_proven *out);

#endif
