/* Private to the data room: a CSV file as texts, and as arrays of numbers. */
#ifndef TR_DATA_CSV_H
#define TR_DATA_CSV_H

#include "runtime/data/source.h"

/* RFC 4180: fields between delimiters, in quotes with "" for one where they hold a delimiter, a quote or a line's end; lines
 * end in LF or CRLF. The first names the columns. Blank lines are none. */
typedef struct {
    char *text; /* owned; what the others point into */
    size_t columns;
    uint64_t rows;
    char **names;    /* [columns], trimmed */
    char **fields;   /* [rows * columns], without quotes */
    uint64_t *lines; /* [rows] from 1 */
} tr_csv;
/* Takes `text`, tr_alloc'ed, of n bytes and a NUL, also on failure. TR_DATA names the line. */
tr_status tr_csv_parse(const char *path, char *text, size_t n, char delimiter, tr_csv *out);
/* The first line alone, of a text that may end behind it: rows is 0. */
tr_status tr_csv_parse_names(const char *path, char *text, size_t n, char delimiter, tr_csv *out);
void tr_csv_free(tr_csv *t);
/* Without spaces at both ends; in place. */
char *tr_csv_trim(char *s);

/* Empty, or a word that stands for a missing value. */
bool tr_csv_missing(const char *s);

/* inputs, targets: as tr_source_open. `limit`: bytes of a file that is read. */
tr_status tr_table_open(const tr_opening *o, uint64_t limit, tr_array **inputs, tr_array **targets,
                        tr_array **weights);

#endif
