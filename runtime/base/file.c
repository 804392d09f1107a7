/* Opening files. O_NONBLOCK makes a pipe in place of a file an error instead of a wait for a
 * writer, and does nothing to a file; what was opened is looked at by fstat, so that nothing can be
 * put in its place between. */
#include "runtime/base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *kind(mode_t mode)
{
    return S_ISREG(mode)    ? "file"
           : S_ISDIR(mode)  ? "folder"
           : S_ISLNK(mode)  ? "link"
           : S_ISFIFO(mode) ? "pipe"
           : S_ISSOCK(mode) ? "socket"
                            : "device";
}

tr_status tr_file_open_failed(const char *path, int flags, tr_status blame, const char *expected)
{
    const int why = errno;
    struct stat s;
    const bool known = lstat(path, &s) == 0 && (!S_ISLNK(s.st_mode) || flags & O_NOFOLLOW);
    struct rlimit most;
    if (why == EMFILE && getrlimit(RLIMIT_NOFILE, &most) == 0)
        (void)TR_FAIL(blame,
                      "%s: cannot be opened: this process has all of the %llu files open that it "
                      "may have (ulimit -n)",
                      path, (unsigned long long)most.rlim_cur);
    else if (known && strcmp(kind(s.st_mode), expected) != 0)
        (void)TR_FAIL(blame, "%s: is a %s, expected a %s", path, kind(s.st_mode), expected);
    else
        (void)TR_FAIL(blame, "%s: cannot be opened%s: %s", path,
                      (flags & O_ACCMODE) == O_RDONLY ? "" : " for writing", strerror(why));
    errno = why;
    return blame;
}

tr_status tr_file_open(const char *path, int flags, tr_status blame, int *fd, struct stat *info)
{
    struct stat own, *s = info ? info : &own;
    if ((flags & O_ACCMODE) != O_RDONLY) flags |= O_NOFOLLOW;
    *fd = open(path, (flags & ~O_TRUNC) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (*fd < 0) return tr_file_open_failed(path, flags, blame, "file");
    if (fstat(*fd, s) == 0 && S_ISREG(s->st_mode)) {
        if (!(flags & O_TRUNC) || ftruncate(*fd, 0) == 0) return TR_OK;
        (void)TR_FAIL(blame, "%s: cannot be emptied: %s", path, strerror(errno));
    } else {
        errno = S_ISDIR(s->st_mode) ? EISDIR : ENXIO;
        (void)TR_FAIL(blame, "%s: is a %s, expected a file", path, kind(s->st_mode));
    }
    const int why = errno;
    close(*fd);
    *fd = -1;
    errno = why;
    return blame;
}

tr_status tr_folder_open(const char *path, tr_status blame, int *fd)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    *fd = open(path, flags);
    return *fd >= 0 ? TR_OK : tr_file_open_failed(path, flags, blame, "folder");
}

tr_status tr_folder_open_any(const char *path, tr_status blame, int *fd)
{
    const tr_status st = tr_folder_open(path, blame, fd);
    return st != TR_OK && errno == ENOENT ? TR_OK : st;
}

tr_status tr_folder_own(const char *path)
{
    int fd;
    const tr_status st = tr_folder_open_any(path, TR_USAGE, &fd);
    if (fd >= 0) close(fd);
    return st;
}

bool tr_file_there(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0;
}

bool tr_file_begins(const char *path, const char *with)
{
    int fd;
    char start[64];
    const size_t n = strlen(with);
    if (n > sizeof start || tr_file_open(path, O_RDONLY | O_NOFOLLOW, TR_IO, &fd, NULL) != TR_OK)
        return false;
    const bool same = pread(fd, start, n, 0) == (ssize_t)n && memcmp(start, with, n) == 0;
    close(fd);
    return same;
}

bool tr_file_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

bool tr_file_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* A path as glob(3) takes it literally. */
static char *literal(const char *path)
{
    char *out = tr_alloc(TR_MEM_OTHER, 2 * strlen(path) + 1, 1), *to = out;
    for (; out && *path; *to++ = *path++)
        if (strchr("*?[\\", *path)) *to++ = '\\';
    return out;
}

/* What cannot be looked through may hold anything; what is not there holds nothing. */
static int ends_search(const char *folder, int why)
{
    if (why == ENOENT) return 0;
    (void)TR_FAIL(TR_IO, "%s: cannot be looked through: %s", folder, strerror(why));
    return 1;
}

tr_status tr_files_like(const char *path, const char *pattern, glob_t *found)
{
    tr_status st = TR_OK;
    char *begin = literal(path), *all = begin ? tr_sprintf("%s%s", begin, pattern) : NULL;
    *found = (glob_t){0};
    TR_HAVE(all);
    const int failed = glob(all, 0, ends_search, found);
    TR_NEED(failed != GLOB_NOSPACE, TR_MEMORY, "out of memory for the names like %s%s", path,
            pattern);
    if (failed == GLOB_ABORTED) st = TR_IO;
out:
    tr_free(begin);
    tr_free(all);
    return st;
}

tr_status tr_file_read_at(int fd, const char *path, uint64_t at, void *to, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        const ssize_t got = pread(fd, (char *)to + done, nbytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return TR_FAIL(got < 0 ? TR_IO : TR_FILE, "%s: byte %llu: %s", path,
                           (unsigned long long)(at + done), got < 0 ? strerror(errno) : "it ends");
        done += (size_t)got;
    }
    return TR_OK;
}

tr_status tr_file_read_all(int fd, const char *name, tr_status blame, char **text, size_t *nbytes)
{
    enum { MOST = 64 << 20 };
    tr_status st = TR_OK;
    char *all = NULL;
    size_t have = 0, room = 0;
    for (ssize_t got = 1; got != 0;) {
        if (room - have < 2) {
            room = room ? 2 * room : 8192;
            TR_NEED(room <= MOST, blame, "%s: larger than %d MiB", name, MOST >> 20);
            char *wider = tr_realloc(TR_MEM_OTHER, all, room, 1);
            TR_HAVE(wider);
            all = wider;
        }
        got = read(fd, all + have, room - have - 1);
        if (got < 0 && errno == EINTR) continue;
        TR_NEED(got >= 0, blame, "%s: cannot be read: %s", name, strerror(errno));
        have += (size_t)got;
    }
    all[have] = 0;
out:
    if (st != TR_OK) {
        tr_free(all);
        return st;
    }
    *text = all;
    *nbytes = have;
    return TR_OK;
}
