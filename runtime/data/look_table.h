/* Private to look.c and look_table.c: a CSV file's columns. */
#ifndef TR_DATA_LOOK_TABLE_H
#define TR_DATA_LOOK_TABLE_H

#include "runtime/data/internal.h"
#include "runtime/data/look.h"

/* l->train, shape, columns and labels of a table. */
tr_status tr_look_at_table(const char *path, const char *labels, tr_look *l);

#endif
