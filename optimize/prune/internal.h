/* What the files of pruning share. Private to them. */
#ifndef TR_PRUNE_INTERNAL_H
#define TR_PRUNE_INTERNAL_H

#include "optimize/prune/prune.h"

/* What counts least, first. */
typedef struct {
    double score;
    size_t at; /* the unit, or the place in the flat space: equal scores go by it */
} tr_ranked;
void tr_rank(tr_ranked *v, size_t n);

/* The layer's own weight, which masks look at; NULL: none. */
const tr_param *tr_mask_weight(const tr_model *m, const tr_mask_options *o, const tr_layer *l);
bool tr_mask_kept(const tr_mask_options *o, const char *layer); /* `keep` names it */

/* The status with which all ranks go on: o->agree. */
tr_status tr_prune_agree(const tr_structured_options *o, tr_status st);

#endif
