/* Pruning: weights set to 0 and kept there (masks), or channels really removed (structured). All
 * Local but where a function that is handed in is not; the same input gives the same network
 * everywhere. */
#ifndef TR_PRUNE_H
#define TR_PRUNE_H

#include "optimize/network/network.h"

/* What says how little a weight or a channel counts. */
typedef enum {
    TR_PRUNE_L1,        /* sum of |w| */
    TR_PRUNE_L2,        /* channels: square root of the sum of w^2; weights: as L1 */
    TR_PRUNE_RANDOM,    /* by seed */
    TR_PRUNE_BATCHNORM, /* channels: |weight| of the batchnorms on them; L1 where there is none */
    TR_PRUNE_TAYLOR     /* |w g|, of channels |sum of w g|: change of the loss to first order
                           (Molchanov et al. 2017) */
} tr_prune_by;

/* ---- Masks ----------------------------------------------------------------------------------- */

typedef struct {
    tr_prune_by by;
    double amount;  /* of the weights that are looked at, so many are 0 afterwards: in [0, 1] */
    bool per_layer; /* in each layer; else of all layers together */
    /* n > 0: instead, of m weights that follow each other along the inputs n stay (2:4). */
    int64_t n, m;
    /* Of each layer its own amount, in [0, 1], as tr_mask_amounts has it; [layers], NULL:
     * `amount`. */
    const double *amounts;
    uint64_t seed;           /* RANDOM */
    const float *gradients;  /* TAYLOR: [flat_count] of the loss, by the network's offsets */
    const char *const *keep; /* layers that are left alone */
    size_t nkeep;
} tr_mask_options;

/* Weights of products; each layer that owns one is `masked: true` in the network that comes out.
 * What was 0 counts as 0 and stays. TR_CONFIG where options make no sense. */
tr_status tr_mask(const tr_network *n, const tr_mask_options *o, tr_network **out);
/* The layers whose weights are looked at, by index, ascending: how many. out: [layers]. */
size_t tr_mask_layers(const tr_model *m, const tr_mask_options *o, size_t *out);
/* So many weights are looked at, of so many: what weight decay is for, so no biases, no factors of
 * norms. A tied one counts once. */
typedef struct {
    size_t taken, all;
} tr_mask_reach;
/* text: the layers whose own weights are left out, by type, or because of `keep`: "embedding
 * (token, tied to head), `keep` (fc)"; "": there is none. As far as there is room for whole
 * parts. */
tr_mask_reach tr_mask_reaches(const tr_model *m, const tr_mask_options *o, char *text, size_t size);

/* ---- Groups of channels ---------------------------------------------------------------------- */

/* Channels of values that are removed together or not at all: a unit. Units that lie in the same
 * values are a group, of which some may be removed. */
typedef struct {
    size_t nunits, nchannels;
    int *unit;     /* [nchannels] of each channel of each value, -1: it must stay */
    int *holder;   /* [nchannels] of one that must stay: the value that it must stay for; else -1 */
    size_t *first; /* [values + 1] the first channel of each value: inputs, then layers */
    int *group;    /* [nunits] */
    size_t ngroups;
    size_t *size;          /* [ngroups] units */
    char (*name)[TR_NAME]; /* [ngroups] the first product that makes it */
} tr_groups;
tr_status tr_groups_open(const tr_model *m, tr_groups *out);
void tr_groups_close(tr_groups *g);
/* What keeps products as wide as they are: "head (the model's output); q, k (attention1, ...)"; ""
 * where nothing does. As far as there is room for whole parts. */
void tr_groups_held(const tr_model *m, const tr_groups *g, char *text, size_t size);
/* Whether channels that may go have a factor each: those of a batchnorm. */
bool tr_groups_have_factors(const tr_model *m, const tr_groups *g);

/* A network without the units that are marked; at least one of each group must stay. */
tr_status tr_groups_remove(const tr_network *n, const tr_groups *g, const bool *marked,
                           tr_network **out);
/* scores[nunits]: what each counts, divided by the mean of its group. */
tr_status tr_groups_score(const tr_network *n, const tr_groups *g, tr_prune_by by, uint64_t seed,
                          const float *gradients, double *scores);

/* ---- Structured pruning ---------------------------------------------------------------------- */

/* What is to become smaller. */
typedef enum { TR_PRUNE_PARAMETERS, TR_PRUNE_MULTIPLY_ADDS, TR_PRUNE_MEASURED } tr_prune_measure;

typedef struct {
    tr_prune_by by;
    tr_prune_measure measure;
    double target; /* what comes out has at most this part of what went in, in (0, 1] */
    /* MEASURED: of a network, in any unit (milliseconds); *Collective* if it likes. */
    tr_status (*cost)(void *ctx, const tr_network *n, double *cost);
    /* *Collective.* Called before each cost, and before each evaluation of tr_prune_sensitivity,
     * with this rank's status so far; returns the one with which all ranks go on. So a rank whose
     * memory is short leaves no other one waiting. NULL: neither is collective. */
    tr_status (*agree)(void *ctx, tr_status st);
    void *ctx;
    bool global;      /* channels of all groups compete; else each group gives the same part */
    int64_t multiple; /* widths stay multiples of so many, where they were; 1: any */
    double most;      /* of a group, at most this part is removed, in (0, 1] */
    /* Of each group: how much of it goes relative to others, e.g. from tr_prune_sensitivity; NULL:
     * 1. */
    const double *shares;
    uint64_t seed;
    const float *gradients;
    const char *const *keep; /* groups with the channels of these layers are left alone */
    size_t nkeep;
} tr_structured_options;

/* *reached: the measure of what came out over what went in; more than the target where widths,
 * `most` or the last channels of groups allow no less. */
tr_status tr_prune_channels(const tr_network *n, const tr_structured_options *o, tr_network **out,
                            double *reached);

/* The part that round `round` (from 1) of `rounds` leaves, from 1 down to `target`: linear, or
 * cubic (Zhu and Gupta 2017), which takes most at the beginning. */
double tr_prune_schedule(double target, int round, int rounds, bool cubic);

/* What a network loses when a part of one group alone is removed. */
typedef struct {
    double amount, loss; /* as `evaluate` has it; less is better */
} tr_sensitivity;
/* What says how much: both *Collective* if they like. */
typedef struct {
    tr_status (*evaluate)(void *ctx, const tr_network *n, double *loss);
    tr_status (*agree)(void *ctx, tr_status st); /* as in tr_structured_options */
    void *ctx;
} tr_prune_judge;
/* For each group and amount, ascending. out: [ngroups * namounts]. */
tr_status tr_prune_sensitivity(const tr_network *n, const tr_groups *g,
                               const tr_structured_options *o, const double *amounts,
                               size_t namounts, const tr_prune_judge *judge, tr_sensitivity *out);
/* The same of masks: of each of `layers` (tr_mask_layers) a part of its weights alone becomes 0.
 * `o`: as for tr_mask; what amounts it has does not count. out: [nlayers * namounts]. */
tr_status tr_mask_sensitivity(const tr_network *n, const tr_mask_options *o, const size_t *layers,
                              size_t nlayers, const double *amounts, size_t namounts,
                              const tr_prune_judge *judge, tr_sensitivity *out);
/* What each of these layers is to lose, relative to others as `shares` [nlayers] has it and `most`
 * of it at most, so that of all their weights together `amount` goes, as far as that allows:
 * returns what does. out: [layers of the model]. */
double tr_mask_amounts(const tr_model *m, const size_t *layers, size_t nlayers,
                       const double *shares, double amount, double most, double *out);
/* Shares from that: of each group the amount at which the loss has risen by `rise` at most, over
 * the largest such amount. `loss`: of the whole network. shares: [ngroups] in [0, 1]. */
void tr_prune_shares(const tr_sensitivity *s, size_t ngroups, size_t namounts, double loss,
                     double rise, double *shares);

/* The same shares for the groups of another model, pruned from the one that they were found on,
 * where groups may have merged: of those that a group's products were in, by their layers' names,
 * the least; 1 where none has a share. out: [to->ngroups]. */
void tr_prune_shares_for(const tr_model *found_on, const tr_groups *from, const double *shares,
                         const tr_model *m, const tr_groups *to, double *out);

/* ---- What became of it ----------------------------------------------------------------------- */

typedef struct {
    char layer[TR_NAME];
    /* Before and after; after: 0 where the layer is gone. */
    size_t parameters[2], zeros[2];
    double multiply_adds[2]; /* of one sample */
} tr_prune_row;
/* A row for each layer of `before` with parameters; *rows to be freed by tr_free. */
tr_status tr_prune_report(const tr_network *before, const tr_network *after, tr_prune_row **rows,
                          size_t *nrows);
double tr_network_multiply_adds(const tr_network *n);

#endif
