/* The choice of layers: between int8.c and choose.c. Private. */
#ifndef TR_QUANTIZE_CHOOSE_H
#define TR_QUANTIZE_CHOOSE_H

#include "optimize/quantize/internal.h"

typedef struct choosing choosing;
struct choosing {
    tr_evaluator *e;
    const tr_network *n;
    const tr_config *config;
    const tr_int8_options *o;
    const tr_value_range *ranges;
    bool *chosen;          /* becomes what is left */
    tr_int8_layer *layers; /* output_sqnr_nearest is known; times are filled in */
    /* *Collective.* Fills in times of layers; times: of the whole, as it is and as `q`: tr_quantize_measure, but in
     * tests. */
    tr_status (*measure)(choosing *k, const tr_network *q, double times[2]);
};
tr_status tr_quantize_measure(choosing *k, const tr_network *q, double times[2]);

/* *Collective.* All ranks choose alike: times are rank 0's. */
tr_status tr_quantize_choose(choosing *k);

#endif
