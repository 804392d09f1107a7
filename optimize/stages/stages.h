/* The stages that this folder has, one a file. */
#ifndef TR_OPTIMIZE_STAGES_H
#define TR_OPTIMIZE_STAGES_H

#include "optimize/stage.h"

extern const tr_stage tr_stage_quantize;
extern const tr_stage tr_stage_benchmark;
extern const tr_stage tr_stage_finetune;
extern const tr_stage tr_stage_fold;
extern const tr_stage tr_stage_prune;
extern const tr_stage tr_stage_sketch;
extern const tr_stage tr_stage_export;
extern const tr_stage tr_stage_profile;
extern const tr_stage tr_stage_report;

/* Whether layers round values to 8 bits: a value between two steps may go to the other one for the
 * last bit of what it is made of. */
bool tr_stage_rounds(const tr_model *m);

/* Whether a device that was opened with this config adds up float32 in float32, in the same order
 * each time: CPUs do, GPUs without TF32 and with run.deterministic: on. */
bool tr_stage_exact(const tr_config *run, bool host);

/* Of the stage at this place of the pipeline. */
const char *tr_stage_name(const tr_config *c, size_t place);

/* Before the stage runs: one before it makes a sketch of the layer, for certain. */
bool tr_stage_sketched(const tr_stage_outlook *o, const tr_layer *l);

/* TR_CONFIG, with the option's key, where one of `options` (NULL-ended) is other than its default,
 * though it means nothing: `why`, "with kind: pattern". What is written as the default is taken:
 * resolved configs have all options. */
tr_status tr_stage_idle(const tr_config *c, size_t place, const char *why,
                        const char *const *options);

/* TR_MEMORY, with the option's key, where the host has not the bytes that are taken with `batch`
 * samples at once. */
tr_status tr_stage_fits(const tr_stage_job *job, const char *option, int64_t batch, size_t nbytes);

/* *Collective.* What data answers are compared on: data.eval, else data.train, as far as files are
 * at hand. `why`: empty, or why neither is, which is the last error then; only what is more than
 * files that cannot be read is an error. */
tr_status tr_stage_source(const tr_stage_job *job, tr_over_source *source, char why[TR_ERROR_TEXT]);

/* *Collective.* The passes over the graph of what a stage made (tr_graph_prove), on the first so
 * many samples of tr_stage_source; where there is none they stay unproven, which is said. `c`: for
 * what is done to inputs. What is found is the table `graph_passes`; one that makes more than
 * `bound` is said, and `made` is computed without it from here on, as its file says. */
tr_status tr_stage_prove_graph(const tr_stage_job *job, const tr_config *c, uint64_t samples,
                               double bound, tr_network *made);

/* ---- training_keys.c: what a stage's option `train`, a map of keys of `train` (or NULL), is to a
 * training within it. Local. */

/* What a training would be started with must be a config; told where the key stands, and of which
 * stage. */
tr_status tr_training_keys_check(const tr_config *c, size_t place, const tr_overrides *o);
/* It must be of a model that can be trained so, as far as that is known. option: what asks for
 * gradients. */
tr_status tr_training_model_check(const tr_stage_outlook *o, const char *option,
                                  const tr_node *train);
/* *Collective.* job->train; a mistake in its config is told likewise. */
tr_status tr_training_run(const tr_stage_job *job, const tr_training *t, tr_network **out,
                          bool *agreed);

#endif
