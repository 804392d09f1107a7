/* The stages that a pipeline may hold. All functions are Local. */
#ifndef TR_STAGES_H
#define TR_STAGES_H

#include <limits.h>

#include "optimize/stages/stages.h"

extern const tr_stage tr_stage_train; /* train.c */
/* *Local.* Of the stage `train` at that place; NULL: none. */
const tr_budget *tr_train_budget(const tr_config *c, size_t place);

enum { TR_STAGES = 10 };
/* In the order of the reference page; the first one alone is the pipeline where a config gives
 * none. An item's `which` in tr_config.pipeline is its index here. */
extern const tr_stage *const tr_stages[TR_STAGES];

/* Of the config's pipeline. */
const tr_stage *tr_stage_at(const tr_config *c, size_t place);

/* As tr_config_open takes them. */
void tr_stages_known(tr_variant_def out[TR_STAGES + 1]);
/* What each stage of the config's pipeline has to say about it; the first error. */
tr_status tr_stages_check(const tr_config *c);
/* And about the model that it begins with. */
tr_status tr_stages_check_model(const tr_config *c, const tr_model *m);
/* The stage that leaves a file of that path within the run's folder (tr_file_within): model.h5 and
 * what checkpoints are called are the training's, what lies in stages/ under a stage's name is that
 * one's. SIZE_MAX: none does. */
size_t tr_stages_maker(const tr_config *c, const char *path);
/* The stage that leaves the file that an option names, as tr_stage_file will find it then, and its
 * path within the folder. SIZE_MAX: none does. */
size_t tr_stages_makes(const tr_config *c, const char *folder, const char *named,
                       char within[PATH_MAX]);
/* That is none of this stage itself, nor of a later one, whatever a run before left there. */
tr_status tr_stages_check_order(const tr_config *c, size_t place, const char *option,
                                const char *path);
/* Files that the stage at `place` reads are there, or those before it make them in the run's
 * folder. */
tr_status tr_stages_check_files(const tr_config *c, size_t place, const char *folder);
/* A pipeline begins with what makes its model. */
tr_status tr_stages_check_first(const tr_config *c);

#endif
