/* What tests of peers that come late or never share. */
#ifndef TR_TESTS_LATE_H
#define TR_TESTS_LATE_H

#include "modes.h"

#include "collectives/reducer/reducer.h"

/* Seconds: the timeout where a rank is to be late, which must be more than a busy machine keeps the
 * others from running; and where nobody may wait for the timeout, so that a test which does never
 * ends. Ranks meet by MPI, outside of the job, for what must come after what. */
#define LATE     1.0
#define FOR_EVER 1e6

static inline int last(const tr_comm *c)
{
    return tr_comm_topology(c)->size - 1;
}

/* A reducer of floats in these buckets, and its parameters. */
static inline tr_reducer *open_reducer(tr_comm *c, const tr_range *buckets, size_t n, tr_params **p)
{
    const tr_params_options o = {.count = buckets[n - 1].end, .buckets = buckets, .nbuckets = n};
    const tr_reducer_options ro = {0};
    tr_reducer *r = NULL;
    assert_int_equal(tr_comm_params_open(c, &o, &ro, p), TR_OK);
    assert_int_equal(tr_reducer_open(c, *p, &ro, &r), TR_OK);
    return r;
}

#endif
