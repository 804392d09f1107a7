/* Metadata of a run file as bytes: bounded reads, HDF5's checksum, the superblock. Whoever reads a
 * file pays for each byte of metadata out of the file's own size, so that groups that contain each
 * other end, however they are linked. */
#include "runtime/store/metadata.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define SPARE ((uint64_t)64 << 10) /* headers that are read twice: /, /train */

uint64_t tr_cursor_take(tr_cursor *c, unsigned nbytes)
{
    const uint8_t *p = tr_cursor_skip(c, nbytes);
    uint64_t v = 0;
    for (unsigned i = 0; p && i < nbytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

const uint8_t *tr_cursor_skip(tr_cursor *c, uint64_t nbytes)
{
    if (c->bad || nbytes > c->left) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += nbytes;
    c->left -= (size_t)nbytes;
    return p;
}

void tr_metadata_begin(tr_metadata *m, int fd, uint64_t nbytes, char *fault)
{
    *m = (tr_metadata){.fd = fd, .nbytes = nbytes, .left = nbytes + SPARE, .fault = fault};
}

bool tr_metadata_fault(tr_metadata *m, const char *fmt, ...)
{
    va_list args;
    if (m->fault[0]) return false; /* the first one counts */
    va_start(args, fmt);
    vsnprintf(m->fault, TR_FAULT, fmt, args);
    va_end(args);
    return false;
}

bool tr_metadata_bytes(tr_metadata *m, uint64_t at, uint64_t nbytes, const char *what, void *to)
{
    if (at > m->nbytes || nbytes > m->nbytes - at)
        return tr_metadata_fault(m, "%s at byte %llu does not lie in the file", what,
                                 (unsigned long long)at);
    if (nbytes > m->left)
        return tr_metadata_fault(m, "its metadata are larger than the file: it contains itself");
    m->left -= nbytes;
    for (uint64_t done = 0; done < nbytes;) {
        const ssize_t n = pread(m->fd, (char *)to + done, nbytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) m->error = errno;
        if (n <= 0)
            return tr_metadata_fault(m, "reading at byte %llu: %s", (unsigned long long)(at + done),
                                     n < 0 ? strerror(errno) : "the file ends");
        done += (uint64_t)n;
    }
    return true;
}

static uint32_t rotate(uint32_t x, int by)
{
    return x << by | x >> (32 - by);
}

/* Bytes in memory's order, so that it is the same everywhere; the format's appendix has it too.
 * http://burtleburtle.net/bob/c/lookup3.c */
uint32_t tr_metadata_checksum(const void *bytes, size_t nbytes)
{
    static const int mix[6] = {4, 6, 8, 16, 19, 4}, last[7] = {14, 11, 25, 16, 4, 14, 24};
    const uint8_t *p = bytes;
    uint32_t v[3];
    v[0] = v[1] = v[2] = 0xdeadbeef + (uint32_t)nbytes;
    if (nbytes == 0) return v[2];
    for (;; p += 12, nbytes -= 12) {
        for (size_t i = 0; i < 12 && i < nbytes; i++) v[i / 4] += (uint32_t)p[i] << (8 * (i % 4));
        if (nbytes <= 12) break;
        for (int i = 0; i < 6; i++) {
            uint32_t *a = &v[i % 3], *b = &v[(i + 1) % 3], *c = &v[(i + 2) % 3];
            *a = (*a - *c) ^ rotate(*c, mix[i]);
            *c += *b;
        }
    }
    for (int i = 0; i < 7; i++) {
        uint32_t *to = &v[(i + 2) % 3], *from = &v[(i + 1) % 3];
        *to = (*to ^ *from) - rotate(*from, last[i]);
    }
    return v[2];
}

/* "Disk Format: Level 0A, versions 2 and 3". */
bool tr_superblock_read(tr_metadata *m, uint64_t *root)
{
    uint8_t block[48];
    tr_cursor c = {.at = block + 9, .left = sizeof block - 9};
    if (!tr_metadata_bytes(m, 0, sizeof block, "the superblock", block)) return false;
    const uint32_t found = tr_metadata_checksum(block, sizeof block - 4);
    const unsigned address = (unsigned)tr_cursor_take(&c, 1),
                   length = (unsigned)tr_cursor_take(&c, 1);
    tr_cursor_skip(&c, 1); /* flags of writers at work */
    const uint64_t base = tr_cursor_take(&c, 8);
    tr_cursor_skip(&c, 8); /* an extension: tuning of older structures */
    const uint64_t end = tr_cursor_take(&c, 8);
    *root = tr_cursor_take(&c, 8);
    if (address != 8 || length != 8)
        return tr_metadata_fault(m, "not a run file: addresses of %u and lengths of %u bytes",
                                 address, length);
    if (found != tr_cursor_take(&c, 4))
        return tr_metadata_fault(m, "the superblock is damaged: its checksum does not fit");
    if (base != 0) return tr_metadata_fault(m, "not a run file: it does not begin at byte 0");
    if (end > m->nbytes)
        return tr_metadata_fault(m, "cut short: it has %llu bytes, expected %llu",
                                 (unsigned long long)m->nbytes, (unsigned long long)end);
    return true;
}
