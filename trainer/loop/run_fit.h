/* A run, before it allocates: does it fit, and what does a limit on memory leave to choose? */
#ifndef TR_RUN_FIT_H
#define TR_RUN_FIT_H

#include "trainer/loop/trainer.h"
#include "trainer/plan/planned.h"

/* *Local.* On one rank of each node, with the data open and nothing else allocated: what `trainer
 * plan` counts against what the node has. TR_MEMORY with both, what would help and
 * run.overcommit_memory, which makes it a warning. A GPU that looks short is a warning: it says
 * itself what it cannot give. */
tr_status tr_plan_judge_run(const tr_trainer *t);
/* *Collective.* With the data open: chooses for the ranks that have the least, on rank 0 for all,
 * and takes the config that says so: t->config, t->config_text. A resumed run keeps its
 * micro-batches. TR_MEMORY where nothing fits, with the smallest limit that would do, unless
 * run.overcommit_memory. */
tr_status tr_plan_choose_run(tr_trainer *t);

/* The plan of a run that is about to start, with its data open, and what closes it. Local. */
tr_status tr_planned_of_run(const tr_trainer *t, tr_planned *r);
void tr_planned_leave_run(const tr_trainer *t, tr_planned *r);
/* Bytes that this run's ranks may count on in the space (those of this node together, or of this
 * rank's GPU): what is free now and, as plans count all that a run holds, what it holds already. */
size_t tr_planned_available(const tr_trainer *t, tr_space space);

#endif
