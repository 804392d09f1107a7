/* run.profile: what some steps of a training do, and when, on all ranks. */
#ifndef TR_STEP_PROFILE_H
#define TR_STEP_PROFILE_H

#include "collectives/collectives.h"
#include "runtime/plan/plan.h"

struct tr_trainer;
typedef struct tr_step_profile tr_step_profile;

/* All memory it takes is allocated here. `keys`: of the session's plans. Leaves t->profile NULL
 * where the config wants none. *Local*, as are the functions below; they do nothing, and read no
 * clock, in steps that are not profiled. */
tr_status tr_step_profile_open(struct tr_trainer *t, const tr_plan_key *keys, size_t nkeys);
void tr_step_profile_close(tr_step_profile *p);
/* To be called before the next step is issued, and when all of it has been. */
tr_status tr_step_profile_begin(struct tr_trainer *t);
void tr_step_profile_end(struct tr_trainer *t);
/* The time now, to be given to tr_step_profile_ran as `begin`; 0, without a look at the clock,
 * where nothing is profiled. */
double tr_step_profile_now(const tr_step_profile *p);
/* A batch is there, after `waited` seconds. */
void tr_step_profile_data(tr_step_profile *p, double waited);
/* A plan has run since `begin`. */
tr_status tr_step_profile_ran(tr_step_profile *p, tr_plan *plan, double begin);
typedef enum { TR_STEP_REDUCE, TR_STEP_UPDATE, TR_STEP_PUBLISH, TR_STEP_PARTS } tr_step_part;
/* A part of the step begins, which ends the one before; the last part ends. */
void tr_step_profile_part(tr_step_profile *p, tr_step_part part);
void tr_step_profile_parted(tr_step_profile *p);
/* Gradients of buckets up to this one are final on this rank. */
void tr_step_profile_ready(tr_step_profile *p, int bucket);
/* Devices: the step after t->state.step was collected, which took so long since `begin`, and
 * waited, computed and communicated for so many seconds. */
tr_status tr_step_profile_collected(struct tr_trainer *t, double begin, const double laps[]);
/* Steps that are profiled are not issued while another one is under way. */
bool tr_step_profile_alone(const tr_step_profile *p);
/* *Collective.* Once enough steps were recorded, or `last`: writes trace.json, profile.txt and the
 * pictures, and the log's table. With no step under way. */
tr_status tr_step_profile_write(struct tr_trainer *t, bool last);

#endif
