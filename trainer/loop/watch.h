/* Memory while a training runs: what was predicted beside what is held, a share of the limit that
 * is worth a warning, and pages that the system swaps out, which make everything slow and are
 * seldom noticed. */
#ifndef TR_TRAINER_WATCH_H
#define TR_TRAINER_WATCH_H

#include "runtime/base/base.h"

struct tr_trainer;

typedef struct {
    size_t limit; /* bytes of the rank's node, or of its GPU, that this run may take; 0: no limit */
    double before; /* bytes in use when the limit was set, by this run's programs or by others: the
                      limit is beside them */
    bool warned, told;  /* of the share of it; of swapping */
    bool recorded;      /* the first record of memory is written */
    uint64_t read_back; /* pages that the node had read back from its swap when the loop began */
    size_t peak_most;   /* the largest peak of a rank's process, once gathered */
    int peak_rank;      /* whose */
} tr_memory_watch;

/* *Local.* The limit, and what is in use by now. */
void tr_memory_watch_limit(struct tr_trainer *t, size_t limit);
/* *Local.* The loop begins. */
void tr_memory_watch_begin(struct tr_trainer *t);
/* *Local.* A look at both, by every rank; warns where there is need, each once a node. */
void tr_memory_watch_look(struct tr_trainer *t);
/* *Local.* Rank 0's record of memory by kind. `when`: start, eval, end. */
tr_status tr_memory_watch_record(struct tr_trainer *t, const char *when);
/* *Collective.* Peaks of all ranks, for the end. */
tr_status tr_memory_watch_gather(struct tr_trainer *t);

#endif
