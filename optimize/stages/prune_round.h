/* What the stage `prune` is made of: its options, and one round of it. Private to the stage. */
#ifndef TR_STAGES_PRUNE_ROUND_H
#define TR_STAGES_PRUNE_ROUND_H

#include "optimize/prune/prune.h"
#include "optimize/stages/stages.h"

enum { TR_PRUNE_CHANNELS, TR_PRUNE_WEIGHTS, TR_PRUNE_PATTERN }; /* kind */

typedef struct {
    tr_stage_common common;
    int kind, by, measure, schedule;
    double amount, most, sensitivity;
    bool global;
    tr_ints pattern;
    int64_t multiple, samples, rounds;
    const tr_node *keep, *train;
} tr_prune_options;

typedef struct {
    const tr_stage_job *job;
    const tr_prune_options *o;
    const char **keep;
    size_t nkeep;
    float *gradients; /* of the network as it stands; NULL: not asked for */
    tr_groups first;  /* channels: of the network that came in */
    double *shares;   /* of these, weights: of tr_mask_layers; NULL: all alike */
    double before;    /* what the measure was at first */
} tr_prune_work;

/* *Collective.* What the options measure, of a network: parameters, multiply-adds, or the time of a
 * sample over what the parent takes. */
tr_status tr_prune_measure_of(const tr_prune_work *w, const tr_network *n, double *out);
/* *Local.* Weights: how many of them masks are of, and which layers are left as they are. */
void tr_prune_say_left_out(const tr_prune_work *w, const tr_model *m);
/* *Collective*, where it succeeds; else the caller agrees. Until `left` of the measure, or of the
 * weights, is left; *out: the caller's. */
tr_status tr_prune_once(tr_prune_work *w, const tr_network *n, double left, tr_network **out);

#endif
