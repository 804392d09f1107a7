/* ZIP archives: the record at the end leads to the directory, whose entries lead to members. Python
 * writes sizes beyond 4 GB, and for good measure smaller ones, in fields of ZIP64. */
#include "runtime/data/zip.h"

#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

enum {
    END = 22,
    LOCATOR = 20,
    END64 = 56,
    LOCAL = 30,
    CENTRAL = 46,
    COMMENT_MAX = 65535,
    DIRECTORY_MAX = 64 << 20,
    DEFLATE_MOST = 1032 /* no byte packs more */
};

static uint64_t number(const unsigned char *p, unsigned nbytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < nbytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

typedef struct {
    uint64_t at, nbytes, count, end; /* the directory; where the first record behind it lies */
} place;

/* Of an archive with more, or larger, members than the old record can say. */
static tr_status read_end64(const tr_zip *z, uint64_t end, place *p)
{
    tr_status st = TR_OK;
    unsigned char locator[LOCATOR], record[END64];
    TR_NEED(end >= LOCATOR, TR_FILE, "%s: no directory", z->path);
    TR_TRY(tr_file_read_at(z->fd, z->path, end - LOCATOR, locator, sizeof locator));
    TR_NEED(number(locator, 4) == 0x07064b50, TR_FILE, "%s: no directory", z->path);
    p->end = number(locator + 8, 8);
    TR_NEED(p->end <= end - LOCATOR && end - LOCATOR - p->end >= END64, TR_FILE,
            "%s: its directory does not lie in the file", z->path);
    TR_TRY(tr_file_read_at(z->fd, z->path, p->end, record, sizeof record));
    TR_NEED(number(record, 4) == 0x06064b50, TR_FILE, "%s: no directory", z->path);
    p->count = number(record + 32, 8);
    p->nbytes = number(record + 40, 8);
    p->at = number(record + 48, 8);
out:
    return st;
}

static tr_status find_directory(const tr_zip *z, uint64_t nbytes, place *p)
{
    tr_status st = TR_OK;
    const size_t n = nbytes < END + COMMENT_MAX ? (size_t)nbytes : END + COMMENT_MAX;
    unsigned char *tail = tr_alloc(TR_MEM_OTHER, n, 1);
    TR_HAVE(tail);
    TR_TRY(tr_file_read_at(z->fd, z->path, nbytes - n, tail, n));
    size_t i = n < END ? 0 : n - END + 1;
    while (i > 0 && !(number(tail + i - 1, 4) == 0x06054b50 &&
                      number(tail + i - 1 + 20, 2) == n - END - (i - 1)))
        i--;
    TR_NEED(i > 0, TR_FILE, "%s: no ZIP archive, or one that was cut short: its end is missing",
            z->path);
    const unsigned char *record = tail + i - 1;
    const uint64_t end = nbytes - n + i - 1;
    *p = (place){.count = number(record + 10, 2),
                 .nbytes = number(record + 12, 4),
                 .at = number(record + 16, 4),
                 .end = end};
    if (p->count == 0xffff || p->nbytes == 0xffffffff || p->at == 0xffffffff)
        TR_TRY(read_end64(z, end, p));
    TR_NEED(p->nbytes <= DIRECTORY_MAX && p->at <= p->end && p->nbytes <= p->end - p->at, TR_FILE,
            "%s: its directory does not lie in the file", z->path);
    TR_NEED(p->count <= p->nbytes / CENTRAL, TR_FILE,
            "%s: %llu members in a directory of %llu bytes", z->path, (unsigned long long)p->count,
            (unsigned long long)p->nbytes);
out:
    tr_free(tail);
    return st;
}

/* Fields of 8 bytes in the order in which those of 4 bytes are full. */
static void read_zip64(const unsigned char *extra, size_t n, tr_zip_member *m)
{
    uint64_t *const full[] = {m->size == 0xffffffff ? &m->size : NULL,
                              m->packed == 0xffffffff ? &m->packed : NULL,
                              m->at == 0xffffffff ? &m->at : NULL};
    while (n >= 4) {
        size_t length = (size_t)number(extra + 2, 2);
        if (length > n - 4) return;
        if (number(extra, 2) == 1) {
            const unsigned char *p = extra + 4;
            for (size_t i = 0; i < TR_COUNT(full); i++) {
                if (!full[i] || length < 8) continue;
                *full[i] = number(p, 8);
                p += 8;
                length -= 8;
            }
            return;
        }
        extra += 4 + length;
        n -= 4 + length;
    }
}

/* The member's own header lies before its bytes, and has a length of its own. */
static tr_status find_data(const tr_zip *z, tr_zip_member *m)
{
    tr_status st = TR_OK;
    unsigned char head[LOCAL];
    TR_NEED(m->at <= z->directory && z->directory - m->at >= LOCAL, TR_FILE,
            "%s: %s does not lie in the file", z->path, m->name);
    TR_TRY(tr_file_read_at(z->fd, z->path, m->at, head, sizeof head));
    TR_NEED(number(head, 4) == 0x04034b50, TR_FILE, "%s: %s: no member at byte %llu", z->path,
            m->name, (unsigned long long)m->at);
    m->data = m->at + LOCAL + number(head + 26, 2) + number(head + 28, 2);
    TR_NEED(m->data <= z->directory && m->packed <= z->directory - m->data, TR_FILE,
            "%s: %s does not lie in the file", z->path, m->name);
    TR_NEED(m->method == 0 ? m->packed == m->size : m->size / DEFLATE_MOST <= m->packed, TR_FILE,
            "%s: %s: %llu bytes cannot be packed in %llu", z->path, m->name,
            (unsigned long long)m->size, (unsigned long long)m->packed);
out:
    return st;
}

static tr_status read_entry(tr_zip *z, const unsigned char *p, size_t left, size_t *length)
{
    tr_status st = TR_OK;
    tr_zip_member *m = &z->v[z->count];
    TR_NEED(left >= CENTRAL && number(p, 4) == 0x02014b50, TR_FILE,
            "%s: entry %zu of its directory is none", z->path, z->count);
    const size_t name = (size_t)number(p + 28, 2), extra = (size_t)number(p + 30, 2);
    *length = CENTRAL + name + extra + (size_t)number(p + 32, 2);
    TR_NEED(*length <= left && name > 0 && name < sizeof m->name && !memchr(p + CENTRAL, 0, name),
            TR_FILE, "%s: entry %zu of its directory has no name of 1 to %zu bytes", z->path,
            z->count, sizeof m->name - 1);
    *m = (tr_zip_member){.method = (unsigned)number(p + 10, 2),
                         .crc = (uint32_t)number(p + 16, 4),
                         .packed = number(p + 20, 4),
                         .size = number(p + 24, 4),
                         .at = number(p + 42, 4)};
    memcpy(m->name, p + CENTRAL, name);
    TR_NEED(!(number(p + 8, 2) & 1) && (m->method == 0 || m->method == 8), TR_FILE,
            "%s: %s is encrypted, or packed otherwise than by deflate", z->path, m->name);
    read_zip64(p + CENTRAL + name, extra, m);
    TR_TRY(find_data(z, m));
    z->count++;
out:
    return st;
}

tr_status tr_zip_open(const char *path, tr_zip *z)
{
    tr_status st;
    struct stat info;
    place p = {0};
    unsigned char *directory = NULL;
    *z = (tr_zip){.path = path, .fd = -1};
    TR_TRY(tr_file_open(path, O_RDONLY, TR_IO, &z->fd, &info));
    TR_TRY(find_directory(z, (uint64_t)info.st_size, &p));
    z->directory = p.at;
    TR_HAVE(directory = tr_alloc(TR_MEM_OTHER, (size_t)p.nbytes, 1));
    TR_HAVE(z->v = tr_alloc(TR_MEM_OTHER, (size_t)p.count, sizeof *z->v));
    TR_TRY(tr_file_read_at(z->fd, path, p.at, directory, (size_t)p.nbytes));
    for (size_t at = 0, length = 0; z->count < p.count; at += length)
        TR_TRY(read_entry(z, directory + at, (size_t)p.nbytes - at, &length));
out:
    tr_free(directory);
    return st;
}

void tr_zip_close(tr_zip *z)
{
    if (z->fd >= 0) close(z->fd);
    tr_free(z->v);
    *z = (tr_zip){.fd = -1};
}

/* ---- A member's bytes ------------------------------------------------------------------------ */

tr_status tr_zip_begin(const tr_zip *z, const tr_zip_member *m, tr_zip_stream *s)
{
    memset(s, 0, sizeof *s);
    s->zip = z;
    s->m = m;
    s->crc = (uint32_t)crc32(0, NULL, 0);
    s->open = m->method == 8;
    if (s->open && inflateInit2(&s->z, -MAX_WBITS) != Z_OK) {
        s->open = false;
        return TR_FAIL(TR_MEMORY, "out of memory to unpack %s", m->name);
    }
    return TR_OK;
}

static tr_status fill(tr_zip_stream *s)
{
    const uint64_t left = s->m->packed - s->in;
    const size_t n = left < sizeof s->piece ? (size_t)left : sizeof s->piece;
    const tr_status st = tr_file_read_at(s->zip->fd, s->m->name, s->m->data + s->in, s->piece, n);
    s->in += n;
    s->z.next_in = s->piece;
    s->z.avail_in = (uInt)n;
    return st;
}

static tr_status unpack(tr_zip_stream *s, void *to, size_t nbytes)
{
    tr_status st = TR_OK;
    s->z.next_out = to;
    s->z.avail_out = (uInt)nbytes;
    while (s->z.avail_out > 0) {
        if (s->z.avail_in == 0 && s->in < s->m->packed) TR_TRY(fill(s));
        const int rc = inflate(&s->z, Z_NO_FLUSH);
        TR_NEED(rc == Z_OK || (rc == Z_STREAM_END && s->z.avail_out == 0), TR_FILE,
                "%s does not unpack to its %llu bytes", s->m->name, (unsigned long long)s->m->size);
    }
out:
    return st;
}

tr_status tr_zip_read(tr_zip_stream *s, void *to, size_t nbytes)
{
    enum { SOME = 1 << 30 };
    tr_status st = TR_OK;
    TR_NEED(nbytes <= s->m->size - s->out, TR_FILE, "%s ends after %llu bytes", s->m->name,
            (unsigned long long)s->m->size);
    for (size_t done = 0, n; done < nbytes; done += n) {
        unsigned char *at = (unsigned char *)to + done;
        n = nbytes - done < SOME ? nbytes - done : SOME;
        st = s->open ? unpack(s, at, n)
                     : tr_file_read_at(s->zip->fd, s->m->name, s->m->data + s->out, at, n);
        TR_TRY(st);
        s->crc = (uint32_t)crc32(s->crc, at, (uInt)n);
        s->out += n;
    }
out:
    return st;
}

tr_status tr_zip_check(const tr_zip_stream *s)
{
    if (s->out == s->m->size && s->crc == s->m->crc) return TR_OK;
    return TR_FAIL(TR_FILE, "%s: damaged: checksum %08x, expected %08x", s->m->name, s->crc,
                   s->m->crc);
}

void tr_zip_end(tr_zip_stream *s)
{
    if (s->open) inflateEnd(&s->z);
    s->open = false;
}
