/* What is another in a run that is gone on with than it was. */
#ifndef TR_TRAINER_RESUME_H
#define TR_TRAINER_RESUME_H

#include "trainer/loop/trainer.h"

/* *Local*, rank 0. `t` as restored, `was`: the state that the checkpoint holds, `text`: its config.
 * Where `say`: every key that differs is told, by its effect, and so is a learning rate that jumps.
 * *changed: some key differs. TR_CONFIG where a key cannot change in the middle of a run, or the
 * run is at its end and another key would have made other numbers. A config that this program
 * cannot read is told, and counts as changed. */
tr_status tr_resume_compare(const tr_trainer *t, const tr_train_state *was, const char *text,
                            bool say, bool *changed);
/* *Collective.* Whether this start, which found the run at its end, leaves it as it is: model.h5 is
 * there, whole, and what the config asks for. */
tr_status tr_resume_complete(tr_trainer *t, bool *is);

#endif
