/* The run folder. A job that ends before its run began leaves none behind: what was made for it is
 * known, and removed again under the lock. Jobs that are started at the same time for one folder
 * may meet in that; who finds it vanishing starts over. Nothing that was found is touched until the
 * run begins, so that there is nothing to put back, whatever ends the job before.
 *
 * .lock says whose the folder is: once a run began there, it bears MARK. In a folder so marked,
 * files with the names of a run's (run_files.h) are a run's; in any other they are somebody's, and
 * are neither written over nor removed. The mark is set where there were none of these names, and
 * before there is one. */
#include "trainer/run/run_folder.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/run/lock.h"
#include "trainer/run/stage_files.h"
#include "trainer/run/run_files.h"

#define MOST_TRIES 1000 /* a millisecond apart */
#define MARK       "trireme run folder\n"

struct tr_run_folder {
    char *path, *checkpoints, *lock_path;
    char *before;                 /* the path before it was moved, which others may still hold */
    char *replacing;              /* a file: the run in the folder is replaced, and no longer one */
    const char *with, *with_text; /* tr_run_folder_with; NULL: none */
    int lock, dir;                /* dir: the folder, wherever it is moved to */
    size_t made; /* length of the first part of the path that was missing; 0: none was */
    bool made_checkpoints, made_lock, resume, force, begun;
    bool marked; /* a run of ours began here */
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

/* What is left of a run that is replaced. Until all of it is gone, f->replacing says that there is
 * none: a job that was killed here leaves no mixture of two runs. */
static tr_status remove_replaced(const tr_run_folder *f, bool but_config)
{
    tr_status st = TR_OK;
    TR_TRY(tr_stage_files_remove(f->path, 0, NULL, false));
    TR_TRY(tr_run_files_remove(f->path, but_config));
    TR_NEED(unlink(f->replacing) == 0, TR_IO, "%s cannot be removed: %s", f->replacing,
            strerror(errno));
out:
    return st;
}

static tr_status write_text(const char *folder, const char *name, const char *text)
{
    tr_status st = TR_OK;
    tr_commit c = {.fd = -1};
    char *path = tr_sprintf("%s/%s", folder, name);
    if (!path) return tr_last_status();
    TR_TRY(tr_commit_open(&c, path, strlen(text)));
    TR_TRY(tr_commit_write(&c, 0, text, strlen(text)));
    TR_TRY(tr_commit_finish(&c));
out:
    tr_commit_close(&c);
    tr_free(path);
    return st;
}

/* checkpoints/ comes after the lock: who removes it holds the lock. It is no link: what lies behind
 * one is another run's, or nobody's. */
static tr_status make_checkpoints(tr_run_folder *f)
{
    if (mkdir(f->checkpoints, 0777) == 0)
        f->made_checkpoints = true;
    else if (errno != EEXIST)
        return TR_FAIL(TR_IO, "%s cannot be made: %s", f->checkpoints, strerror(errno));
    return tr_folder_own(f->checkpoints);
}

/* Nor is stages/, where there is one. */
static tr_status look_at_stages(const tr_run_folder *f)
{
    char *stages = tr_sprintf("%s/stages", f->path);
    const tr_status st = stages ? tr_folder_own(stages) : tr_last_status();
    tr_free(stages);
    return st;
}

static tr_status make(tr_run_folder *f, bool *again)
{
    tr_status st = TR_OK;
    *again = false;
    TR_TRY(make_folders(f, again));
    if (!*again) TR_TRY(tr_lock_take(f->lock_path, f->path, &f->lock, &f->made_lock, again));
    if (!*again) TR_TRY(make_checkpoints(f));
    if (!*again) TR_TRY(look_at_stages(f));
out:
    return st;
}

/* With the lock: whose is the folder? */
static tr_status read_mark(tr_run_folder *f)
{
    char text[sizeof MARK] = "";
    const ssize_t n = pread(f->lock, text, sizeof text, 0);
    f->marked = n == sizeof MARK - 1 && memcmp(text, MARK, sizeof MARK - 1) == 0;
    if (f->marked || n <= 0) return TR_OK;
    return TR_FAIL(TR_USAGE, "%s was made by no run: choose another folder (output=...)",
                   f->lock_path);
}

static tr_status set_mark(tr_run_folder *f)
{
    if (f->marked) return TR_OK;
    if (pwrite(f->lock, MARK, sizeof MARK - 1, 0) == sizeof MARK - 1 && fsync(f->lock) == 0) {
        f->marked = true;
        return TR_OK;
    }
    const int why = errno;
    if (ftruncate(f->lock, 0) != 0) errno = why;
    return TR_FAIL(TR_IO, "%s cannot be written: %s", f->lock_path, strerror(why));
}

/* A job was killed while it removed the run before. */
static tr_status finish_replacing(const tr_run_folder *f)
{
    int fd;
    const tr_status st = tr_file_open(f->replacing, O_RDONLY | O_NOFOLLOW, TR_IO, &fd, NULL);
    if (st != TR_OK) return errno == ENOENT ? TR_OK : st;
    close(fd);
    return remove_replaced(f, false);
}

/* May the run begin with what is there? A run that is gone on with writes no checkpoint over
 * another: those are its own, or found unfit. */
static tr_status look(tr_run_folder *f)
{
    char name[300];
    tr_status st = TR_OK;
    TR_TRY(read_mark(f));
    if (!f->marked && !tr_run_files_signed(f->path)) {
        TR_TRY(tr_run_files_find(f->path, !f->resume, name, sizeof name));
        TR_NEED(
            !name[0], TR_USAGE,
            "%s/%s is there, and no run of this program made it: it would be written over; move "
            "it away, or choose another folder (output=...)",
            f->path, name);
        f->force = false; /* there is nothing to replace */
        goto out;
    }
    TR_TRY(finish_replacing(f));
    if (f->resume || f->force) goto out;
    TR_TRY(tr_run_files_find(f->path, true, name, sizeof name));
    TR_NEED(!name[0], TR_USAGE,
            "%s already holds a run: go on with it (--resume), replace it (--force), or choose "
            "another folder (output=...)",
            f->path);
out:
    return st;
}

tr_status tr_run_folder_open(const char *folder, bool resume, bool force, tr_run_folder **out)
{
    tr_status st = TR_OK;
    bool again = true;
    tr_run_folder *f = TR_NEW(TR_MEM_OTHER, tr_run_folder);
    if (!f) return tr_last_status();
    f->lock = f->dir = -1;
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
    f->dir = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    TR_NEED(f->dir >= 0, TR_IO, "%s: %s", f->path, strerror(errno));
    TR_TRY(look(f));
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
static tr_status claim(tr_run_folder *f)
{
    tr_status st = TR_OK;
    char name[300];
    int mark;
    if (!f->force) {
        TR_TRY(tr_run_files_find(f->path, true, name, sizeof name));
        TR_NEED(
            !name[0], TR_USAGE,
            "%s holds a run that another job began meanwhile: choose another folder (output=...)",
            f->path);
    }
    TR_TRY(set_mark(f));
    if (f->force) {
        TR_TRY(tr_file_open(f->replacing, O_WRONLY | O_CREAT, TR_IO, &mark, NULL));
        close(mark);
    }
out:
    return st;
}

bool tr_run_folder_is_marked(const char *lock)
{
    return tr_file_begins(lock, MARK);
}

tr_status tr_run_folder_discard(tr_run_folder *f)
{
    tr_status st = TR_OK;
    int mark;
    if (!f->force || f->begun) return TR_OK;
    TR_TRY(tr_file_open(f->replacing, O_WRONLY | O_CREAT, TR_IO, &mark, NULL));
    close(mark);
    TR_TRY(remove_replaced(f, false));
out:
    return st;
}

tr_status tr_run_folder_begin(tr_run_folder *f, const char *config_text)
{
    tr_status st = TR_OK;
    const bool was_marked = f->marked;
    if (f->begun) return TR_OK;
    TR_TRY(f->resume ? set_mark(f) : claim(f));
    st = write_text(f->path, "config.yaml", config_text);
    if (st != TR_OK) {
        if (f->force) unlink(f->replacing);
        if (!was_marked && ftruncate(f->lock, 0) == 0) f->marked = false;
        goto out;
    }
    f->begun = true;
    if (f->force) TR_TRY(remove_replaced(f, true));
    TR_TRY(tr_run_files_tidy(f->path));
    TR_TRY(tr_stage_files_tidy(f->path));
    /* last: what is there is no longer the run's before, of which it may say something */
    if (f->with) TR_TRY(write_text(f->path, f->with, f->with_text));
out:
    return st;
}

tr_status tr_run_folder_config(const tr_run_folder *f, const char *config_text)
{
    return write_text(f->path, "config.yaml", config_text);
}

void tr_run_folder_with(tr_run_folder *f, const char *name, const char *text)
{
    f->with = name;
    f->with_text = text;
}

const char *tr_run_folder_path(const tr_run_folder *f)
{
    return f->path;
}

/* The paths of the folder at its new place, which it takes. */
static tr_status take_path(tr_run_folder *f, const char *path)
{
    tr_status st = TR_OK;
    char *now = tr_strdup(path), *checkpoints = tr_sprintf("%s/checkpoints", path),
         *lock = tr_sprintf("%s/.lock", path), *replacing = tr_sprintf("%s/.replacing", path);
    TR_HAVE(now && checkpoints && lock && replacing);
    tr_free(f->before);
    tr_free(f->checkpoints);
    tr_free(f->lock_path);
    tr_free(f->replacing);
    f->before = f->path;
    f->path = now;
    f->checkpoints = checkpoints;
    f->lock_path = lock;
    f->replacing = replacing;
    return TR_OK;
out:
    tr_free(now);
    tr_free(checkpoints);
    tr_free(lock);
    tr_free(replacing);
    return st;
}

static bool same_folder(const struct stat *a, const char *path)
{
    struct stat b;
    return stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

tr_status tr_run_folder_follow(tr_run_folder *f, bool *moved)
{
    tr_status st = TR_OK;
    char link[64], now[PATH_MAX];
    struct stat s;
    *moved = false;
    TR_NEED(fstat(f->dir, &s) == 0, TR_IO, "the run folder %s: %s", f->path, strerror(errno));
    if (same_folder(&s, f->path)) {
        /* checkpoints alone may be gone: later ones can be written */
        if (mkdir(f->checkpoints, 0777) == 0)
            tr_log(TR_LOG_WARN, "%s was removed while the job runs: made again", f->checkpoints);
        return TR_OK;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", f->dir);
    const ssize_t n = readlink(link, now, sizeof now - 1);
    now[n > 0 ? n : 0] = 0;
    TR_NEED(same_folder(&s, now), TR_IO,
            "the run folder %s was removed while the job runs, with all that was saved there",
            f->path);
    TR_TRY(take_path(f, now));
    tr_log(TR_LOG_WARN, "the run folder %s was moved while the job runs: it goes on in %s",
           f->before, f->path);
    *moved = true;
out:
    return st;
}

/* Removes no folder that holds something; what stands in the way of that is left to stand. */
void tr_run_folder_undo(tr_run_folder *f)
{
    if (!f || f->begun || !f->path) return;
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
    if (f->dir >= 0) close(f->dir);
    tr_free(f->before);
    tr_free(f->path);
    tr_free(f->checkpoints);
    tr_free(f->lock_path);
    tr_free(f->replacing);
    tr_free(f);
}
