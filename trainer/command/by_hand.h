/* Commands that work on a run file, over all ranks: tr_arguments.on_run_file. */
#ifndef TR_TRAINER_BY_HAND_H
#define TR_TRAINER_BY_HAND_H

#include "trainer/arguments/arguments.h"

/* *Collective.* `c`: of the run file, with the overrides. */
tr_status tr_evaluate_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c,
                              bool *agreed);
tr_status tr_predict_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c,
                             bool *agreed);
tr_status tr_sample_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c, bool *agreed);

/* *Local.* TR_USAGE where a->output is there, if only as a link that leads nowhere, and is not to be replaced; where it
 * is a->config, what is read (NULL: nothing is), always. */
tr_status tr_output_is_free(const tr_arguments *a);

#endif
