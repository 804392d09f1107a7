/* libFuzzer: a CSV file's text; the first byte chooses the delimiter, and whether names stand in
 * the first line. It ends in fields or in an error with a text, and nothing is left. Through a
 * small window, which grows, it gives the same as through a large one. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_data.h"
#include "runtime/data/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* One that was opened (st TR_OK), or not. */
typedef struct {
    tr_csv_lines l;
    tr_status st;
    bool opened, there;
} reader;

static reader open_reader(const char *path, uint8_t how, size_t window)
{
    static const char delimiters[] = ",;\t ";
    reader r = {.there = true};
    r.st = tr_csv_lines_open(path, delimiters[how % 4], how < 128, window, &r.l);
    r.opened = r.st == TR_OK;
    if (r.st != TR_OK && !*tr_last_error()->text) abort();
    return r;
}

static void next(reader *r)
{
    r->st = tr_csv_lines_next(&r->l, &r->there);
    if (r->st != TR_OK && !*tr_last_error()->text) abort();
}

/* Fields of both are the same; returns the bytes of a's. */
static size_t same(size_t columns, char **a, char **b)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < columns; i++) {
        if (strcmp(a[i], b[i]) != 0) abort();
        nbytes += strlen(a[i]);
    }
    return nbytes;
}

/* A NUL is told when the window comes to it, which is sooner with a large one: but it is told. */
static void no_text(reader *r)
{
    while (r->st == TR_OK && r->there) next(r);
    if (r->st == TR_OK) abort();
    if (r->opened) tr_csv_lines_close(&r->l);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[32];
    if (n == 0) return 0;
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    const int fd = fuzz_file(bytes + 1, n - 1, path);
    reader small = open_reader(path, bytes[0], 16), large = open_reader(path, bytes[0], 0);
    if (memchr(bytes + 1, 0, n - 1)) {
        no_text(&small);
        no_text(&large);
        close(fd);
        if (tr_mem_held(TR_MEM_OTHER) != held) abort();
        return 0;
    }
    if (small.st != large.st) abort();
    if (small.opened) {
        uint64_t rows = 0;
        if (small.l.columns != large.l.columns) abort();
        const size_t named = same(small.l.columns, small.l.names, large.l.names);
        size_t nbytes = small.l.header ? named : 0; /* else they are not the text's */
        for (;; rows++) {
            next(&small);
            next(&large);
            if (small.st != large.st || (small.st == TR_OK && small.there != large.there)) abort();
            if (small.st != TR_OK || !small.there) break;
            if (small.l.row != large.l.row || small.l.row < rows + 1 + small.l.header) abort();
            nbytes += same(small.l.columns, small.l.fields, large.l.fields);
        }
        if (nbytes > n) abort();
    }
    if (small.opened) tr_csv_lines_close(&small.l);
    if (large.opened) tr_csv_lines_close(&large.l);
    close(fd);
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
