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
} tr_sketch_options;

typedef struct {
    char layer[TR_NAME];
    double error; /* |W - made of the sketches| / |W|, in the Frobenius norm */
    double parameters[2], multiply_adds[2]; /* of the weights; before and after */
} tr_sketch_row;

/* The layers that would be made have, all together, fewer weights than they have now. */
bool tr_sketch_smaller(const tr_network *n, const tr_sketch_options *o);
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
 * there may be more unknowns than equations. */
tr_status tr_sketch_fit(const tr_sketch *s, const float *w, int64_t out, int64_t in,
                        bool least_squares, float *s1, float *s2, double *error);

#endif
