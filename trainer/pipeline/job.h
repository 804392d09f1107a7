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

/* *Collective.* Builds the model, compares what ranks resolved, opens the run folder and runs the pipeline. As
 * tr_stage.run otherwise; with *agreed false what it held stays open. */
tr_status tr_job_run(const tr_job *j, bool *agreed);

#endif
