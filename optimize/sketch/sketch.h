/* Dense layers as layers that are learned in sketches (tr_sketch). All Local; the same bits on
 * every rank. */
#ifndef TR_SKETCH_H
#define TR_SKETCH_H

#include "optimize/network/network.h"
#include "runtime/graph/facts.h"

typedef struct {
    tr_sketch_choice choice;
    bool least_squares; /* else S1_i = U1_i W, S2_i = W U2_i^T: what an untrained layer starts from
                         */
    /* *Local*, asked between layers and while they are fitted: end with TR_STOPPED. NULL: never. */
    bool (*stop)(void *ctx);
    void *stop_ctx;
} tr_sketch_options;

typedef struct {
    char layer[TR_NAME];
    double error; /* |W - made of the sketches| / |W|, in the Frobenius norm */
    double parameters[2], multiply_adds[2]; /* of the weights; before and after */
} tr_sketch_row;

/* The layers that would be made have, all together, fewer weights than they have now. */
bool tr_sketch_smaller(const tr_network *n, const tr_sketch_options *o);

/* What becomes of a layer, and what it takes, known before anything is made. */
typedef struct {
    int64_t out, in;      /* of its matrix */
    double parameters[2]; /* of the weights; before and after */
    double arithmetic;    /* after, in parts of what it was */
    int64_t most;         /* terms * rank that take less arithmetic than before, at most */
    double bytes;         /* of its fit, until that is over */
} tr_sketch_cost;
/* With terms * rank = `width`. */
tr_sketch_cost tr_sketch_cost_of(const tr_model *m, const tr_layer *l, int64_t width,
                                 bool least_squares);
/* Bytes at once, of the network made and of the largest fit, were terms * rank of the layers that
 * are chosen `width`; *largest: its layer, NULL: none is chosen. */
double tr_sketch_needs(const tr_network *n, const tr_sketch_options *o, int64_t width,
                       const tr_layer **largest);

/* The layers that `match` names but that cannot be sketched are left alone. *rows: of tr_alloc, one
 * a layer made. TR_CONFIG where a pattern names no layer, or all of them none that can be
 * sketched. */
tr_status tr_sketch_network(const tr_network *n, const tr_sketch_options *o, tr_network **out,
                            tr_sketch_row **rows, size_t *nrows);

/* The S1 (K, in) and S2 (out, K) whose product with the signs is closest to W (out, in), or those
 * that W starts from; of TR_SKETCH_SIGNS S1 (2 K, in) alone. *error as above.
 *
 * With P = u U1^T and Q = u U2 (tr_sketch), |W - P S1 - S2 Q| is least where its columns have
 * nothing left in the space of P, its rows nothing in that of Q: P S1 + S2 Q = p W + W q - p W q, p
 * and q the projections. Of what both could have each takes half. By normal equations of K unknowns
 * in double (Cholesky; signs are nearly orthogonal), with a ridge of 1e-11 of their mean diagonal:
 * there may be more unknowns than equations. Of `o` the choice is not looked at. */
tr_status tr_sketch_fit(const tr_sketch *s, const float *w, int64_t out, int64_t in,
                        const tr_sketch_options *o, float *s1, float *s2, double *error);
/* What that holds at once, at the most. both: not of TR_SKETCH_SIGNS. */
double tr_sketch_fit_bytes(bool both, int64_t out, int64_t in, int64_t k, bool least_squares);

#endif
