/* What becomes of steps and evaluations whose numbers are not finite. */
#ifndef TR_NONFINITE_H
#define TR_NONFINITE_H

#include "trainer/trainer.h"

/* *Collective.* After a step whose update was skipped, and not in the search for a loss scale; `what`
 * went wrong. Says so; TR_NONFINITE with what to look at once there were too many
 * (train.max_skips_in_a_row, train.max_skips). */
tr_status tr_nonfinite_skipped(tr_trainer *t, const char *what);
/* *Collective.* Training ends with the step just collected: TR_NONFINITE, with what went wrong, the
 * limit that is reached (or ""), and what may be the cause: a sample that is not finite itself, else
 * which samples there were, and the learning rate. Reads the step's samples again: t->loader is then
 * somewhere else. */
tr_status tr_nonfinite_end(tr_trainer *t, const char *what, const char *limit);
/* *Collective.* The record for an evaluation whose loss is not finite: TR_NONFINITE, with the first
 * sample that is not finite itself, if there is one. Reads data.eval again. */
tr_status tr_nonfinite_evaluation(tr_trainer *t);
/* *Collective.* At the end of training: TR_OK, or TR_NONFINITE where the last evaluation was not
 * finite, or no update was ever made: such a model is no result. */
tr_status tr_nonfinite_result(tr_trainer *t);

#endif
