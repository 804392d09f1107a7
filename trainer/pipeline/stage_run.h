/* One stage, in the frame that a pipeline's stages share. */
#ifndef TR_STAGE_RUN_H
#define TR_STAGE_RUN_H

#include "trainer/pipeline/frame.h"

/* *Collective.* Runs the stage at `place` of the config's pipeline on f->chain, which must hold a
 * network, and writes what it made as `path`.h5; then the chain holds that. `name`: in the lineage,
 * "03-prune". As tr_stage.run otherwise. */
tr_status tr_stage_run(tr_frame *f, size_t place, const char *name, const char *path, bool *agreed);
/* *Local*, rank 0. Whether `file`, of the stage at that place, is what the stage would make again
 * of f->chain; if not, why. The status is not TR_OK where nobody could look. */
tr_status tr_stage_is_done(const tr_frame *f, size_t place, const char *file, bool *done, char *why,
                           size_t size);
/* *Local.* What the stage's result depends on besides the file it is made from: its options and the
 * config. Allocated. */
tr_status tr_stage_inputs(const tr_frame *f, size_t place, char **text);
/* *Local.* Options from the field `from` on, a line each. Of malloc. */
tr_status tr_stage_options_text(const tr_stage *s, const void *options, size_t from, char **out);
/* *Local.* The config as its run file has it: a layer a line, as stages write layers out one by
 * one. Of malloc. */
tr_status tr_stage_config_text(const tr_config *c, char **text);
/* *Local.* The first key in which YAML differs from what it was, "train.batch: 32, was 16", and how
 * many more; "": none does. path: of the whole, "prune" or "". */
tr_status tr_stage_change(const char *path, const char *was, const char *is, char *out,
                          size_t size);
/* *Local.* The same of two tr_stage_inputs of a stage. */
tr_status tr_stage_inputs_change(const tr_stage *s, const char *was, const char *is, char *out,
                                 size_t size);
/* *Collective.* Training within a stage: tr_stage_job.train; `job->trainer` is a tr_frame. */
tr_status tr_stage_train_within(const tr_stage_job *job, const tr_training *t, tr_network **out,
                                bool *agreed);

#endif
