/* Files read by offset from any thread. A short read or a file that changed is bad data, said with
 * the offset; nothing is mapped, so a file that shrinks cannot kill the process. */
#include "runtime/base/file.h"
#include "runtime/data/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

tr_status tr_data_file_open(const char *path, tr_data_file *f)
{
    struct stat s;
    *f = (tr_data_file){.fd = -1};
    f->path = tr_strdup(path);
    if (!f->path) return tr_last_status();
    const tr_status st = tr_file_open(path, O_RDONLY, TR_DATA, &f->fd, &s);
    if (st != TR_OK) {
        tr_data_file_close(f);
        return st;
    }
    f->device = (uint64_t)s.st_dev;
    f->inode = (uint64_t)s.st_ino;
    f->size = (uint64_t)s.st_size;
    f->mtime = s.st_mtim;
    return TR_OK;
}

tr_status tr_data_file_read(const tr_data_file *f, uint64_t offset, void *to, size_t nbytes)
{
    size_t done = 0;
    while (done < nbytes) {
        size_t ask = nbytes - done < ((size_t)1 << 30) ? nbytes - done : (size_t)1 << 30;
        ssize_t n = pread(f->fd, (char *)to + done, ask, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return TR_FAIL(TR_DATA, "%s: reading at byte %" PRIu64 ": %s", f->path, offset + done,
                           strerror(errno));
        if (n == 0)
            return TR_FAIL(TR_DATA,
                           "%s: ends at byte %" PRIu64 ", expected %" PRIu64
                           " bytes when it was opened: it was cut while in use",
                           f->path, offset + done, f->size);
        done += (size_t)n;
    }
    return TR_OK;
}

tr_status tr_data_file_unchanged(const tr_data_file *f)
{
    struct stat s;
    if (fstat(f->fd, &s) != 0) return TR_FAIL(TR_DATA, "%s: %s", f->path, strerror(errno));
    if ((uint64_t)s.st_size != f->size)
        return TR_FAIL(TR_DATA,
                       "%s: changed while in use: now %" PRIu64 " bytes, expected %" PRIu64,
                       f->path, (uint64_t)s.st_size, f->size);
    if (s.st_mtim.tv_sec != f->mtime.tv_sec || s.st_mtim.tv_nsec != f->mtime.tv_nsec)
        return TR_FAIL(TR_DATA, "%s: changed while in use: written to since it was opened",
                       f->path);
    return TR_OK;
}

void tr_data_file_shut(tr_data_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

void tr_data_file_close(tr_data_file *f)
{
    tr_data_file_shut(f);
    tr_free(f->path);
    f->path = NULL;
}
