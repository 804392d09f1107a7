/* The pipeline: a config's stages one after the other, and one stage by hand. */
#ifndef TR_PIPELINE_H
#define TR_PIPELINE_H

#include "trainer/arguments/arguments.h"
#include "trainer/loop/trainer.h"

/* *Collective.* Runs the stages of the config's pipeline in the run folder. With o->resume a stage
 * whose file is there, made from the same file with the same options and config, is not run again;
 * where one is, so are those behind it. `from`, `until`: names of stages, "prune" or "02-prune";
 * NULL: from the first, to the last. As tr_stage.run otherwise. */
tr_status tr_pipeline_run(const tr_trainer_options *o, const char *from, const char *until,
                          bool *agreed);

/* *Collective.* The one stage of the pipeline of `c`, on the run file a->config, whose config it
 * is. What it makes goes beside the file: "model.h5" -> "model-prune.h5". */
tr_status tr_stage_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c, bool *agreed);

#endif
