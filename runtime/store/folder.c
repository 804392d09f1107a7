/* The checkpoints of a run folder: their names, tidying, and making best.h5. */
#include "runtime/store/internal.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tr_store_checkpoint_path(const char *folder, uint64_t step)
{
    return tr_sprintf("%s/checkpoints/step-%08llu.h5", folder, (unsigned long long)step);
}

/* "step-DIGITS" and `end`, and nothing else. */
static bool parse_name(const char *name, const char *end, uint64_t *step)
{
    char *at;
    if (strncmp(name, "step-", 5) != 0 || !isdigit((unsigned char)name[5])) return false;
    errno = 0;
    *step = strtoull(name + 5, &at, 10);
    return errno == 0 && strcmp(at, end) == 0;
}

/* What a killed writer leaves of a checkpoint. */
static bool is_temp(const char *name)
{
    uint64_t step;
    const size_t n = tr_commit_is_temp(name);
    return n > 3 &&
           (parse_name(name, name + n - 3, &step) || strncmp(name, "best.h5.tmp-", 12) == 0);
}

static int newest_first(const void *a, const void *b)
{
    const tr_step_file *x = a, *y = b;
    return x->step > y->step ? -1 : x->step < y->step;
}

void tr_step_files_free(tr_step_files *l)
{
    for (size_t i = 0; i < l->count; i++) tr_free(l->v[i].name);
    tr_free(l->v);
    tr_free(l->aside);
    *l = (tr_step_files){0};
}

tr_status tr_step_files_list(const char *checkpoints, bool clean, tr_step_files *l)
{
    tr_status st = TR_OK;
    int fd;
    DIR *dir = NULL;
    TR_TRY(tr_folder_open_any(checkpoints, TR_IO, &fd));
    if (fd < 0) return TR_OK;
    dir = fdopendir(fd);
    if (!dir) close(fd);
    TR_NEED(dir, TR_IO, "%s: %s", checkpoints, strerror(errno));
    for (struct dirent *d; (d = readdir(dir));) {
        uint64_t step;
        if (clean && is_temp(d->d_name)) tr_commit_tidy(dirfd(dir), checkpoints, d->d_name);
        if (parse_name(d->d_name, ".h5" TR_DAMAGED, &step)) l->damaged++;
        if (parse_name(d->d_name, ".h5" TR_UNSOUND, &step)) {
            if (l->unsound++ > 0) continue;
            l->aside = tr_sprintf("%s/%s", checkpoints, d->d_name);
            TR_HAVE(l->aside);
        }
        if (!parse_name(d->d_name, ".h5", &step)) continue;
        tr_step_file *grown = tr_realloc(TR_MEM_OTHER, l->v, l->count + 1, sizeof *grown);
        TR_HAVE(grown);
        l->v = grown;
        l->v[l->count].step = step;
        l->v[l->count].name = tr_sprintf("%s/%s", checkpoints, d->d_name);
        TR_HAVE(l->v[l->count].name);
        l->count++;
    }
    if (l->count > 0) qsort(l->v, l->count, sizeof *l->v, newest_first);
out:
    if (dir) closedir(dir);
    return st;
}

tr_status tr_store_prune(const char *folder, int64_t keep, uint64_t newest)
{
    tr_status st = TR_OK;
    tr_step_files l = {0};
    int64_t kept = 0;
    if (keep <= 0) return TR_OK;
    char *checkpoints = tr_sprintf("%s/checkpoints", folder);
    if (!checkpoints) return tr_last_status();
    TR_TRY(tr_step_files_list(checkpoints, false, &l));
    for (size_t i = 0; i < l.count; i++) {
        if (l.v[i].step > newest || kept++ < keep) continue;
        TR_NEED(unlink(l.v[i].name) == 0 || errno == ENOENT, TR_IO, "%s: cannot remove: %s",
                l.v[i].name, strerror(errno));
    }
out:
    tr_step_files_free(&l);
    tr_free(checkpoints);
    return st;
}

/* Whether a run can go on from this file; *unsound: it is whole, and should not. */
static bool is_sound(const char *path, bool *unsound)
{
    tr_train_state train;
    const tr_status st = tr_store_verify(path, &train);
    *unsound = st == TR_OK && train.unsound;
    return st == TR_OK && !train.unsound;
}

tr_status tr_store_make_room(const char *folder, uint64_t newest, bool sound, bool *removed)
{
    tr_status st = TR_OK;
    tr_step_files l = {0};
    const char *goes;
    *removed = false;
    char *checkpoints = tr_sprintf("%s/checkpoints", folder);
    if (!checkpoints) return tr_last_status();
    TR_TRY(tr_step_files_list(checkpoints, false, &l));
    goes = l.aside;
    for (size_t i = 0; i < l.count && !goes; i++) {
        bool unsound;
        if (l.v[i].step > newest) continue;
        const bool usable = is_sound(l.v[i].name, &unsound);
        if (unsound) goes = l.v[i].name;
        if (!usable) continue;
        if (sound && i + 1 < l.count) goes = l.v[l.count - 1].name;
        break;
    }
    if (!goes) goto out;
    TR_NEED(unlink(goes) == 0, TR_IO, "%s: cannot remove: %s", goes, strerror(errno));
    tr_log(TR_LOG_WARN, "%s: removed, for the disk is full", goes);
    *removed = true;
out:
    tr_step_files_free(&l);
    tr_free(checkpoints);
    return st;
}

static tr_status copy(const char *path, const char *target)
{
    tr_status st = TR_OK;
    tr_commit c = {.fd = -1};
    char piece[65536];
    struct stat info;
    int fd;
    TR_TRY(tr_file_open(path, O_RDONLY, TR_IO, &fd, &info));
    TR_TRY(tr_commit_open(&c, target, (uint64_t)info.st_size));
    for (uint64_t done = 0;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        TR_NEED(n >= 0, TR_IO, "%s: %s", path, strerror(errno));
        if (n == 0) break;
        TR_TRY(tr_commit_write(&c, done, piece, (size_t)n));
        done += (uint64_t)n;
    }
    TR_TRY(tr_commit_finish(&c));
out:
    tr_commit_close(&c);
    if (fd >= 0) close(fd);
    return st;
}

tr_status tr_store_link(const char *path, const char *target)
{
    tr_status st = TR_OK;
    char *temp = tr_commit_temp_name(target);
    if (!temp) return tr_last_status();
    unlink(temp);
    if (link(path, temp) != 0) {
        /* file systems without hard links, or too many of them */
        TR_NEED(errno == EPERM || errno == EXDEV || errno == EMLINK || errno == EOPNOTSUPP ||
                    errno == ENOSYS,
                TR_IO, "%s: cannot link to %s: %s", target, path, strerror(errno));
        TR_TRY(copy(path, target));
    } else {
        TR_NEED(rename(temp, target) == 0, TR_IO, "%s: rename: %s", target, strerror(errno));
        TR_TRY(tr_commit_sync_folder(target));
    }
out:
    unlink(temp); /* renaming one name of a file to another of it is defined to do nothing */
    tr_free(temp);
    return st;
}
