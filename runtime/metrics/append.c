/* Files of records: whole records are appended by one write each, and a file that a crash, a full
 * disk or a later resume left with more than that is cut back. */
#include "runtime/base/file.h"
#include "runtime/metrics/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tr_status tr_append_open(tr_append *a, bool fresh)
{
    struct stat s;
    a->failed = false;
    const int flags = O_WRONLY | O_CREAT | O_APPEND | (fresh ? O_TRUNC : 0);
    const tr_status st = tr_file_open(a->path, flags, TR_IO, &a->fd, &s);
    a->size = st == TR_OK && !fresh ? s.st_size : 0;
    return st;
}

/* What was removed would be written to in silence, and lost: it begins again. */
static void reopen_removed(tr_append *a)
{
    struct stat s;
    if (fstat(a->fd, &s) != 0 || s.st_nlink > 0) return;
    close(a->fd);
    if (tr_append_open(a, false) == TR_OK)
        tr_log(TR_LOG_WARN,
               "%s: was removed while the job runs, with the records in it: begun again", a->path);
    else
        tr_log(TR_LOG_WARN, "%s; nothing more is written to it", tr_last_error()->text);
}

void tr_append_write(tr_append *a, const void *bytes, size_t nbytes)
{
    size_t done = 0;
    if (a->fd >= 0) reopen_removed(a);
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

/* Of what is in `in`, the records that belong go to `to`; how many did not. */
static size_t copy_records(FILE *in, FILE *to, char *line, uint64_t step)
{
    size_t dropped = 0;
    bool inside = false; /* of a line longer than any of ours */
    while (fgets(line, TR_LINE + 1, in)) {
        bool ends = strchr(line, '\n') != NULL;
        if (!inside && belongs(line, step))
            fputs(line, to);
        else
            dropped++;
        inside = !ends;
    }
    return dropped;
}

/* A stream on a descriptor, which it takes. */
static FILE *stream(int fd, const char *mode)
{
    FILE *f = fd >= 0 ? fdopen(fd, mode) : NULL;
    if (!f && fd >= 0) close(fd);
    return f;
}

tr_status tr_append_rewind(const char *path, uint64_t step)
{
    tr_status st = TR_OK;
    tr_commit c = {.fd = -1};
    FILE *in = NULL, *to = NULL;
    char *line = NULL;
    int fd;
    st = tr_file_open(path, O_RDONLY, TR_IO, &fd, NULL);
    if (st != TR_OK) return errno == ENOENT ? TR_OK : st;
    in = stream(fd, "r");
    TR_NEED(in, TR_IO, "%s: cannot be read: %s", path, strerror(errno));
    line = tr_alloc(TR_MEM_OTHER, TR_LINE + 1, 1);
    TR_HAVE(line);
    TR_TRY(tr_commit_open(&c, path, 0));
    to = stream(dup(c.fd), "w");
    TR_NEED(to, TR_IO, "%s: cannot be written: %s", c.temp, strerror(errno));
    const size_t dropped = copy_records(in, to, line, step);
    TR_NEED(!ferror(in), TR_IO, "%s: cannot be read: %s", path, strerror(errno));
    TR_NEED(fflush(to) == 0 && !ferror(to), TR_IO, "%s: cannot be written: %s", c.temp,
            strerror(errno));
    if (dropped) TR_TRY(tr_commit_finish(&c));
out:
    if (in) fclose(in);
    if (to) fclose(to);
    tr_commit_close(&c);
    tr_free(line);
    return st;
}
