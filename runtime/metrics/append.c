/* Files of records: whole records are appended by one write each, and a file that a crash, a full
 * disk or a later resume left with more than that is cut back. */
#include "runtime/metrics/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tr_status tr_append_open(tr_append *a, bool fresh)
{
    struct stat s;
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (fresh ? O_TRUNC : 0);
    a->failed = false;
    a->fd = open(a->path, flags, 0666);
    if (a->fd < 0 || fstat(a->fd, &s) != 0)
        return TR_FAIL(TR_IO, "%s: cannot be opened for writing: %s", a->path, strerror(errno));
    a->size = s.st_size;
    return TR_OK;
}

void tr_append_write(tr_append *a, const void *bytes, size_t nbytes)
{
    size_t done = 0;
    if (a->fd < 0) return;
    while (done < nbytes) {
        ssize_t n = write(a->fd, (const char *)bytes + done, nbytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (done == nbytes) {
        a->size += (off_t)nbytes;
        return;
    }
    int reason = errno;
    if (done && ftruncate(a->fd, a->size) != 0) a->size += (off_t)done;
    if (!a->failed)
        tr_log(TR_LOG_WARN, "%s: a record was not written: %s; training goes on", a->path,
               strerror(reason));
    a->failed = true;
}

void tr_append_close(tr_append *a)
{
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
}

/* ---- Resume ---------------------------------------------------------------------------------- */

/* Does the record belong to a run that has come to `step`? Keys are written by us, so that they can
 * be found as text: a quote inside a value has a backslash before it. A rollback stays where the
 * step it went back to stays: what follows it replaces what stands before it. */
static bool belongs(const char *line, uint64_t step)
{
    size_t n = strlen(line);
    if (n < 3 || line[0] != '{' || strcmp(line + n - 2, "}\n") != 0) return false;
    bool rollback = strncmp(line, "{\"event\":\"rollback\",", 20) == 0;
    const char *at = strstr(line, rollback ? ",\"to\":" : ",\"step\":");
    if (!at) at = strstr(line, ",\"steps\":"); /* of an end */
    return !at || strtoull(strchr(at, ':') + 1, NULL, 10) <= step;
}

static tr_status sync_folder(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return ok ? TR_OK : TR_FAIL(TR_IO, "%s: cannot be synced: %s", folder, strerror(errno));
}

tr_status tr_append_rewind(const char *path, uint64_t step)
{
    tr_status st = TR_OK;
    FILE *in = fopen(path, "r"), *to = NULL;
    size_t dropped = 0;
    char *line = NULL, temporary[PATH_MAX];
    if (!in && errno == ENOENT) return TR_OK;
    TR_NEED(in, TR_IO, "%s: cannot be read: %s", path, strerror(errno));
    line = tr_alloc(TR_MEM_OTHER, TR_LINE + 1, 1);
    if (!line) {
        st = TR_MEMORY;
        goto out;
    }
    TR_NEED(snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid()) <
                (int)sizeof temporary,
            TR_IO, "%s: the path is too long", path);
    to = fopen(temporary, "w");
    TR_NEED(to, TR_IO, "%s: cannot be created: %s", temporary, strerror(errno));
    bool inside = false; /* of a line longer than any of ours */
    while (fgets(line, TR_LINE + 1, in)) {
        bool ends = strchr(line, '\n') != NULL;
        if (!inside && belongs(line, step))
            fputs(line, to);
        else
            dropped++;
        inside = !ends;
    }
    TR_NEED(!ferror(in), TR_IO, "%s: cannot be read: %s", path, strerror(errno));
    bool ok = fflush(to) == 0 && fsync(fileno(to)) == 0 && !ferror(to);
    TR_NEED(ok, TR_IO, "%s: cannot be written: %s", temporary, strerror(errno));
    if (dropped) {
        TR_NEED(rename(temporary, path) == 0, TR_IO, "%s: cannot be replaced: %s", path,
                strerror(errno));
        TR_TRY(sync_folder(path));
    }
out:
    if (in) fclose(in);
    if (to) {
        fclose(to);
        unlink(temporary);
    }
    tr_free(line);
    return st;
}
