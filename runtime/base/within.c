/* Whether a file lies in a folder, by what the paths lead to and not by how they are written.
 * Neither need be there: links are followed as far as there are any, and what is missing counts by
 * its name. The folder is taken as `realpath -m` has it; the file's path must be one that can be
 * opened once both are there, so `..` is only behind folders. */
#include "runtime/base/file.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void pop(char path[PATH_MAX])
{
    char *slash = strrchr(path, '/');
    slash[slash == path] = 0; /* "/" has nothing above it */
}

static bool push(char path[PATH_MAX], const char *name, size_t n)
{
    size_t at = strlen(path);
    if (at + 1 + n >= PATH_MAX) return false;
    if (at > 1) path[at++] = '/';
    memcpy(path + at, name, n);
    path[at + n] = 0;
    return true;
}

/* Where a link leads, in the place of its own name before `rest`. False: `path` is no link, or the
 * names get too long. */
static bool follow(const char *path, const char *rest, char left[PATH_MAX])
{
    char target[PATH_MAX], more[PATH_MAX];
    const ssize_t n = readlink(path, target, sizeof target);
    if (n <= 0 || (size_t)n + strlen(rest) >= PATH_MAX) return false;
    strcpy(more, rest); /* it points into `left` */
    memcpy(left, target, (size_t)n);
    strcpy(left + n, more);
    return true;
}

static bool start(const char *path, char out[PATH_MAX])
{
    if (*path == '/') return strcpy(out, "/");
    return getcwd(out, PATH_MAX);
}

/* What is a folder, or leads to the one that will be. */
static bool is_folder(const char *path, const char *to)
{
    struct stat s;
    const size_t n = path[1] ? strlen(path) : 0;
    if (stat(path, &s) == 0) return S_ISDIR(s.st_mode);
    return strncmp(to, path, n) == 0 && (to[n] == '/' || !to[n]);
}

/* The path from the root on, without links. `own`: what the path names itself is not followed.
 * `to`, unless it is NULL: the folder that makes what leads to it one; false where `..` is behind
 * what is none. */
static bool resolve(const char *path, bool own, const char *to, char out[PATH_MAX])
{
    enum { LINKS = 40 }; /* as Linux has it: they may lead in a circle */
    char left[PATH_MAX];
    int links = 0;
    if (strlen(path) >= sizeof left || !start(path, out)) return false;
    strcpy(left, path);
    for (const char *p = left; *(p += strspn(p, "/"));) {
        const size_t n = strcspn(p, "/");
        const char *name = p;
        p += n;
        if (n == 1 && *name == '.') continue;
        if (n == 2 && name[0] == '.' && name[1] == '.') {
            if (to && !is_folder(out, to)) return false;
            pop(out);
            continue;
        }
        if (!push(out, name, n)) return false;
        if ((own && !p[strspn(p, "/")]) || links == LINKS || !follow(out, p, left)) continue;
        links++;
        p = left;
        if (*left == '/')
            strcpy(out, "/");
        else
            pop(out);
    }
    return true;
}

bool tr_file_within(const char *folder, const char *file, char within[PATH_MAX])
{
    char in[PATH_MAX], path[PATH_MAX];
    const size_t length = strlen(file);
    if (!length || file[length - 1] == '/' || !resolve(folder, false, NULL, in)) return false;
    const size_t n = in[1] ? strlen(in) : 0; /* of "/" none */
    for (int own = 1; own >= 0; own--)
        if (resolve(file, own, in, path) && strncmp(path, in, n) == 0 && path[n] == '/' &&
            path[n + 1])
            return strcpy(within, path + n + 1);
    return false;
}
