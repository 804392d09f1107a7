/* The run folder. A job that ends before its run began leaves none behind: what was made for it is
 * known, and removed again under the lock. Jobs that are started at the same time for one folder
 * may meet in that; who finds it vanishing starts over. Nothing that was found is touched until the
 * run begins, so that there is nothing to put back, whatever ends the job before. */
#include "trainer/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_TRIES 1000 /* a millisecond apart */

struct tr_run_folder {
    char *path, *checkpoints, *lock_path;
    char *replacing; /* a file: the run in the folder is replaced, and no longer one */
    int lock;
    size_t made; /* length of the first part of the path that was missing; 0: none was */
    bool made_checkpoints, made_lock, resume, force, begun;
};

/* TR_OK with *again: a job that came to nothing was removing the folder meanwhile. */
static tr_status failed(const char *path, bool *again)
{
    if (errno != ENOENT)
        return TR_FAIL(TR_IO, "the run folder %s cannot be made: %s", path, strerror(errno));
    *again = true;
    return TR_OK;
}

static tr_status make_folders(tr_run_folder *f, bool *again)
{
    tr_status st = TR_OK;
    char *copy = tr_strdup(f->path);
    if (!copy) return tr_last_status();
    for (char *p = copy + 1;; p++) {
        if (*p && *p != '/') continue;
        const char c = *p;
        const size_t n = (size_t)(p - copy);
        *p = 0;
        if (mkdir(copy, 0777) == 0)
            f->made = f->made > 0 && f->made < n ? f->made : n;
        else if (errno != EEXIST)
            st = failed(copy, again);
        *p = c;
        if (!c || st != TR_OK || *again) break;
    }
    tr_free(copy);
    return st;
}

/* The length of what in `name` is the name of something that a run leaves in its folder, or in its
 * checkpoints folder; 0: nothing. */
static size_t known(const char *name, bool checkpoints)
{
    static const char *const names[] = {"config.yaml", "metrics.jsonl", "model.h5", "report.html",
                                        "trace.json"};
    if (checkpoints) {
        const size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
        const size_t n = digits > 0 ? 5 + digits : strncmp(name, "best", 4) == 0 ? 4 : 0;
        return n > 0 && strncmp(name + n, ".h5", 3) == 0 ? n + 3 : 0;
    }
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        const size_t n = strlen(names[i]);
        if (strncmp(name, names[i], n) == 0) return n;
    }
    return 0;
}

/* That, or one that was not finished, or set aside as damaged. */
static bool is_ours(const char *name, bool checkpoints)
{
    if (!checkpoints && strncmp(name, "events.out.tfevents.", 20) == 0) return true;
    const size_t n = known(name, checkpoints);
    const char *rest = name + n;
    return n > 0 && (!*rest || strncmp(rest, ".tmp-", 5) == 0 ||
                     (checkpoints && strcmp(rest, ".damaged") == 0));
}

typedef enum { COUNT, REMOVE, REMOVE_BUT_CONFIG } sweeping;

/* Our files in a folder. */
static tr_status sweep_one(const char *folder, bool checkpoints, sweeping how, int *count)
{
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT ? TR_OK : TR_FAIL(TR_IO, "%s: %s", folder, strerror(errno));
    tr_status st = TR_OK;
    for (struct dirent *e; st == TR_OK && (e = readdir(d));) {
        if (!is_ours(e->d_name, checkpoints)) continue;
        (*count)++;
        if (how == COUNT || (how == REMOVE_BUT_CONFIG && strcmp(e->d_name, "config.yaml") == 0))
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) != 0)
            st = TR_FAIL(TR_IO, "%s/%s cannot be removed: %s", folder, e->d_name, strerror(errno));
    }
    closedir(d);
    return st;
}

static tr_status sweep(const tr_run_folder *f, sweeping how, int *count)
{
    tr_status st = TR_OK;
    *count = 0;
    TR_TRY(sweep_one(f->checkpoints, true, how, count));
    TR_TRY(sweep_one(f->path, false, how, count));
out:
    return st;
}

/* What is left of a run that is replaced. Until all of it is gone, f->replacing says that there is
 * none: a job that was killed here leaves no mixture of two runs. */
static tr_status remove_replaced(const tr_run_folder *f, sweeping how)
{
    tr_status st = TR_OK;
    int found;
    TR_TRY(sweep(f, how, &found));
    TR_NEED(unlink(f->replacing) == 0, TR_IO, "%s cannot be removed: %s", f->replacing,
            strerror(errno));
out:
    return st;
}

/* Whoever makes the file removes it while holding it: a lock on one without a name holds nothing. */
static tr_status take_lock(tr_run_folder *f, bool *again)
{
    struct stat status;
    const int flags = O_RDWR | O_CLOEXEC;
    f->lock = open(f->lock_path, flags | O_CREAT | O_EXCL, 0666);
    const bool made = f->lock >= 0;
    if (!made && errno == EEXIST) f->lock = open(f->lock_path, flags);
    if (f->lock < 0) return failed(f->lock_path, again);
    if (flock(f->lock, LOCK_EX | LOCK_NB) != 0 &&
        errno == EWOULDBLOCK) /* no locks on this file system: go on */
        return TR_FAIL(TR_USAGE, "%s is in use by another running job", f->path);
    f->made_lock = made;
    if (fstat(f->lock, &status) == 0 && status.st_nlink == 0) {
        close(f->lock);
        f->lock = -1;
        f->made_lock = false;
        *again = true;
    }
    return TR_OK;
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

/* checkpoints/ comes after the lock: who removes it holds the lock. */
static tr_status make(tr_run_folder *f, bool *again)
{
    tr_status st = TR_OK;
    *again = false;
    TR_TRY(make_folders(f, again));
    if (!*again) TR_TRY(take_lock(f, again));
    if (*again) return TR_OK;
    if (mkdir(f->checkpoints, 0777) == 0)
        f->made_checkpoints = true;
    else if (errno != EEXIST)
        st = TR_FAIL(TR_IO, "%s cannot be made: %s", f->checkpoints, strerror(errno));
out:
    return st;
}

tr_status tr_run_folder_open(const char *folder, bool resume, bool force, tr_run_folder **out)
{
    tr_status st = TR_OK;
    int found = 0;
    bool again = true;
    tr_run_folder *f = TR_NEW(TR_MEM_OTHER, tr_run_folder);
    if (!f) return tr_last_status();
    f->lock = -1;
    f->resume = resume;
    f->force = force && !resume;
    f->path = tr_strdup(folder);
    f->checkpoints = tr_sprintf("%s/checkpoints", folder);
    f->lock_path = tr_sprintf("%s/.lock", folder);
    f->replacing = tr_sprintf("%s/.replacing", folder);
    TR_HAVE(f->path && f->checkpoints && f->lock_path && f->replacing);
    for (int i = 0; i < MOST_TRIES && again; i++) {
        if (i > 0) usleep(1000);
        TR_TRY(make(f, &again));
    }
    TR_NEED(!again, TR_IO, "the run folder %s cannot be made: %s", folder, strerror(ENOENT));
    if (access(f->replacing, F_OK) == 0) TR_TRY(remove_replaced(f, REMOVE));
    if (!resume && !force) {
        TR_TRY(sweep(f, COUNT, &found));
        TR_NEED(found == 0, TR_USAGE,
                "%s already holds a run: go on with it (--resume), replace it (--force), or choose "
                "another folder (output=...)",
                folder);
    }
out:
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        tr_run_folder_close(f);
        tr_set_error(&why);
        return st;
    }
    *out = f;
    return TR_OK;
}

/* The folder is this run's from now on. */
static tr_status claim(const tr_run_folder *f)
{
    tr_status st = TR_OK;
    int found = 0;
    if (f->force) {
        const int mark = open(f->replacing, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        TR_NEED(mark >= 0, TR_IO, "%s cannot be made: %s", f->replacing, strerror(errno));
        close(mark);
        return TR_OK;
    }
    TR_TRY(sweep(f, COUNT, &found));
    TR_NEED(found == 0, TR_USAGE,
            "%s holds a run that another job began meanwhile: choose another folder (output=...)",
            f->path);
out:
    return st;
}

tr_status tr_run_folder_begin(tr_run_folder *f, const char *config_text)
{
    tr_status st = TR_OK;
    if (f->begun) return TR_OK;
    if (!f->resume) TR_TRY(claim(f));
    st = write_config(f->path, config_text);
    if (st != TR_OK && f->force) unlink(f->replacing);
    if (st != TR_OK) goto out;
    f->begun = true;
    if (f->force) TR_TRY(remove_replaced(f, REMOVE_BUT_CONFIG));
out:
    return st;
}

/* Removes no folder that holds something; what stands in the way of that is left to stand. */
void tr_run_folder_undo(tr_run_folder *f)
{
    if (!f || f->begun) return;
    if (f->made_checkpoints) rmdir(f->checkpoints);
    if (f->made_lock) unlink(f->lock_path);
    for (size_t n = strlen(f->path); f->made > 0 && n >= f->made;) {
        rmdir(f->path);
        while (n > 0 && f->path[n - 1] != '/') n--;
        if (n > 0) n--;
        f->path[n] = 0;
    }
    f->made_checkpoints = f->made_lock = false;
    f->made = 0;
}

void tr_run_folder_close(tr_run_folder *f)
{
    if (!f) return;
    tr_run_folder_undo(f);
    if (f->lock >= 0) close(f->lock);
    tr_free(f->path);
    tr_free(f->checkpoints);
    tr_free(f->lock_path);
    tr_free(f->replacing);
    tr_free(f);
}
