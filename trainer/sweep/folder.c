/* The sweep's folder: whose it is, what was asked for in it, and that one job at a time writes
 * there. Once a sweep began there it bears a mark, .sweep: files with the names of a sweep's are a
 * sweep's then; elsewhere they are somebody's. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/run/run_folder.h"
#include "trainer/sweep/internal.h"

#define MARK "trireme sweep folder\n"

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

/* ---- Whose it is ----------------------------------------------------------------------------- */

/* trial-000, trial-001, ...: the first *count of what was found; what else begins so, as a copy of
 * one, is the user's. */
tr_status tr_sweep_folders(const tr_sweep *s, glob_t *found, size_t *count)
{
    const tr_status st = tr_files_like(s->spec.output, "/trial-[0-9][0-9][0-9]*", found);
    *count = 0;
    for (size_t i = 0; st == TR_OK && i < found->gl_pathc; i++) {
        char *path = found->gl_pathv[i];
        const char *number = strrchr(path, '-') + 1;
        if (number[strspn(number, "0123456789")]) continue;
        found->gl_pathv[i] = found->gl_pathv[*count];
        found->gl_pathv[(*count)++] = path;
    }
    return st;
}

char *tr_sweep_folder(const tr_sweep *s, size_t number)
{
    return tr_sprintf("%s/trial-%03zu", s->spec.output, number);
}

/* Something with the name of a sweep's, allocated; NULL: nothing has. */
static tr_status find_any(const tr_sweep *s, char **out)
{
    static const char *const names[] = {"yaml", "csv", "md", "svg", "size.svg"};
    tr_status st = TR_OK;
    glob_t found = {0};
    size_t n;
    char *path = NULL;
    *out = NULL;
    for (size_t i = 0; i < TR_COUNT(names) && !*out; i++) {
        tr_free(path);
        TR_HAVE(path = tr_sprintf("%s/sweep.%s", s->spec.output, names[i]));
        if (tr_file_there(path)) TR_HAVE(*out = tr_strdup(path));
    }
    if (*out) goto out;
    TR_TRY(tr_sweep_folders(s, &found, &n));
    if (n > 0) TR_HAVE(*out = tr_strdup(found.gl_pathv[0]));
out:
    globfree(&found);
    tr_free(path);
    return st;
}

/* Whether a sweep is in the folder: it bears a mark, or, from before there were marks, a table. */
static tr_status read_mark(const tr_sweep *s, bool *ours)
{
    tr_status st = TR_OK;
    char *mark = tr_sprintf("%s/.sweep", s->spec.output),
         *table = tr_sprintf("%s/sweep.csv", s->spec.output);
    TR_HAVE(mark && table);
    const bool marked = tr_file_begins(mark, MARK);
    TR_NEED(marked || !tr_file_there(mark), TR_USAGE,
            "%s was made by no sweep: choose another folder (output=...)", mark);
    *ours = marked || tr_file_begins(table, "trial,state,");
out:
    tr_free(mark);
    tr_free(table);
    return st;
}

static tr_status set_mark(const tr_sweep *s)
{
    tr_text_file f;
    char *mark = tr_sprintf("%s/.sweep", s->spec.output);
    tr_status st = tr_text_file_open(&f, mark);
    if (st == TR_OK) fputs(MARK, f.to);
    st = tr_text_file_close(&f, st);
    tr_free(mark);
    return st;
}

/* A sweep that is there is gone on with, or replaced, when that is asked for; what no sweep made
 * never, and behind a link in the place of a trial's folder lie the trials of others. */
static tr_status look(const tr_sweep *s)
{
    tr_status st = TR_OK;
    const tr_arguments *a = s->arguments;
    glob_t found = {0};
    size_t n;
    bool ours = false;
    char *any = NULL;
    TR_TRY(read_mark(s, &ours));
    TR_TRY(find_any(s, &any));
    TR_NEED(ours || !any, TR_USAGE,
            "%s is there, and no sweep made it: move it away, or choose another folder "
            "(output=...)",
            any);
    TR_NEED(!any || a->resume || a->force, TR_USAGE,
            "%s already holds a sweep: go on with it (--resume), replace it (--force), or choose "
            "another folder (output=...)",
            s->spec.output);
    TR_TRY(tr_sweep_folders(s, &found, &n));
    for (size_t i = 0; i < n; i++) TR_TRY(tr_folder_own(found.gl_pathv[i]));
out:
    globfree(&found);
    tr_free(any);
    return st;
}

/* ---- What is in it --------------------------------------------------------------------------- */

/* A folder that bears a trial's record, or in which a run of ours began. */
static tr_status forget_trial(const char *folder)
{
    tr_status st = TR_OK;
    char *record = tr_sprintf("%s/trial.yaml", folder), *lock = tr_sprintf("%s/.lock", folder);
    TR_HAVE(record && lock);
    if (tr_file_there(record) || tr_run_folder_is_marked(lock)) st = tr_record_replace(folder);
out:
    tr_free(record);
    tr_free(lock);
    return st;
}

/* With --force no trial of before counts, though its folder may only be replaced later, or never:
 * records say so, as this job may be killed before. */
static tr_status forget_trials(const tr_sweep *s)
{
    tr_status st;
    glob_t found = {0};
    size_t n;
    TR_TRY(tr_sweep_folders(s, &found, &n));
    for (size_t i = 0; i < n; i++) TR_TRY(forget_trial(found.gl_pathv[i]));
out:
    globfree(&found);
    return st;
}

static tr_status spec_text(const tr_sweep *s, FILE *to)
{
    char real[PATH_MAX];
    tr_sweep_spec spec = s->spec;
    if (realpath(s->file, real)) spec.config = real;
    if (s->noverrides > 0) fputs("# on the command line:", to);
    for (size_t i = 0; i < s->noverrides; i++) fprintf(to, " '%s'", s->overrides[i]);
    if (s->noverrides > 0) fputs("\n", to);
    return tr_fields_write(tr_sweep_fields, &spec, 0, to);
}

/* The file that was given is the one that is to be written. */
static tr_status says_the_same(const tr_text_file *f)
{
    tr_status st = TR_OK;
    char *there = NULL;
    size_t n;
    TR_NEED(fflush(f->to) == 0, TR_MEMORY, "no memory for %s", f->path);
    TR_TRY(tr_read_text(f->path, &there, &n));
    TR_NEED(n == f->nbytes && memcmp(there, f->text, n) == 0, TR_USAGE,
            "%s is the sweep's own, and would be written over by what is asked for now: say that "
            "in a file elsewhere",
            f->path);
out:
    tr_free(there);
    return st;
}

/* The sweep as it was asked for, so that it can be run again from where the job started. */
static tr_status write_spec(const tr_sweep *s)
{
    char *path = tr_sprintf("%s/sweep.yaml", s->spec.output);
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    if (st == TR_OK) st = spec_text(s, f.to);
    if (st == TR_OK && tr_file_same(path, s->arguments->config)) st = says_the_same(&f);
    st = tr_text_file_close(&f, st);
    tr_free(path);
    return st;
}

/* Two jobs never write to one sweep; where the file system has no locks, a trial's folder is still
 * one job's. */
static tr_status lock_folder(tr_sweep *s)
{
    s->lock = open(s->spec.output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->lock < 0)
        return TR_FAIL(TR_IO, "the sweep's folder %s: %s", s->spec.output, strerror(errno));
    if (!tr_file_lock(s->lock))
        return TR_FAIL(TR_USAGE, "%s is in use by another running job", s->spec.output);
    return TR_OK;
}

/* A search goes on as it began, however many trials now run at a time: what it chooses depends on
 * which results it waits for. */
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
    tr_status looked = goes_on ? tr_read_text(path, &text, &n) : TR_OK;
    if (goes_on && looked == TR_OK) looked = tr_document_parse(path, text, n, &doc);
    if (goes_on && looked == TR_OK) looked = tr_fields_read(doc.root, tr_sweep_fields, "", &before);
    TR_TRY(tr_unread(looked));
    if (looked != TR_OK)
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
    TR_TRY(make_folder(s->spec.output));
    TR_TRY(lock_folder(s));
    TR_TRY(look(s));
    TR_TRY(set_mark(s));
    TR_TRY(decide_together(s, groups));
    TR_TRY(write_spec(s));
    if (s->arguments->force)
        TR_TRY(forget_trials(s));
    else if (s->arguments->resume)
        TR_TRY(tr_sweep_find_known(s));
out:
    return st;
}
