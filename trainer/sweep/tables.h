/* Private to what writes a sweep's tables. All functions are Local, rank 0. */
#ifndef TR_TRAINER_SWEEP_TABLES_H
#define TR_TRAINER_SWEEP_TABLES_H

#include "trainer/sweep/internal.h"

typedef struct {
    const tr_sweep *s;
    tr_verdict *verdicts; /* [ntrials] */
    const char *turns;    /* the timing that is shown: tr_sweep_timed */
    const char *untimed;  /* why the last timing is missing; NULL: it is not */
    size_t best;
} tr_sweep_tables;

static inline bool tr_trial_done(const tr_trial *t)
{
    return t->result.state == TR_TRIAL_DONE;
}
/* What the trial has in a column of its settings; "": what the config has. To be released by
 * tr_free. */
tr_status tr_trial_value(const tr_trial *t, size_t column, char **out);
/* All trials that ended, a row each, under the names of their columns: aligned, or as markdown
 * too. */
tr_status tr_sweep_rows(const tr_sweep_tables *x, bool markdown, FILE *to);

#endif
