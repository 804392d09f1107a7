#include "trainer/pipeline/stage_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/pipeline/stages.h"

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

/* The number in front of "NN-NAME" or "NN-NAME.EXTENSION", with the name of a stage; SIZE_MAX: it is
 * none of those. */
static size_t number_of(const char *name)
{
    char *end;
    if (name[0] < '0' || name[0] > '9') return SIZE_MAX;
    const unsigned long n = strtoul(name, &end, 10);
    if (end - name < 2 || *end != '-') return SIZE_MAX;
    const size_t length = strcspn(end + 1, ".");
    for (size_t i = 0; i < TR_STAGES; i++)
        if (strlen(tr_stages[i]->name) == length &&
            memcmp(tr_stages[i]->name, end + 1, length) == 0)
            return n;
    return SIZE_MAX;
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

tr_status tr_stage_files_remove(const char *folder, size_t first, const char *keep, bool say)
{
    tr_status st = TR_OK;
    int fd = -1;
    DIR *d = NULL;
    char *own = NULL, *path = tr_sprintf("%s/stages", folder);
    TR_HAVE(path);
    if (keep) own = tr_sprintf("%02zu-%s", first, keep);
    if (tr_folder_open(path, TR_IO, &fd) != TR_OK) goto out; /* there are none */
    d = fdopendir(fd);
    TR_NEED(d, TR_IO, "%s: %s", path, strerror(errno));
    for (struct dirent *e; st == TR_OK && (e = readdir(d));) {
        const size_t n = number_of(e->d_name);
        if (n == SIZE_MAX || n < first || (n == first && kept(e->d_name, own))) continue;
        if (say) tr_log(TR_LOG_INFO, "%s/%s is of before and goes", path, e->d_name);
        st = remove_at(fd, e->d_name, DEEPEST);
        if (st != TR_OK)
            st = TR_FAIL(TR_IO, "%s/%s cannot be removed: %s", path, e->d_name,
                         tr_last_error()->text);
    }
out:
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    tr_free(own);
    tr_free(path);
    return st;
}

tr_status tr_stage_files_tidy(const char *folder)
{
    tr_status st = TR_OK;
    int fd = -1;
    DIR *d = NULL;
    char *path = tr_sprintf("%s/stages", folder);
    TR_HAVE(path);
    if (tr_folder_open(path, TR_IO, &fd) != TR_OK) goto out; /* there are none */
    d = fdopendir(fd);
    TR_NEED(d, TR_IO, "%s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(d));)
        if (tr_commit_is_temp(e->d_name) > 0 && number_of(e->d_name) != SIZE_MAX)
            tr_commit_tidy(fd, path, e->d_name);
out:
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    tr_free(path);
    return st;
}
