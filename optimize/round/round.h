/* Widths of hidden layers as multiples that kernels like. All Local; the same on every rank. */
#ifndef TR_ROUND_H
#define TR_ROUND_H

#include "optimize/network/network.h"

/* Widths become multiples of `most`, or of half of that, ... down to `least`: the first of these
 * that adds no more than `slack` times the width; where none does it stays. */
typedef struct {
    int64_t most, least;
    double slack;
} tr_round_rule;

/* A model that an earlier rounding made: its layers' widths hold where the written width, or a
 * multiple from `most` (halved again and again) to `least` within the rule's slack, is that width;
 * another width is TR_CONFIG. `most` 0: only what the rule itself gives. */
typedef struct {
    const tr_model *model;
    int64_t most, least;
} tr_round_kept;

typedef struct {
    char layer[TR_NAME];
    const char *option; /* of the layer: out, dim, hidden, rank */
    int64_t from, to;
} tr_round_row;

/* The model with hidden layers that are wider: outputs of products, embeddings and recurrent
 * layers, ranks of sketches as long as these pay. What inputs, the output and options with
 * numbers of their own (reshape, normalized_shape) say stays; sums, tied weights and heads
 * agree, all values of a head go on being as many for all. `kept`: of a run that is gone on
 * with; layers are found by their names; NULL: there is none. *out NULL: nothing is to be
 * rounded. *rows: of tr_alloc, an option that changed each, in the model's order. */
tr_status tr_round_widths(const tr_model *m, const tr_round_rule *rule, const tr_round_kept *kept,
                          tr_model **out, tr_round_row **rows, size_t *nrows);

#endif
