/* What counts least, first. Private to the room. */
#ifndef TR_RANKED_H
#define TR_RANKED_H

#include <stddef.h>

typedef struct {
    double score;
    size_t at; /* the unit, or the place in the flat space: equal scores go by it */
} tr_ranked;

void tr_rank(tr_ranked *v, size_t n);

#endif
