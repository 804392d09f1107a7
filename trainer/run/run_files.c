/* A run's files, by name. That a name is known does not say that a run of ours made the file: the
 * folder says that (run_folder.c). TensorBoard's files, of which other programs write many, bear
 * our name at their end. */
#include "trainer/run/run_files.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/run/stage_files.h"

#define EVENTS "events.out.tfevents."
#define OURS   ".trireme"

/* In the folder itself, besides TensorBoard's. */
static const char *const files[] = {"config.yaml",    "metrics.jsonl",     "model.h5",
                                    "machine.json",   "trace.json",        "profile.txt",
                                    "profile.folded", "profile.flame.svg", "profile.roofline.svg",
                                    "report.html",    "report.md"};

/* The first n characters of `name` are these. */
static bool is(const char *name, size_t n, const char *what)
{
    return n == strlen(what) && memcmp(name, what, n) == 0;
}

/* Whether n characters of `name` are the name of something that a run leaves in its folder, or in
 * its checkpoints folder. */
static bool known(const char *name, size_t n, bool checkpoints)
{
    const size_t events = strlen(EVENTS), ours = strlen(OURS);
    for (size_t i = 0; !checkpoints && i < TR_COUNT(files); i++)
        if (is(name, n, files[i])) return true;
    if (!checkpoints)
        return n > events + ours && memcmp(name, EVENTS, events) == 0 &&
               memcmp(name + n - ours, OURS, ours) == 0;
    if (is(name, n, "best.h5")) return true;
    const size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
    return digits > 0 && 5 + digits <= n && is(name + 5 + digits, n - 5 - digits, ".h5");
}

/* That, or a checkpoint that was set aside: as damaged, as another model's, as unsound. */
static bool is_ours(const char *name, bool checkpoints)
{
    static const char *const aside[] = {".damaged", ".other", ".unsound"};
    const size_t n = strlen(name);
    bool ours = known(name, n, checkpoints);
    for (size_t i = 0; checkpoints && i < TR_COUNT(aside); i++) {
        const size_t tail = strlen(aside[i]);
        ours |= n > tail && strcmp(name + n - tail, aside[i]) == 0 && known(name, n - tail, true);
    }
    return ours;
}

bool tr_run_files_name(const char *within)
{
    static const char checkpoints[] = "checkpoints/", stages[] = "stages/";
    const size_t c = strlen(checkpoints), s = strlen(stages);
    if (strncmp(within, checkpoints, c) == 0) return is_ours(within + c, true);
    if (strncmp(within, stages, s) == 0) return tr_stage_files_name(within + s);
    return is_ours(within, false);
}

/* What to do with a file of the folder that is open as `dir`; *end: enough seen. */
typedef struct visitor visitor;
struct visitor {
    tr_status (*file)(const visitor *v, int dir, const char *folder, const char *name, bool *end);
    bool checkpoints; /* these are being looked through */
    bool but_config;
    char *found;
    size_t size;
};

static tr_status visit(visitor *v, const char *folder, bool checkpoints)
{
    int fd;
    bool end = false;
    tr_status st = TR_OK;
    /* the run folder itself may well be a link, which the user made */
    if (checkpoints)
        st = tr_folder_open_any(folder, TR_IO, &fd);
    else if ((fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 && errno != ENOENT)
        st = TR_FAIL(TR_IO, "%s: %s", folder, strerror(errno));
    if (st != TR_OK || fd < 0) return st;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return TR_FAIL(TR_IO, "%s: %s", folder, strerror(errno));
    }
    v->checkpoints = checkpoints;
    for (struct dirent *e; st == TR_OK && !end && (e = readdir(d));)
        st = v->file(v, fd, folder, e->d_name, &end);
    closedir(d);
    return st;
}

static tr_status visit_both(visitor *v, const char *folder, bool both)
{
    char *checkpoints = tr_sprintf("%s/checkpoints", folder);
    tr_status st = checkpoints ? TR_OK : tr_last_status();
    if (st == TR_OK && both) st = visit(v, checkpoints, true);
    if (st == TR_OK) st = visit(v, folder, false);
    tr_free(checkpoints);
    return st;
}

static tr_status find(const visitor *v, int dir, const char *folder, const char *name, bool *end)
{
    (void)dir, (void)folder;
    *end = v->found[0] || is_ours(name, v->checkpoints);
    if (*end && !v->found[0])
        snprintf(v->found, v->size, "%s%s", v->checkpoints ? "checkpoints/" : "", name);
    return TR_OK;
}

tr_status tr_run_files_find(const char *folder, bool checkpoints, char *name, size_t size)
{
    visitor v = {.file = find, .found = name, .size = size};
    name[0] = 0;
    return visit_both(&v, folder, checkpoints);
}

static tr_status tidy(const visitor *v, int dir, const char *folder, const char *name, bool *end)
{
    (void)end;
    const size_t n = tr_commit_is_temp(name);
    if (n > 0 && known(name, n, v->checkpoints)) tr_commit_tidy(dir, folder, name);
    return TR_OK;
}

tr_status tr_run_files_tidy(const char *folder)
{
    return visit_both(&(visitor){.file = tidy}, folder, true);
}

static tr_status take_away(const visitor *v, int dir, const char *folder, const char *name,
                           bool *end)
{
    if (!is_ours(name, v->checkpoints)) return tidy(v, dir, folder, name, end);
    if (v->but_config && strcmp(name, "config.yaml") == 0) return TR_OK;
    if (unlinkat(dir, name, 0) == 0) return TR_OK;
    return TR_FAIL(TR_IO, "%s/%s cannot be removed: %s", folder, name, strerror(errno));
}

tr_status tr_run_files_remove(const char *folder, bool but_config)
{
    return visit_both(&(visitor){.file = take_away, .but_config = but_config}, folder, true);
}

bool tr_run_files_signed(const char *folder)
{
    char *path = tr_sprintf("%s/metrics.jsonl", folder);
    const bool same = path && tr_file_begins(path, "{\"event\":\"start\",");
    tr_free(path);
    return same;
}
