/* The arrays of a network one after the other: parameters, then states. Private. */
#ifndef TR_TENSORS_ROWS_H
#define TR_TENSORS_ROWS_H

#include "optimize/tensors/arrays.h"
#include "optimize/tensors/tensors.h"

typedef struct {
    char name[TR_ARRAY_NAME]; /* "conv2d1.weight" */
    bool state;
    bool turned; /* v has the matrix the other way round */
    int ndim;
    int64_t dims[TR_ARRAY_DIMS];
    size_t count;
    const float *v;
    tr_sketch sketch; /* of tr_param */
} tr_row;

size_t tr_row_count(const tr_network *n);
tr_row tr_row_at(const tr_network *n, size_t i);
/* Where its values begin, in n->states or n->params. */
size_t tr_row_offset(const tr_network *n, size_t i);

/* All of them by the names and shapes that a file has; `names` NULL: the network's. Allocated. */
tr_status tr_rows_of_file(const tr_network *n, const tr_renames *names, tr_row **out);
/* *v: its values in the order of its dims; *own: what is to be freed. */
tr_status tr_row_values(const tr_row *r, const float **v, float **own);
/* to: [columns][rows] of v: [rows][columns]. */
void tr_transpose(const float *v, size_t rows, size_t columns, float *to);

#endif
