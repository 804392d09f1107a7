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

/* *Local.* TR_USAGE where a->output is there, if only as a link that leads nowhere, and is not to
 * be replaced; where it is what is read, a->config or data that `c` names (NULL: nothing is),
 * always. */
tr_status tr_output_is_free(const tr_arguments *a, const tr_config *c);
/* *Collective.* The same, of rank 0: looking through data may take long. */
tr_status tr_output_is_free_of(const tr_arguments *a, tr_comm *comm, const tr_config *c);

/* What outputs go by: columns of a table, or names of classes. */
typedef struct {
    /* [count], to be freed by tr_free; the texts are the config's. NULL: none are known. */
    const char **of;
    size_t count;
    bool targets; /* a name for each output, of a table's columns; else one for each class */
} tr_output_names;
/* *Local.* `classes`: that so many outputs stand for; 0: values. */
tr_status tr_output_names_of(const tr_config *c, size_t outputs, size_t classes,
                             tr_output_names *out);

#endif
