/* A config's pipeline in its run folder: what `trainer CONFIG` does, and each trial of a sweep. */
#ifndef TR_JOB_H
#define TR_JOB_H

#include "trainer/loop/trainer.h"

typedef struct {
    tr_comm *comm;
    tr_config *config; /* of a resumed run: keys that it keeps are set */
    bool resume, force, quiet;
    const char *from, *until; /* as tr_pipeline_run takes them */
} tr_job;

/* A config with what it left open: model.round_dims, and what training data says
 * (tr_data_resolve). */
typedef struct {
    tr_config *rounded, *resolved; /* NULL: that was not open */
    tr_config *config;             /* the last of them, or the one that was given */
    tr_model *model;
} tr_settled;

/* *Collective.* `kept`: the folder of a run that has settled it, NULL: none; keys that a run keeps
 * are set in `c` then. Compares what ranks resolved. To be closed where it failed, too. */
tr_status tr_settled_open(tr_comm *comm, tr_config *c, const char *kept, tr_settled *out);
void tr_settled_close(tr_settled *s);

/* *Collective.* Builds the model, compares what ranks resolved, opens the run folder and runs the
 * pipeline. As tr_stage.run otherwise; with *agreed false what it held stays open. */
tr_status tr_job_run(const tr_job *j, bool *agreed);

#endif
