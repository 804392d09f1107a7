/* What happened when: events of all ranks on one clock, as a Chrome trace (the JSON array format of
 * the Trace Event Format, with metadata), which Perfetto and chrome://tracing open. */
#ifndef TR_TRACE_H
#define TR_TRACE_H

#include "collectives/collectives.h"
#include "runtime/graph/model.h"

typedef enum {
    TR_TRACK_STEP,    /* a step and its parts, one after the other */
    TR_TRACK_OPS,     /* ops */
    TR_TRACK_BUCKETS, /* reductions, which overlap */
    TR_TRACKS
} tr_track;

typedef struct {
    char name[TR_NAME], detail[TR_NAME];
    tr_track track;
    uint64_t step, id;     /* id: of a reduction, its bucket */
    double begin, seconds; /* tr_now */
    double flops, bytes;   /* 0: not said */
} tr_trace_event;

typedef struct {
    size_t count, most, dropped;
    tr_trace_event *v; /* [most], owned */
} tr_trace;

/* Local. Room for `most` events: adding allocates nothing, and drops what has no room. */
tr_status tr_trace_open(tr_trace *t, size_t most);
void tr_trace_free(tr_trace *t);
/* Local. NULL: there is no room. What is returned is to be filled; `name` is cut to fit. */
tr_trace_event *tr_trace_add(tr_trace *t, tr_track track, const char *name, double begin,
                             double seconds);
/* *Collective.* Rank 0 writes all ranks' events, on its own clock, as a file that is whole or
 * absent; `path` is rank 0's. `now`: the clock of their times, tr_now but in tests. */
tr_status tr_trace_write(const tr_trace *t, tr_comm *c, double (*now)(void), const char *path);
/* Local. What is written: of `ranks` traces, whose events are on one clock. */
void tr_trace_print(const tr_trace *t, int ranks, FILE *to);
/* *Collective.* Seconds that this rank's clock is ahead of rank 0's, from the fastest of several
 * messages there and back (Cristian, "Probabilistic clock synchronization", 1989), and what that
 * one took, *trip: *ahead is off by less than half of it. Both 0 on rank 0. */
tr_status tr_trace_clock(tr_comm *c, double (*now)(void), double *ahead, double *trip);

#endif
