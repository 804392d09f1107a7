/* What run.profile keeps of the steps that it records: profile.c fills it, profile_write.c writes
 * it. Private to them. */
#ifndef TR_STEP_PROFILE_KEPT_H
#define TR_STEP_PROFILE_KEPT_H

#include "optimize/profile/trace.h"
#include "trainer/loop/profile.h"

/* One plan of the training, and what its ops took in all recorded runs. */
typedef struct {
    tr_plan *plan;
    double *seconds; /* [ops], of the last run */
    double *sums;    /* [ops] */
    uint64_t runs;   /* that are in the sums */
} tr_timed_plan;

struct tr_step_profile {
    tr_comm *comm;
    bool host, ops; /* ops can be timed */
    uint64_t wait, warmup, active;
    uint64_t issued; /* steps since the start */
    bool on, counts; /* the step that is issued is profiled; and kept */
    bool written;
    uint64_t step, first; /* its number; of the first one kept */
    uint64_t kept;
    tr_trace trace;
    size_t nplans;
    tr_timed_plan *plans;
    tr_plan *last_plan;                                   /* of the step under way */
    double step_begin, part_begin, reduce_begin, reduced; /* reduced: when a bucket last was */
    int part;                                             /* tr_step_part, or -1 */
    size_t nbuckets;
    const tr_range *buckets;
    int ready;
    double *ready_at;                                  /* [nbuckets] */
    double *bucket_seconds, *bucket_exposed;           /* [nbuckets] sums */
    double data, compute, parts[TR_STEP_PARTS], steps; /* sums */
};

/* Ops are timed from now on, or no longer. */
tr_status tr_step_profile_time_ops(tr_step_profile *p, bool on);

#endif
