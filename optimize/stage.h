/* A stage of the pipeline: what `trainer` runs one after another under `pipeline:`. Each is a const
 * tr_stage in a file of its own; the one list of them is trainer/stages.c. */
#ifndef TR_STAGE_H
#define TR_STAGE_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"

/* What a stage gets to run with. Nothing in it is the stage's to release. */
typedef struct {
    const tr_config *config;
    size_t place;        /* in config->pipeline */
    const void *options; /* the struct that `fields` filled; NULL without fields */
    tr_comm *comm;
    /* *Collective.* The training loop as the config describes it, in the run folder: from its last
     * checkpoint to the end, a stop (TR_STOPPED) or a failure. As tr_stage.run otherwise. */
    tr_status (*train)(void *trainer, bool *agreed);
    void *trainer;
} tr_stage_job;

typedef struct {
    const char *name;
    const char *doc;        /* one sentence, for the reference page */
    const tr_field *fields; /* of its options; NULL: none */
    size_t options_size;    /* of the struct they fill */
    /* *Local.* What the table of fields cannot say, before anything is opened: TR_CONFIG with the
     * position. `place`: of this stage in c->pipeline. May be NULL. */
    tr_status (*check)(const tr_config *c, size_t place);
    /* *Collective.* *agreed false: this rank failed where the others do not know of it, and the job
     * must be ended; else all ranks return the same status. */
    tr_status (*run)(const tr_stage_job *job, bool *agreed);
} tr_stage;

#endif
