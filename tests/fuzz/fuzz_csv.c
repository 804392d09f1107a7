/* libFuzzer: a CSV file's text; the first byte chooses the delimiter. It ends in fields or in an error
 * with a text, and nothing is left. Read line by line through a small window it gives the same fields. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_data.h"
#include "runtime/data/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* The fields of line after line are those of `t`; NULL: not all of it is fields. */
static void by_lines(const uint8_t *bytes, size_t n, char delimiter, const tr_csv *t)
{
    char path[32];
    tr_csv_lines l;
    uint64_t rows = 0;
    bool there = false;
    const int fd = fuzz_file(bytes, n, path);
    tr_status st = tr_csv_lines_open(path, delimiter, 16, &l);
    const bool opened = st == TR_OK;
    if (opened && t && l.columns != t->columns) abort();
    for (size_t i = 0; opened && t && i < l.columns; i++)
        if (strcmp(l.names[i], t->names[i]) != 0) abort();
    while (st == TR_OK && (st = tr_csv_lines_next(&l, &there)) == TR_OK && there) {
        for (size_t i = 0; t && i < l.columns; i++)
            if (rows >= t->rows || strcmp(l.fields[i], t->fields[rows * t->columns + i]) != 0)
                abort();
        if (t && l.row != t->lines[rows]) abort();
        rows++;
    }
    if ((st == TR_OK && rows > 0) != (t != NULL) || (t && rows != t->rows)) abort();
    if (st != TR_OK && !*tr_last_error()->text) abort();
    if (opened) tr_csv_lines_close(&l);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char delimiters[] = ",;\t ";
    tr_csv t;
    if (n == 0) return 0;
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    char *text = tr_alloc(TR_MEM_OTHER, n, 1);
    if (!text) return 0;
    memcpy(text, bytes + 1, n - 1);
    if (tr_csv_parse("fuzz.csv", text, n - 1, delimiters[bytes[0] % 4], &t) == TR_OK) {
        size_t bytes_of = 0;
        for (size_t i = 0; i < t.columns; i++) bytes_of += strlen(t.names[i]);
        for (uint64_t i = 0; i < t.rows * t.columns; i++) bytes_of += strlen(t.fields[i]);
        if (bytes_of > n || t.lines[t.rows - 1] < t.rows) abort();
        by_lines(bytes + 1, n - 1, delimiters[bytes[0] % 4], &t);
        tr_csv_free(&t);
    } else {
        if (!*tr_last_error()->text) abort();
        by_lines(bytes + 1, n - 1, delimiters[bytes[0] % 4], NULL);
    }
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
