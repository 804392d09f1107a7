/* One plan, ready to run on random samples as often as is wanted. Private to this room. */
#ifndef TR_PROFILE_STEP_H
#define TR_PROFILE_STEP_H

#include "optimize/profile/profile.h"

typedef struct {
    const tr_profile_options *o; /* borrowed */
    tr_params *params;
    tr_session *session;
    tr_plan *plan;
    void *inputs[TR_MAX_IN], *target; /* of host_alloc */
    float *weights;                   /* of samples, likewise */
    double *tally;                    /* in the backend's memory, as is the control */
    tr_control *control;
    void *training;
    tr_optimizer *optimizer; /* NULL: there is no update */
} tr_profile_step;

/* To be closed, also after a failure. */
tr_status tr_profile_step_open(const tr_profile_options *o, tr_profile_step *s);
void tr_profile_step_close(tr_profile_step *s);
/* *seconds: of the whole; *update: of the last part of it. */
tr_status tr_profile_step_run(tr_profile_step *s, const tr_hooks *hooks, double *seconds,
                              double *update);

#endif
