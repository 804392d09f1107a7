/* Which parts of a model are to be recomputed in the backward pass, for a bound on what the arena
 * holds: the choice with the least arithmetic, by dynamic programming over the cut points of the
 * forward ops. All Local. */
#ifndef TR_SEGMENTS_H
#define TR_SEGMENTS_H

#include "runtime/plan/plan.h"

typedef struct tr_cuts tr_cuts;

/* Of a training plan in which nothing is recomputed, which stays the caller's; `cost`: [ops of its
 * graph] what running each once more takes, in whatever unit. */
tr_status tr_cuts_open(const tr_plan *p, const double *cost, tr_cuts **out);
void tr_cuts_close(tr_cuts *c);
/* Bytes, as they are modelled: where nothing is recomputed; the least that some choice comes to.
 * They are near to what the planner packs, not equal: who has a bound tries what is chosen for some
 * bytes, and takes more or less. */
double tr_cuts_most(const tr_cuts *c);
double tr_cuts_least(const tr_cuts *c);
/* The cheapest choice whose modelled bytes are at most `nbytes`: segments [layers + 1], as in
 * tr_graph_options, and what it costs. False: there is none. */
bool tr_cuts_choose(const tr_cuts *c, double nbytes, int *segments, double *cost);

#endif
