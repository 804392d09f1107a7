/* PATH.part: rows of outputs as they come, readable after a kill at any byte. */
#include "optimize/predict/predict.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/crc32c.h"
#include "runtime/base/file.h"

#define KIND  "trireme predictions " /* of any version */
#define MAGIC KIND "1\n"

typedef struct {
    char magic[32];
    char job[65];
    char zeros[7];
    uint64_t samples, outputs, batch;
} header;

typedef struct {
    uint64_t first, count;
    uint32_t crc; /* of what is before and of the rows */
    uint32_t zero;
} record;

struct tr_part {
    char *path;
    int fd;
    header h;
    uint64_t rows;   /* in whole records */
    uint64_t end;    /* byte behind the last one */
    uint64_t at, to; /* reading: byte, and rows read */
};

uint64_t tr_part_batch(const tr_part *p)
{
    return p->h.batch;
}

static tr_status io_fail(const tr_part *p, const char *what)
{
    const int why = errno;
    const tr_status st = TR_FAIL(TR_IO, "%s: %s: %s", p->path, what, strerror(why));
    return why == ENOSPC || why == EDQUOT ? tr_fail_hint(st, TR_HINT_DISK_FULL) : st;
}

static tr_status write_at(const tr_part *p, uint64_t at, const void *bytes, size_t n)
{
    const char *from = bytes;
    while (n > 0) {
        const ssize_t done = pwrite(p->fd, from, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return io_fail(p, "cannot be written");
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return TR_OK;
}

/* false: fewer bytes are there, or they cannot be read. */
static bool read_at(const tr_part *p, uint64_t at, void *bytes, size_t n)
{
    char *to = bytes;
    while (n > 0) {
        const ssize_t done = pread(p->fd, to, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        to += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return true;
}

static uint32_t checksum(const record *r, const float *rows, size_t outputs)
{
    const uint32_t crc = tr_crc32c(0, r, offsetof(record, crc));
    return tr_crc32c(crc, rows, (size_t)r->count * outputs * sizeof *rows);
}

static size_t row_bytes(const tr_part *p)
{
    return (size_t)p->h.outputs * sizeof(float);
}

static uint64_t count_at(const tr_part *p, uint64_t row)
{
    const uint64_t left = p->h.samples - row;
    return left < p->h.batch ? left : p->h.batch;
}

/* The record at a byte, if it is whole and begins with row `first`. */
static bool read_record(const tr_part *p, uint64_t at, uint64_t first, record *r, float *rows)
{
    const size_t outputs = (size_t)p->h.outputs;
    return read_at(p, at, r, sizeof *r) && r->first == first && r->count == count_at(p, first) &&
           read_at(p, at + sizeof *r, rows, (size_t)r->count * row_bytes(p)) &&
           r->crc == checksum(r, rows, outputs);
}

/* Finds the last whole record; the rest goes. */
static tr_status go_on(tr_part *p)
{
    tr_status st = TR_OK;
    record r;
    float *rows = tr_alloc(TR_MEM_OTHER, (size_t)p->h.batch, row_bytes(p));
    TR_HAVE(rows);
    p->end = sizeof p->h;
    while (p->rows < p->h.samples && read_record(p, p->end, p->rows, &r, rows)) {
        p->rows += r.count;
        p->end += sizeof r + r.count * row_bytes(p);
    }
    if (ftruncate(p->fd, (off_t)p->end) != 0) st = io_fail(p, "cannot be shortened");
out:
    tr_free(rows);
    return st;
}

/* Whether a file of so many bytes begins as ours do, as far as it goes: its header may be half
 * written. */
static bool is_ours(const header *there, off_t nbytes)
{
    const size_t n = sizeof KIND - 1;
    return memcmp(there->magic, KIND, nbytes < (off_t)n ? (size_t)nbytes : n) == 0;
}

static tr_status begin(tr_part *p)
{
    p->end = sizeof p->h;
    if (ftruncate(p->fd, 0) != 0) return io_fail(p, "cannot be emptied");
    return write_at(p, 0, &p->h, sizeof p->h);
}

tr_status tr_part_open(const char *path, const char job[65], uint64_t samples, size_t outputs,
                       uint64_t batch, bool replace, tr_part **out)
{
    tr_status st = TR_OK;
    header there = {0};
    struct stat info;
    tr_part *p = TR_NEW(TR_MEM_OTHER, tr_part);
    if (!p) return tr_last_status();
    p->fd = -1;
    TR_HAVE(p->path = tr_sprintf("%s.part", path));
    memcpy(p->h.magic, MAGIC, sizeof MAGIC);
    memcpy(p->h.job, job, sizeof p->h.job);
    p->h.samples = samples;
    p->h.outputs = outputs;
    p->h.batch = batch;
    TR_TRY(tr_file_open(p->path, O_RDWR | O_CREAT, TR_IO, &p->fd, &info));
    TR_NEED(tr_file_lock(p->fd), TR_USAGE, "%s: another process is writing to it", p->path);
    const bool whole = read_at(p, 0, &there, sizeof there);
    const bool same = whole && memcmp(&there, &p->h, sizeof there) == 0;
    TR_NEED(is_ours(&there, info.st_size), TR_USAGE,
            "%s: is no prediction that was begun, and would be written over: move it away",
            p->path);
    TR_NEED(same || replace || info.st_size == 0, TR_USAGE,
            "%s: is of a prediction with another model, other data or options: remove it, or "
            "start over (--force)",
            p->path);
    st = same ? go_on(p) : begin(p);
out:
    if (st == TR_OK)
        *out = p;
    else
        tr_part_close(p);
    return st;
}

void tr_part_close(tr_part *p)
{
    if (!p) return;
    if (p->fd >= 0) close(p->fd);
    tr_free(p->path);
    tr_free(p);
}

uint64_t tr_part_rows(const tr_part *p)
{
    return p->rows;
}

tr_status tr_part_append(tr_part *p, const float *rows, uint64_t count)
{
    tr_status st = TR_OK;
    record r = {.first = p->rows, .count = count};
    TR_NEED(p->rows < p->h.samples && count == count_at(p, p->rows), TR_INTERNAL,
            "%s: %llu rows after %llu", p->path, (unsigned long long)count,
            (unsigned long long)p->rows);
    r.crc = checksum(&r, rows, (size_t)p->h.outputs);
    TR_TRY(write_at(p, p->end, &r, sizeof r));
    TR_TRY(write_at(p, p->end + sizeof r, rows, (size_t)count * row_bytes(p)));
    p->end += sizeof r + count * row_bytes(p);
    p->rows += count;
out:
    return st;
}

void tr_part_rewind(tr_part *p)
{
    p->at = sizeof p->h;
    p->to = 0;
}

tr_status tr_part_next(tr_part *p, float *rows, uint64_t *count)
{
    record r;
    if (!read_record(p, p->at, p->to, &r, rows))
        return TR_FAIL(TR_DATA, "%s: changed while it was read, at byte %llu", p->path,
                       (unsigned long long)p->at);
    p->at += sizeof r + r.count * row_bytes(p);
    p->to += r.count;
    *count = r.count;
    return TR_OK;
}

tr_status tr_part_remove(tr_part *p)
{
    return unlink(p->path) == 0 ? TR_OK : io_fail(p, "cannot be removed");
}
