/* The directory of a ZIP archive, and its members' bytes: stored or deflated, not encrypted, on one
 * disk. Bytes are nobody's we trust. All Local.
 * https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT */
#ifndef TR_DATA_ZIP_H
#define TR_DATA_ZIP_H

#include <zlib.h>

#include "runtime/base/base.h"

typedef struct {
    char name[132];  /* those of arrays with ".npy" behind them */
    unsigned method; /* 0: stored, 8: deflated */
    uint32_t crc;
    uint64_t packed, size, at; /* where its own header lies */
    uint64_t data;             /* and its bytes */
} tr_zip_member;

typedef struct {
    const char *path;
    int fd;
    uint64_t directory; /* members lie before it */
    size_t count;
    tr_zip_member *v;
} tr_zip;

/* TR_FILE: no archive, or damaged. Members lie within the file, and are no larger than deflate can
 * pack. */
tr_status tr_zip_open(const char *path, tr_zip *z);
void tr_zip_close(tr_zip *z);

/* One member from its beginning. Failures name the member; the archive's name goes before them. */
typedef struct {
    const tr_zip *zip;
    const tr_zip_member *m;
    z_stream z;
    bool open;
    uint64_t in, out; /* bytes taken and given */
    uint32_t crc;
    unsigned char piece[1 << 14];
} tr_zip_stream;
tr_status tr_zip_begin(const tr_zip *z, const tr_zip_member *m, tr_zip_stream *s);
/* All of the next `nbytes`, or TR_FILE. */
tr_status tr_zip_read(tr_zip_stream *s, void *to, size_t nbytes);
/* TR_FILE unless all of it was read, and its checksum fits. */
tr_status tr_zip_check(const tr_zip_stream *s);
void tr_zip_end(tr_zip_stream *s);

/* ---- Members that are NPY files -------------------------------------------------------------- */

/* As many bytes as the header of one has, or all there are: bytes[TR_NPY_HEADER], *n of them.
 * Failures as those of the stream. */
tr_status tr_npz_head(const tr_zip *z, const tr_zip_member *m, uint8_t *bytes, size_t *n);
tr_status tr_npz_skip(tr_zip_stream *s, uint64_t nbytes);

#endif
