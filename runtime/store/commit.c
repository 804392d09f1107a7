/* A file that appears whole or not at all: written under a temporary name beside the target, fsync,
 * rename over the target, fsync of the folder. The space is asked for first (fallocate), so a full
 * disk shows before gigabytes are written. Whatever fails, the temporary goes and the target stays
 * as it was.
 *
 * The temporary's name tells whose it is: NAME.tmp-PID.HOST. One that a killed process left is
 * removed by the next start on that host; on a shared file system other hosts' are left alone. */
#include "runtime/store/internal.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HOST_MAX 64

static void host_name(char host[HOST_MAX])
{
    memset(host, 0, HOST_MAX);
    if (gethostname(host, HOST_MAX - 1) != 0) snprintf(host, HOST_MAX, "localhost");
    for (char *p = host; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-' && *p != '.') *p = '_';
}

char *tr_commit_temp_name(const char *path)
{
    char host[HOST_MAX];
    host_name(host);
    return tr_sprintf("%s.tmp-%ld.%s", path, (long)getpid(), host);
}

tr_status tr_commit_open(tr_commit *c, const char *path, uint64_t nbytes)
{
    tr_status st = TR_OK;
    *c = (tr_commit){.path = path, .fd = -1};
    c->temp = tr_commit_temp_name(path);
    if (!c->temp) return TR_MEMORY;
    c->fd = open(c->temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (c->fd < 0) {
        st = TR_FAIL(TR_IO, "%s: cannot create: %s", c->temp, strerror(errno));
        tr_free(c->temp);
        c->temp = NULL;
        return st;
    }
    while (nbytes > 0 && fallocate(c->fd, 0, 0, (off_t)nbytes) != 0) {
        if (errno == EINTR) continue;
        if (errno == EOPNOTSUPP || errno == ENOSYS) break; /* then the writes will tell */
        st = TR_FAIL(TR_IO, "%s: no room for %llu bytes: %s", path, (unsigned long long)nbytes,
                     strerror(errno));
        tr_commit_close(c);
        return st;
    }
    return TR_OK;
}

tr_status tr_commit_write(tr_commit *c, uint64_t offset, const void *bytes, size_t nbytes)
{
    const char *p = bytes;
    while (nbytes > 0) {
        size_t piece = nbytes < (64u << 20) ? nbytes : 64u << 20;
        ssize_t n = pwrite(c->fd, p, piece, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return TR_FAIL(TR_IO, "%s: writing at byte %llu: %s", c->path,
                           (unsigned long long)offset, strerror(n < 0 ? errno : ENOSPC));
        p += n;
        offset += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return TR_OK;
}

tr_status tr_commit_sync_folder(const char *path)
{
    tr_status st = TR_OK;
    char folder[PATH_MAX]; /* not allocated: nothing but the disk may fail once the name is there */
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* some file systems cannot sync a folder and say so with EINVAL: nothing more can be done there */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL && errno != EROFS))
        st = TR_FAIL(TR_IO, "%s: syncing the folder: %s", folder, strerror(errno));
    if (fd >= 0) close(fd);
    return st;
}

tr_status tr_commit_finish(tr_commit *c)
{
    tr_status st = TR_OK;
    TR_NEED(fsync(c->fd) == 0, TR_IO, "%s: fsync: %s", c->path, strerror(errno));
    int fd = c->fd;
    c->fd = -1;
    TR_NEED(close(fd) == 0, TR_IO, "%s: close: %s", c->path, strerror(errno));
    TR_NEED(rename(c->temp, c->path) == 0, TR_IO, "%s: rename: %s", c->path, strerror(errno));
    tr_free(c->temp);
    c->temp = NULL;
    TR_TRY(tr_commit_sync_folder(c->path));
out:
    return st;
}

void tr_commit_close(tr_commit *c)
{
    if (c->fd >= 0) close(c->fd);
    if (c->temp) unlink(c->temp);
    tr_free(c->temp);
    *c = (tr_commit){.fd = -1};
}

bool tr_commit_is_stale(const char *folder, const char *name)
{
    const char *tag = strstr(name, ".h5.tmp-");
    if (!tag) return false;
    char *end, host[HOST_MAX];
    host_name(host);
    long pid = strtol(tag + 8, &end, 10);
    if (end == tag + 8 || pid <= 0 || *end != '.' || strcmp(end + 1, host) != 0) return false;
    if (pid != (long)getpid()) return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    /* our own number: in a container it may be that of the run before */
    char *path = tr_sprintf("%s/%s", folder, name);
    struct stat info;
    bool old = path && stat(path, &info) == 0 &&
               (double)info.st_mtime + 2.0 < (double)time(NULL) - tr_since_launch();
    tr_free(path);
    return old;
}
