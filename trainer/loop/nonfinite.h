/* What becomes of steps and evaluations whose numbers are not finite. */
#ifndef TR_NONFINITE_H
#define TR_NONFINITE_H

#include "trainer/loop/trainer.h"

/* *Collective.* After a step whose update was skipped for another reason than the search for a loss
 * scale. Logs `what`, the reason. TR_NONFINITE where too many updates were skipped
 * (train.max_skips_in_a_row, train.max_skips), with the record of tr_nonfinite_end. */
tr_status tr_nonfinite_skipped(tr_trainer *t, const char *what);
/* *Collective.* Ends training after the step just collected. TR_NONFINITE; its text has the reason
 * `what`, the limit that was reached (or ""), the step's first sample that is not finite, or all of
 * its samples, the learning rate, and what --resume will do. Reads the step's samples again and
 * leaves t->loader at another place. */
tr_status tr_nonfinite_end(tr_trainer *t, const char *what, const char *limit);
/* *Collective.* After an evaluation whose loss is not finite: TR_NONFINITE; its text has the first
 * sample of data.eval that is not finite, if there is one. The first call reads data.eval again. */
tr_status tr_nonfinite_evaluation(tr_trainer *t);
/* *Collective.* At the end of training: TR_NONFINITE where the last evaluation is not finite or no
 * update was made, else TR_OK. */
tr_status tr_nonfinite_result(tr_trainer *t);

#endif
