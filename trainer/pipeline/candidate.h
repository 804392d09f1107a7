/* The file of what a stage made, until it is found good: PATH.candidate.h5. */
#ifndef TR_CANDIDATE_H
#define TR_CANDIDATE_H

#include "trainer/pipeline/frame.h"

typedef struct {
    const tr_frame *frame; /* whose chain holds the parent */
    const char *name;      /* of the stage, for errors */
    const char *path;      /* the stage's, to which extensions are added */
    char *file;            /* owned */
    tr_config *config;     /* that rebuilds what the stage made; owned */
    char *text;            /* of it, as the file has it; of malloc, owned */
    uint64_t nbytes;       /* of the file, on all ranks */
} tr_candidate;

/* *Local.* Nothing is written yet. */
tr_status tr_candidate_open(const tr_frame *f, const char *name, const char *path,
                            tr_candidate *out);
/* *Local.* Rank 0 removes the file, where it did not take a place. */
void tr_candidate_close(tr_candidate *c);
/* *Local.* What the stage made has come: its config. */
tr_status tr_candidate_resolve(tr_candidate *c, const tr_stage_result *made);
/* *Collective.* Rank 0 writes it and reads it back: it must be `n` bit for bit. */
tr_status tr_candidate_write(tr_candidate *c, const tr_network *n, const tr_lineage *lineage);
/* *Local*, rank 0. It is PATH.h5 from now on; PATH.rejected.h5 of an earlier run goes. */
tr_status tr_candidate_accept(const tr_candidate *c);
/* *Local*, rank 0. It is PATH.rejected.h5 from now on, which the log says. */
void tr_candidate_reject(const tr_candidate *c);

#endif
