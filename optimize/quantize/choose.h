/* The choice of layers: between int8.c and choose.c. Private. */
#ifndef TR_QUANTIZE_CHOOSE_H
#define TR_QUANTIZE_CHOOSE_H

#include "optimize/profile/profile.h"
#include "optimize/quantize/internal.h"

/* What some layers in 8 bits make of a call. */
typedef struct {
    const bool *chosen; /* [layers] in 8 bits */
    const tr_network *network;
    double seconds; /* of the whole */
    double *layers; /* [layers] seconds of that: the layer's own, and its share of rounding what it
                       reads */
} tr_choice_times;

typedef struct choosing choosing;
struct choosing {
    tr_evaluator *e;
    const tr_network *n;
    const tr_config *config;
    const tr_int8_options *o;
    const tr_value_range *ranges;
    bool *chosen;          /* becomes what is left */
    tr_int8_layer *layers; /* output_sqnr_nearest is known; times are filled in */
    /* *Collective.* Fills in the times of `count` choices, side by side: tr_quantize_measure, but
     * in tests. */
    tr_status (*measure)(choosing *k, tr_choice_times *c, size_t count);
    tr_int8_story *story; /* what it took is filled in */
    double begin;         /* rank 0's clock */
};
tr_status tr_quantize_measure(choosing *k, tr_choice_times *c, size_t count);

/* *Collective.* All ranks choose alike: times are rank 0's. Past o->seconds it ends soon: no
 * further layers are left out for their time, and each loss that is not allowed leaves out half of
 * the layers. TR_STOPPED: o->stop asked for it. */
tr_status tr_quantize_choose(choosing *k);
/* *Collective.* Nothing is chosen: what the network and its layers take as they are, and with
 * k->chosen in 8 bits, in a short comparison. On a part of a job's ranks nothing is measured: those
 * beside it change what it takes. */
tr_status tr_quantize_tell_times(choosing *k);
/* *Local.* So many of the chosen layers, with the largest errors of their outputs, are chosen no
 * more. */
void tr_quantize_leave_worst(const tr_model *m, const tr_int8_layer *layers, size_t count,
                             bool *chosen);

#endif
