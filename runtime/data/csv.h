/* Private to the data room: a CSV file as texts, line by line, and as arrays of numbers. */
#ifndef TR_DATA_CSV_H
#define TR_DATA_CSV_H

#include "runtime/data/source.h"

/* RFC 4180: fields between delimiters, in quotes with "" for one where they hold a delimiter, a
 * quote or a line's end; lines end in LF or CRLF. The first names the columns (`header`), or is one
 * like the others: columns are then column1, column2, ... Blank lines are none. Of a file of any
 * size a window is in memory. */
#define TR_CSV_LINE ((size_t)64 << 20) /* bytes that one may have */
typedef struct {
    tr_data_file file;
    size_t columns;
    char **names;  /* [columns], trimmed, owned */
    char **fields; /* [columns] of the line that was read last, until the next one is */
    uint64_t row;  /* where it begins, from 1 */
    /* private */
    char delimiter;
    bool header;
    uint64_t at, line; /* bytes of the file read so far; of the next row */
    char *window;
    size_t begin, end, room;
    char **all; /* fields, room for so many */
    size_t all_room;
} tr_csv_lines;
/* Reads the first line. `window`: bytes read at once; 0: a good number. TR_DATA names the line. */
tr_status tr_csv_lines_open(const char *path, char delimiter, bool header, size_t window,
                            tr_csv_lines *out);
/* *there false: there is none left. */
tr_status tr_csv_lines_next(tr_csv_lines *l, bool *there);
tr_status tr_csv_lines_rewind(tr_csv_lines *l);
/* Of , ; and tab the one that cuts the first lines into as many fields each, of several the one
 * with most. A comma where none does. */
char tr_csv_delimiter(const char *path);
/* What a first line is: names (one that numbers its columns, as pandas does, too); numbers alone,
 * and so a sample; or names among which are numbers. */
typedef enum { TR_CSV_NAMES, TR_CSV_NUMBERS, TR_CSV_MIXED } tr_csv_first;
tr_status tr_csv_first_line(const char *path, char delimiter, tr_csv_first *out);
void tr_csv_lines_close(tr_csv_lines *l);
/* Without spaces at both ends; in place. */
char *tr_csv_trim(char *s);
/* Its first byte that is not UTF-8 text; NULL: there is none. */
const char *tr_csv_odd_byte(const char *s);

/* Empty, or a word that stands for a missing value. */
bool tr_csv_missing(const char *s);
/* A plain decimal that is finite in float32: what training and who writes its config take for a
 * number. *v: as double. */
bool tr_csv_number(const char *s, double *v);
/* Digits with a comma in the place of the point: "1,5". */
bool tr_csv_decimal_comma(const char *s);
/* Said of a file of one column. */
#define TR_CSV_OTHER_DELIMITER "; is data.table.delimiter another one?"

/* inputs, targets: as tr_source_open. `limit`: bytes that may be held. */
tr_status tr_table_open(const tr_opening *o, uint64_t limit, tr_array **inputs, tr_array **targets,
                        tr_array **weights);

#endif
