/* The arrays of a network one after the other: parameters, then states. Private. */
#ifndef TR_TENSORS_ROWS_H
#define TR_TENSORS_ROWS_H

#include "optimize/tensors/tensors.h"

typedef struct {
    char name[2 * TR_NAME]; /* "conv2d1.weight" */
    bool state;
    int ndim;
    const int64_t *dims;
    size_t count;
    const float *v;
    tr_sketch sketch; /* of tr_param */
} tr_row;

size_t tr_row_count(const tr_network *n);
tr_row tr_row_at(const tr_network *n, size_t i);
/* Where its values begin, in n->states or n->params. */
size_t tr_row_offset(const tr_network *n, size_t i);

#endif
