/* Private to look.c, look_table.c, look_folder.c and look_tokens.c: a CSV file's columns, a
 * folder's images, tokens. */
#ifndef TR_DATA_LOOK_TABLE_H
#define TR_DATA_LOOK_TABLE_H

#include "runtime/data/internal.h"
#include "runtime/data/look.h"

/* What is looked at in memory, at most: an array unpacked. */
#define TR_LOOK_BYTES ((int64_t)1 << 30)

/* l->train, shape, columns and labels of a table. */
tr_status tr_look_at_table(const char *path, const char *labels, tr_look *l);
/* A folder of images by class, or one that has such in it, train and another. `labels`: NULL, for
 * it has none to name. */
tr_status tr_look_at_folder(const char *path, const char *labels, tr_look *l);
/* l->format: a text, or tokens. `labels`: NULL, likewise. */
tr_status tr_look_at_tokens(const char *path, const char *labels, tr_look *l);
/* One more line of l->notes: `text` is the list's now, also where that fails; NULL: there was no
 * memory for it. */
tr_status tr_look_note(tr_look *l, char *text);

#endif
