/* NPZ: a ZIP archive of stored NPY files, one an array: each behind a header of its own, and all of
 * them once more in the directory at the end. */
#include <string.h>
#include <zlib.h>

#include "optimize/tensors/rows.h"
#include "runtime/base/file.h"

enum { LOCAL = 30, CENTRAL = 46, END = 22, NPY_HEADER = 128, NAME_ROOM = TR_ARRAY_NAME + 8 };

typedef struct {
    tr_commit file;
    uint64_t at;
    tr_status st;
} out_file;

static void put(out_file *f, const void *bytes, size_t n)
{
    if (f->st == TR_OK && n) f->st = tr_commit_write(&f->file, f->at, bytes, n);
    f->at += n;
}

static void number(unsigned char **to, uint32_t v, int nbytes)
{
    for (int i = 0; i < nbytes; i++) *(*to)++ = (unsigned char)(v >> 8 * i);
}

/* The part that both headers of an entry share: from the version needed to the name's length. */
static void entry(unsigned char **to, uint32_t crc, uint32_t size, size_t name)
{
    number(to, 20, 2); /* version needed */
    number(to, 0, 2);  /* flags */
    number(to, 0, 2);  /* stored */
    number(to, 0, 2);  /* time */
    number(to, 33, 2); /* 1 January 1980 */
    number(to, crc, 4);
    number(to, size, 4);
    number(to, size, 4);
    number(to, (uint32_t)name, 2);
}

static void npy_header(const tr_row *r, char to[NPY_HEADER])
{
    char shape[96] = "";
    int n = 0;
    for (int d = 0; d < r->ndim; d++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%lld, ", (long long)r->dims[d]);
    memset(to, ' ', NPY_HEADER);
    memcpy(to, "\x93NUMPY\x01\x00\x76\x00", 10); /* version 1; 118 bytes follow */
    n = snprintf(to + 10, NPY_HEADER - 10,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", shape);
    to[10 + n] = ' ';
    to[NPY_HEADER - 1] = '\n';
}

static uint32_t crc_of(const char header[NPY_HEADER], const tr_row *r, const float *v)
{
    const size_t piece = 1u << 30, n = r->count * sizeof(float);
    uLong crc = crc32(0, (const Bytef *)header, NPY_HEADER);
    for (size_t i = 0; i < n; i += piece)
        crc = crc32(crc, (const Bytef *)v + i, (uInt)(n - i < piece ? n - i : piece));
    return (uint32_t)crc;
}

typedef struct {
    uint32_t crc, size, at;
} place;

static place put_row(out_file *f, const tr_row *r)
{
    const float *v;
    float *own;
    if (f->st == TR_OK) f->st = tr_row_values(r, &v, &own);
    if (f->st != TR_OK) return (place){0};
    unsigned char head[LOCAL], *to = head;
    char npy[NPY_HEADER], name[NAME_ROOM];
    const int length = snprintf(name, sizeof name, "%s.npy", r->name);
    npy_header(r, npy);
    const place p = {.crc = crc_of(npy, r, v),
                     .size = (uint32_t)(NPY_HEADER + r->count * sizeof(float)),
                     .at = (uint32_t)f->at};
    number(&to, 0x04034b50, 4);
    entry(&to, p.crc, p.size, (size_t)length);
    number(&to, 0, 2); /* no extra field */
    put(f, head, sizeof head);
    put(f, name, (size_t)length);
    put(f, npy, sizeof npy);
    put(f, v, r->count * sizeof *v);
    tr_free(own);
    return p;
}

static void put_directory(out_file *f, const tr_row *all, const place *places, size_t rows)
{
    const uint64_t begin = f->at;
    unsigned char end[END], *to = end;
    for (size_t i = 0; i < rows; i++) {
        unsigned char head[CENTRAL] = {0}, *at = head;
        char name[NAME_ROOM];
        const int length = snprintf(name, sizeof name, "%s.npy", all[i].name);
        number(&at, 0x02014b50, 4);
        number(&at, 20, 2); /* made by */
        entry(&at, places[i].crc, places[i].size, (size_t)length);
        at = head + CENTRAL - 4;
        number(&at, places[i].at, 4);
        put(f, head, sizeof head);
        put(f, name, (size_t)length);
    }
    number(&to, 0x06054b50, 4);
    number(&to, 0, 4); /* one disk */
    number(&to, (uint32_t)rows, 2);
    number(&to, (uint32_t)rows, 2);
    number(&to, (uint32_t)(f->at - begin), 4);
    number(&to, (uint32_t)begin, 4);
    number(&to, 0, 2); /* no comment */
    put(f, end, sizeof end);
}

tr_status tr_npz_write(const char *path, const tr_network *n, const tr_renames *names)
{
    const size_t rows = tr_row_count(n);
    out_file f = {.file = {.fd = -1}};
    tr_status st = TR_OK;
    uint64_t nbytes = END;
    tr_row *all = NULL;
    place *places = tr_alloc(TR_MEM_OTHER, rows, sizeof *places);
    TR_HAVE(places);
    TR_TRY(tr_rows_of_file(n, names, &all));
    for (size_t i = 0; i < rows; i++)
        nbytes += all[i].count * sizeof(float) + LOCAL + CENTRAL + NPY_HEADER + 2 * NAME_ROOM;
    TR_NEED(nbytes <= UINT32_MAX && rows <= UINT16_MAX, TR_UNSUPPORTED,
            "%s: %zu arrays, %llu bytes: an archive of NumPy's has less than 65536 and 4 GB here",
            path, rows, (unsigned long long)nbytes);
    TR_TRY(tr_commit_open(&f.file, path, 0));
    for (size_t i = 0; i < rows; i++) places[i] = put_row(&f, &all[i]);
    put_directory(&f, all, places, rows);
    TR_TRY(f.st);
    st = tr_commit_finish(&f.file);
out:
    tr_commit_close(&f.file);
    tr_free(all);
    tr_free(places);
    return st;
}
