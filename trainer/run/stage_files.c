#include "trainer/run/stage_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/stages/stages.h"

#define DEEPEST 4 /* folders of trainings: NN-NAME/ROUND/checkpoints */

char *tr_stage_path(const char *folder, size_t number, const char *name)
{
    return tr_sprintf("%s/stages/%02zu-%s", folder, number, name);
}

tr_status tr_stage_files_make(const char *folder)
{
    tr_status st = TR_OK;
    char *path = tr_sprintf("%s/stages", folder);
    TR_HAVE(path);
    TR_NEED(mkdir(path, 0777) == 0 || errno == EEXIST, TR_IO, "%s cannot be made: %s", path,
            strerror(errno));
    TR_TRY(tr_folder_own(path)); /* no link: behind one lie others' files */
out:
    tr_free(path);
    return st;
}

/* The number in front of "NN-NAME" or "NN-NAME.EXTENSION", with the name of a stage; SIZE_MAX: it
 * is none of those. */
static size_t number_of(const char *name)
{
    char *end;
    if (name[0] < '0' || name[0] > '9') return SIZE_MAX;
    const unsigned long n = strtoul(name, &end, 10);
    if (end - name < 2 || *end != '-') return SIZE_MAX;
    const size_t length = strcspn(end + 1, "./");
    for (size_t i = 0; i < TR_STAGES; i++)
        if (strlen(tr_stages[i]->name) == length &&
            memcmp(tr_stages[i]->name, end + 1, length) == 0)
            return n;
    return SIZE_MAX;
}

bool tr_stage_files_name(const char *name)
{
    return number_of(name) != SIZE_MAX;
}

/* A file, or a folder with all that is in it; links are removed, not followed. */
static tr_status remove_at(int dir, const char *name, int depth)
{
    tr_status st = TR_OK;
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) return TR_OK;
    if (errno != EISDIR && errno != EPERM) return TR_FAIL(TR_IO, "%s", strerror(errno));
    if (depth == 0) return TR_FAIL(TR_IO, "folders are nested too deep");
    const int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0) close(fd);
        return TR_FAIL(TR_IO, "%s", strerror(errno));
    }
    for (struct dirent *e; st == TR_OK && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = remove_at(dirfd(d), e->d_name, depth - 1);
    closedir(d);
    if (st == TR_OK && unlinkat(dir, name, AT_REMOVEDIR) != 0)
        st = TR_FAIL(TR_IO, "%s", strerror(errno));
    return st;
}

/* Whether the name is `keep`, or that with something behind it. */
static bool kept(const char *name, const char *keep)
{
    const size_t n = keep ? strlen(keep) : 0;
    return n > 0 && strncmp(name, keep, n) == 0 && (name[n] == 0 || name[n] == '.');
}

/* *d NULL: there is no such folder. Close by closedir and tr_free. */
static tr_status open_folder(const char *folder, char **path, DIR **d)
{
    tr_status st = TR_OK;
    int fd = -1;
    *d = NULL;
    TR_HAVE(*path = tr_sprintf("%s/stages", folder));
    TR_TRY(tr_folder_open_any(*path, TR_IO, &fd));
    if (fd < 0 || (*d = fdopendir(fd))) return TR_OK;
    st = TR_FAIL(TR_IO, "%s: %s", *path, strerror(errno));
    close(fd);
out:
    return st;
}

static void close_folder(char *path, DIR *d)
{
    if (d) closedir(d);
    tr_free(path);
}

tr_status tr_stage_files_remove(const char *folder, size_t first, const char *keep, bool say)
{
    tr_status st = TR_OK;
    DIR *d = NULL;
    char *own = NULL, *path = NULL;
    if (keep) own = tr_sprintf("%02zu-%s", first, keep);
    TR_TRY(open_folder(folder, &path, &d));
    for (struct dirent *e; d && st == TR_OK && (e = readdir(d));) {
        const size_t n = number_of(e->d_name);
        if (n == SIZE_MAX || n < first || (n == first && kept(e->d_name, own))) continue;
        if (say) tr_log(TR_LOG_INFO, "%s/%s is of before and goes", path, e->d_name);
        st = remove_at(dirfd(d), e->d_name, DEEPEST);
        if (st != TR_OK) st = tr_fail_before(TR_IO, "%s/%s cannot be removed: ", path, e->d_name);
    }
out:
    close_folder(path, d);
    tr_free(own);
    return st;
}

tr_status tr_stage_files_left(const char *folder, size_t first)
{
    tr_status st;
    DIR *d = NULL;
    char *path = NULL, names[300] = "";
    size_t count = 0, n = 0;
    TR_TRY(open_folder(folder, &path, &d));
    for (struct dirent *e; d && (e = readdir(d));) {
        const size_t number = number_of(e->d_name);
        if (number == SIZE_MAX || number < first) continue;
        if (n + strlen(e->d_name) + 2 < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", e->d_name);
        count++;
    }
    if (count)
        tr_log(TR_LOG_INFO, "%s: of stages that the pipeline does not have stay %zu: %s", path,
               count, names);
out:
    close_folder(path, d);
    return st;
}

tr_status tr_stage_files_tidy(const char *folder)
{
    tr_status st;
    DIR *d = NULL;
    char *path = NULL;
    TR_TRY(open_folder(folder, &path, &d));
    for (struct dirent *e; d && (e = readdir(d));)
        if (tr_commit_is_temp(e->d_name) > 0 && number_of(e->d_name) != SIZE_MAX)
            tr_commit_tidy(dirfd(d), path, e->d_name);
out:
    close_folder(path, d);
    return st;
}
