/* Teachers of stages (finetune: {teacher}), before anything is trained. */
#ifndef TR_TEACHERS_H
#define TR_TEACHERS_H

#include "runtime/graph/model.h"

/* *Local.* Of the stage at `place`: TR_CONFIG where its teacher does not fit the model that the pipeline begins with, as
 * far as it is known yet: what stages before it make is not, nor a file that is nowhere (tr_stages_check_files). `folder`: of
 * the run. */
tr_status tr_stage_teacher_check(const tr_config *c, const tr_model *m, size_t place,
                                 const char *folder);
/* *Local.* Of train.distill and of all stages, as far as their files are there. */
tr_status tr_teachers_check(const tr_config *c, const tr_model *m);

#endif
