/* The sweep's folder: whose it is, what was asked for in it, and that one job at a time writes there. */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/sweep/internal.h"

static tr_status make_folder(const char *path)
{
    tr_status st = TR_OK;
    char *copy = tr_strdup(path);
    TR_HAVE(copy);
    for (char *p = copy + 1;; p++) {
        const char c = *p;
        if (c && c != '/') continue;
        *p = 0;
        TR_NEED(mkdir(copy, 0777) == 0 || errno == EEXIST, TR_IO,
                "the sweep's folder %s cannot be made: %s", path, strerror(errno));
        *p = c;
        if (!c) break;
    }
out:
    tr_free(copy);
    return st;
}

/* A path as glob(3) takes it literally. */
static char *literal(const char *path)
{
    char *out = tr_alloc(TR_MEM_OTHER, 2 * strlen(path) + 1, 1), *to = out;
    for (; out && *path; *to++ = *path++)
        if (strchr("*?[\\", *path)) *to++ = '\\';
    return out;
}

/* A sweep that is there is gone on with, or replaced, when that is asked for; what no sweep made never. */
static tr_status look(const tr_sweep *s)
{
    static const char *const names[] = {"sweep.csv", "sweep.md", "sweep.svg", "trial-*"};
    tr_status st = TR_OK;
    const tr_arguments *a = s->arguments;
    glob_t found = {0};
    char *path = tr_sprintf("%s/sweep.yaml", s->spec.output), *folder = literal(s->spec.output);
    TR_HAVE(path && folder);
    const bool there = access(path, F_OK) == 0;
    TR_NEED(!there || a->resume || a->force, TR_USAGE,
            "%s already holds a sweep: go on with it (--resume), replace it (--force), or choose "
            "another folder (output=...)",
            s->spec.output);
    for (size_t i = 0; i < TR_COUNT(names) && !there; i++) {
        tr_free(path);
        path = tr_sprintf("%s/%s", folder, names[i]);
        TR_HAVE(path);
        const bool any = glob(path, 0, NULL, &found) == 0 && found.gl_pathc > 0;
        TR_NEED(!any, TR_USAGE,
                "%s is there, and no sweep made it: move it away, or choose another folder "
                "(output=...)",
                found.gl_pathv[0]);
        globfree(&found);
    }
out:
    if (st != TR_OK) globfree(&found);
    tr_free(path);
    tr_free(folder);
    return st;
}

/* With --force no trial of before counts, though its folder may only be replaced later. */
static tr_status forget_records(const tr_sweep *s)
{
    tr_status st = TR_OK;
    glob_t found = {0};
    char *folder = literal(s->spec.output);
    char *pattern = folder ? tr_sprintf("%s/trial-*/trial.yaml", folder) : NULL;
    TR_HAVE(pattern);
    if (glob(pattern, 0, NULL, &found) != 0) goto out;
    for (size_t i = 0; i < found.gl_pathc; i++)
        TR_NEED(unlink(found.gl_pathv[i]) == 0, TR_IO, "%s cannot be removed: %s",
                found.gl_pathv[i], strerror(errno));
out:
    globfree(&found);
    tr_free(pattern);
    tr_free(folder);
    return st;
}

/* The sweep as it was asked for, so that it can be run again from where the job started. */
static tr_status write_spec(const tr_sweep *s)
{
    char real[PATH_MAX], *path = tr_sprintf("%s/sweep.yaml", s->spec.output);
    tr_sweep_spec spec = s->spec;
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    TR_TRY(st);
    if (realpath(s->file, real)) spec.config = real;
    if (s->noverrides > 0) fputs("# on the command line:", f.to);
    for (size_t i = 0; i < s->noverrides; i++) fprintf(f.to, " '%s'", s->overrides[i]);
    if (s->noverrides > 0) fputs("\n", f.to);
    st = tr_text_file_close(&f, tr_fields_write(tr_sweep_fields, &spec, 0, f.to));
out:
    tr_free(path);
    return st;
}

/* Two jobs never write to one sweep; where the file system has no locks, a trial's folder is still one job's. */
static tr_status lock_folder(tr_sweep *s)
{
    s->lock = open(s->spec.output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->lock < 0)
        return TR_FAIL(TR_IO, "the sweep's folder %s: %s", s->spec.output, strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return TR_FAIL(TR_USAGE, "%s is in use by another running job", s->spec.output);
    return TR_OK;
}

/* A search goes on as it began, however many trials now run at a time: what it chooses depends on which results it
 * waits for. */
static tr_status decide_together(tr_sweep *s, size_t groups)
{
    tr_status st = TR_OK;
    tr_document doc = {NULL, NULL};
    tr_sweep_spec before = {0};
    char *text = NULL, *path = tr_sprintf("%s/sweep.yaml", s->spec.output);
    size_t n;
    TR_HAVE(path);
    const bool goes_on = access(path, F_OK) == 0 && !s->arguments->force;
    if (!s->spec.search.present || s->spec.search.together > 0) goto out;
    if (goes_on && (tr_read_text(path, &text, &n) != TR_OK ||
                    tr_document_parse(path, text, n, &doc) != TR_OK ||
                    tr_fields_read(doc.root, tr_sweep_fields, "", &before) != TR_OK))
        tr_log(TR_LOG_WARN, "%s; the search goes on with %zu trials at a time",
               tr_last_error()->text, groups);
    s->spec.search.together = before.search.together;
    if (s->spec.search.together == 0) s->spec.search.together = (int64_t)groups;
out:
    tr_fields_free(tr_sweep_fields, &before);
    tr_document_close(&doc);
    tr_free(text);
    tr_free(path);
    return st;
}

tr_status tr_sweep_begin(tr_sweep *s, size_t groups)
{
    tr_status st;
    TR_TRY(look(s));
    TR_TRY(make_folder(s->spec.output));
    TR_TRY(lock_folder(s));
    TR_TRY(decide_together(s, groups));
    if (s->arguments->force) TR_TRY(forget_records(s));
    TR_TRY(write_spec(s));
out:
    return st;
}
