/* Teachers of stages (finetune: {teacher}), and other models that they read, before anything is
 * trained. */
#ifndef TR_TEACHERS_H
#define TR_TEACHERS_H

#include "runtime/graph/model.h"

/* *Local.* Of the stage at `place`: what is wrong where a file that it reads is no run file, or its
 * teacher does not fit the model that the pipeline begins with (TR_CONFIG), as far as that is known
 * yet: stages before may make other layers, and files in the run's `folder`. A file that is nowhere
 * is tr_stages_check_files' to tell. */
tr_status tr_stage_models_check(const tr_config *c, const tr_model *m, size_t place,
                                const char *folder);
/* *Local.* Of train.distill and of all stages; files that are nowhere are errors. */
tr_status tr_stages_models_check(const tr_config *c, const tr_model *m);

#endif
