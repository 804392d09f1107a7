/* What tests of peers that come late or never share. */
#ifndef TR_TESTS_LATE_H
#define TR_TESTS_LATE_H

#include "modes.h"

/* Seconds: the timeout where a rank is to be late, which must be more than a busy machine keeps the others
 * from running; and where nobody may wait for the timeout, so that a test which does never ends. Ranks meet
 * by MPI, outside of the job, for what must come after what. */
#define LATE     1.0
#define FOR_EVER 1e6

static inline int last(const tr_comm *c)
{
    return tr_comm_topology(c)->size - 1;
}

#endif
