/* Rows of a sample that `select` and `mean_rows` make one of, as graphs and kernels, on hosts and
 * devices, see it. */
#ifndef TR_GRAPH_ROWS_H
#define TR_GRAPH_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/graph/kinds.h"

typedef struct {
    bool mean;  /* of all rows that count */
    int64_t at; /* else this one of them; below 0 from their end */
} tr_rows_attrs;

typedef struct {
    int64_t begin, end; /* equal: none */
} tr_row_range;

/* Of a sample with that many rows, of which as many count as its length says; lengths NULL: all. */
TR_ON_BOTH static inline tr_row_range tr_rows_taken(bool mean, int64_t at, const int32_t *lengths,
                                                    size_t sample, int64_t rows)
{
    tr_row_range r = {0, rows};
    if (lengths && lengths[sample] < r.end) r.end = lengths[sample];
    if (r.end < 0) r.end = 0;
    if (mean) return r;
    r.begin = at < 0 ? at + r.end : at;
    if (r.begin < 0 || r.begin >= r.end)
        r.begin = r.end = 0;
    else
        r.end = r.begin + 1;
    return r;
}

#endif
