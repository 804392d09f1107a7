/* The run folder. */
#include "trainer/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static tr_status make_folders(const char *path)
{
    char *copy = tr_strdup(path);
    if (!copy) return TR_MEMORY;
    tr_status st = TR_OK;
    for (char *p = copy + 1;; p++) {
        if (*p && *p != '/') continue;
        char c = *p;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            st = TR_FAIL(TR_IO, "the run folder %s cannot be made: %s", copy, strerror(errno));
            break;
        }
        *p = c;
        if (!c) break;
    }
    tr_free(copy);
    return st;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* What a run leaves in its folder and in its checkpoints folder. */
static bool is_ours(const char *name, bool checkpoints)
{
    if (checkpoints)
        return ends_with(name, ".h5") || ends_with(name, ".h5.damaged") ||
               strstr(name, ".h5.tmp-") != NULL;
    static const char *const names[] = {"config.yaml", "metrics.jsonl", "model.h5", "report.html",
                                        "trace.json"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return strncmp(name, "events.out.tfevents.", 20) == 0 || strstr(name, ".tmp-") != NULL;
}

/* Counts our files in a folder, and removes them if asked. */
static tr_status sweep(const char *folder, bool checkpoints, bool remove_them, int *count)
{
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT ? TR_OK : TR_FAIL(TR_IO, "%s: %s", folder, strerror(errno));
    tr_status st = TR_OK;
    for (struct dirent *e; st == TR_OK && (e = readdir(d));) {
        if (!is_ours(e->d_name, checkpoints)) continue;
        (*count)++;
        if (remove_them && unlinkat(dirfd(d), e->d_name, 0) != 0)
            st = TR_FAIL(TR_IO, "%s/%s cannot be removed: %s", folder, e->d_name, strerror(errno));
    }
    closedir(d);
    return st;
}

static tr_status take_lock(const char *folder, int *lock)
{
    char *path = tr_sprintf("%s/.lock", folder);
    if (!path) return TR_MEMORY;
    tr_status st = TR_OK;
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0)
        st = TR_FAIL(TR_IO, "%s: %s", path, strerror(errno));
    else if (flock(*lock, LOCK_EX | LOCK_NB) != 0 &&
             errno == EWOULDBLOCK) /* no locks on this file system: go on */
        st = TR_FAIL(TR_USAGE, "%s is in use by another running job", folder);
    tr_free(path);
    return st;
}

static tr_status write_config(const char *folder, const char *text)
{
    tr_status st = TR_OK;
    char *path = tr_sprintf("%s/config.yaml", folder),
         *temporary = tr_sprintf("%s/config.yaml.tmp-%d", folder, (int)getpid());
    FILE *f = path && temporary ? fopen(temporary, "w") : NULL;
    bool good = f && fputs(text, f) >= 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (f && fclose(f) != 0) good = false;
    if (good && rename(temporary, path) != 0) good = false;
    if (!good) {
        st = TR_FAIL(TR_IO, "%s/config.yaml cannot be written: %s", folder, strerror(errno));
        if (temporary) unlink(temporary);
    }
    tr_free(path);
    tr_free(temporary);
    return st;
}

tr_status tr_run_folder_open(const char *folder, bool resume, bool force, int *lock)
{
    tr_status st = TR_OK;
    int found = 0;
    char *checkpoints = tr_sprintf("%s/checkpoints", folder);
    TR_NEED(checkpoints, TR_MEMORY, "%s", tr_last_error()->text);
    TR_TRY(make_folders(checkpoints));
    TR_TRY(take_lock(folder, lock));
    if (!resume && !force) {
        TR_TRY(sweep(folder, false, false, &found));
        TR_TRY(sweep(checkpoints, true, false, &found));
        TR_NEED(found == 0, TR_USAGE,
                "%s already holds a run: go on with it (--resume), replace it (--force), or choose "
                "another "
                "folder (output=...)",
                folder);
    }
out:
    tr_free(checkpoints);
    return st;
}

tr_status tr_run_folder_begin(const char *folder, const char *config_text, bool resume)
{
    tr_status st = TR_OK;
    int found = 0;
    char *checkpoints = tr_sprintf("%s/checkpoints", folder);
    TR_NEED(checkpoints, TR_MEMORY, "%s", tr_last_error()->text);
    if (!resume) {
        TR_TRY(sweep(folder, false, true, &found));
        TR_TRY(sweep(checkpoints, true, true, &found));
    }
    TR_TRY(write_config(folder, config_text));
out:
    tr_free(checkpoints);
    return st;
}
