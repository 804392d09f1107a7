/* Private to table.c and table_array.c: from columns of a CSV file to arrays. */
#ifndef TR_DATA_TABLE_H
#define TR_DATA_TABLE_H

#include "runtime/data/csv.h"
#include "runtime/data/texts.h"

typedef struct {
    size_t at;             /* in a line */
    const tr_node *list;   /* categories; NULL: numbers */
    tr_text_place *places; /* of these, sorted; owned */
    bool spread;           /* a value for each category */
    bool whole;            /* a label or an id: none can stand for a missing one */
} tr_csv_column;

typedef struct {
    const tr_opening *o;
    const char *path;
    tr_csv_lines csv;
    /* The names of data.train, which those of another table are taken by; columns 0: its own. */
    tr_csv_lines order;
    uint64_t lines, rows; /* rows: that are not dropped */
} tr_csv_table;

/* An array in the making: its columns. */
typedef struct {
    tr_csv_column *columns; /* [count], owned */
    size_t count;
    bool one;        /* a sample is one value, not a list of one */
    bool normalized; /* a mean is subtracted, so that it is held in float64, the numbers of the
                        file, until then */
    tr_array **out;  /* what becomes of it */
    uint64_t *lines;
    double *to;
} tr_csv_part;

/* Makes and fills the parts' arrays. `limit`: bytes that may be held. What was made before a
 * failure is left in *out. */
tr_status tr_csv_fill(tr_csv_table *t, tr_csv_part *parts, size_t nparts, uint64_t limit);

#endif
