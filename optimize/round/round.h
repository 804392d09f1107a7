/* Widths of hidden layers as multiples that kernels like. All Local; the same on every rank. */
#ifndef TR_ROUND_H
#define TR_ROUND_H

#include "optimize/network/network.h"

/* Widths become multiples of `most`, or of half of that, ... down to `least`: the first of these that adds no more than `slack`
 * times the width; where none does it stays. */
typedef struct {
    int64_t most, least;
    double slack;
} tr_round_rule;

typedef struct {
    char layer[TR_NAME];
    const char *option; /* of the layer: out, dim, hidden, rank */
    int64_t from, to;
} tr_round_row;

/* The model with hidden layers that are wider: outputs of products, embeddings and recurrent layers, ranks of sketches. What
 * inputs, the output and options with numbers of their own (reshape, normalized_shape) say stays; sums, tied weights and
 * heads agree, all values of a head go on being as many for all. `like`: a model whose layers of the same names say how wide,
 * as an earlier rounding of `m` left it; NULL: by the rule.
 * *out NULL: nothing is to be rounded. *rows: of tr_alloc, an option that changed each, in the model's order. */
tr_status tr_round_widths(const tr_model *m, const tr_round_rule *rule, const tr_model *like,
                          tr_model **out, tr_round_row **rows, size_t *nrows);

#endif
