/* A file that appears whole or not at all: written under a temporary name beside the target, fsync,
 * rename over the target, fsync of the folder. The space is asked for first (fallocate), so a full
 * disk shows before gigabytes are written. Whatever fails, the temporary goes and the target stays
 * as it was.
 *
 * The temporary's name tells whose it is: NAME.tmp-PID.HOST. One that a killed process left is
 * removed by a later start, or by the next who writes NAME: on the same host as soon as the process
 * is gone; else, as its number says nothing elsewhere and may have been given to another process,
 * once nothing was written to it for an hour. */
#include "runtime/base/file.h"

#include <ctype.h>
#include <dirent.h>
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
#define QUIET    3600 /* seconds after which no writer is behind a temporary */

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

/* For errno: TR_IO, and whether it is the disk that is full. */
static tr_status failed(const char *path, int why, const char *what)
{
    const tr_status st = TR_FAIL(TR_IO, "%s: %s: %s", path, what, strerror(why));
    return why == ENOSPC || why == EDQUOT ? tr_fail_hint(st, TR_HINT_DISK_FULL) : st;
}

/* Temporaries of `path` whose writers were killed. */
static void tidy_earlier(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = strlen(name);
    char *folder = slash == path ? tr_strdup("/")
                   : slash       ? tr_sprintf("%.*s", (int)(slash - path), path)
                                 : tr_strdup(".");
    DIR *d = folder ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (tr_commit_is_temp(e->d_name) == n && memcmp(e->d_name, name, n) == 0)
            tr_commit_tidy(dirfd(d), folder, e->d_name);
    if (d) closedir(d);
    tr_free(folder);
}

tr_status tr_commit_open(tr_commit *c, const char *path, uint64_t nbytes)
{
    char what[64];
    *c = (tr_commit){.path = path, .fd = -1};
    c->temp = tr_commit_temp_name(path);
    if (!c->temp) return tr_last_status();
    tidy_earlier(path);
    unlink(c->temp); /* of an earlier process with our number: not written over, it may have other
                        names */
    c->fd = open(c->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (c->fd < 0) {
        const tr_status st = failed(c->temp, errno, "cannot create");
        tr_free(c->temp);
        c->temp = NULL;
        return st;
    }
    snprintf(what, sizeof what, "no room for %llu bytes", (unsigned long long)nbytes);
    while (nbytes > 0 && fallocate(c->fd, 0, 0, (off_t)nbytes) != 0) {
        if (errno == EINTR) continue;
        if (errno == EOPNOTSUPP || errno == ENOSYS) break; /* then the writes will tell */
        const tr_status st = failed(path, errno, what);
        tr_commit_close(c);
        return st;
    }
    return TR_OK;
}

tr_status tr_commit_write(tr_commit *c, uint64_t offset, const void *bytes, size_t nbytes)
{
    const char *p = bytes;
    char what[64];
    while (nbytes > 0) {
        size_t piece = nbytes < (64u << 20) ? nbytes : 64u << 20;
        ssize_t n = pwrite(c->fd, p, piece, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int why = n < 0 ? errno : ENOSPC;
            snprintf(what, sizeof what, "writing at byte %llu", (unsigned long long)offset);
            return failed(c->path, why, what);
        }
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
    /* some file systems cannot sync a folder and say so with EINVAL: nothing more can be done
     * there */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL && errno != EROFS))
        st = TR_FAIL(TR_IO, "%s: syncing the folder: %s", folder, strerror(errno));
    if (fd >= 0) close(fd);
    return st;
}

tr_status tr_commit_finish(tr_commit *c)
{
    if (fsync(c->fd) != 0) return failed(c->path, errno, "fsync");
    int fd = c->fd;
    c->fd = -1;
    if (close(fd) != 0) return failed(c->path, errno, "close");
    if (rename(c->temp, c->path) != 0) return failed(c->path, errno, "rename");
    tr_free(c->temp);
    c->temp = NULL;
    return tr_commit_sync_folder(c->path);
}

void tr_commit_close(tr_commit *c)
{
    if (c->fd >= 0) close(c->fd);
    if (c->temp) unlink(c->temp);
    tr_free(c->temp);
    *c = (tr_commit){.fd = -1};
}

/* ".tmp-PID.HOST" at the end of `name`, with the two; NULL where there is none. */
static const char *temp_tag(const char *name, long *pid, const char **host)
{
    char *end;
    const char *tag = NULL;
    for (const char *p = name; (p = strstr(p, ".tmp-")); p++) tag = p;
    if (!tag || !isdigit((unsigned char)tag[5])) return NULL;
    *pid = strtol(tag + 5, &end, 10);
    *host = end + 1;
    return *pid > 0 && *end == '.' ? tag : NULL;
}

size_t tr_commit_is_temp(const char *name)
{
    long pid;
    const char *host, *tag = temp_tag(name, &pid, &host);
    return tag ? (size_t)(tag - name) : 0;
}

static double age(const char *folder, const char *name)
{
    struct stat info;
    char *path = tr_sprintf("%s/%s", folder, name);
    const bool known = path && lstat(path, &info) == 0 && S_ISREG(info.st_mode);
    tr_free(path);
    return known ? (double)time(NULL) - (double)info.st_mtime : 0;
}

bool tr_commit_is_stale(const char *folder, const char *name)
{
    long pid;
    char own[HOST_MAX];
    const char *host;
    if (!temp_tag(name, &pid, &host)) return false;
    host_name(own);
    const bool here = strcmp(host, own) == 0;
    if (here && pid != (long)getpid() && tr_process_gone(pid)) return true;
    /* our own number: in a container it may be that of the run before */
    const bool ours = here && pid == (long)getpid();
    return age(folder, name) > (ours ? tr_since_launch() + 2.0 : QUIET);
}

void tr_commit_tidy(int dir, const char *folder, const char *name)
{
    struct stat info;
    char size[32];
    if (!tr_commit_is_stale(folder, name) || fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(info.st_mode) || unlinkat(dir, name, 0) != 0)
        return;
    tr_log(TR_LOG_INFO, "%s/%s: removed, %s: its writer was killed", folder, name,
           tr_format_bytes((double)info.st_size, size, sizeof size));
}
