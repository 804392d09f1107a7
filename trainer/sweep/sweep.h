/* `trainer sweep FILE`: a config's pipeline again and again, with other settings each time. */
#ifndef TR_TRAINER_SWEEP_H
#define TR_TRAINER_SWEEP_H

#include "trainer/arguments/arguments.h"

typedef struct tr_sweep tr_sweep;

/* *Collective.* Reads the sweep's file and its config, and checks every trial's config (of a
 * search: of each value by itself). Nothing is written. Errors name file, line and column. */
tr_status tr_sweep_open(const tr_arguments *a, tr_comm *comm, tr_sweep **out);
void tr_sweep_close(tr_sweep *s);
/* Without any trial's settings: what all of them share. */
const tr_config *tr_sweep_base(const tr_sweep *s);

/* *Collective.* The trials, one after the other, each in a run folder of its own below the sweep's;
 * after each, rank 0 writes the tables and the plot. A trial that is recorded is not run again when
 * resuming. TR_STOPPED as tr_stage.run; the failure of a trial is the sweep's only where it says
 * so, or where no trial is done. *agreed as tr_stage.run. */
tr_status tr_sweep_run(tr_sweep *s, tr_comm *comm, bool *agreed);

/* The reference page (Markdown) of the sweep's file. */
void tr_sweep_help(FILE *to);
/* The JSON schema of its file. */
void tr_sweep_schema(FILE *to);

#endif
