/* The sweep: its folder, trials one after the other, what came of them. */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/signals.h"
#include "trainer/sweep/internal.h"

/* ---- The folder ------------------------------------------------------------------------------ */

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

static tr_status begin(tr_sweep *s)
{
    tr_status st;
    TR_TRY(look(s));
    TR_TRY(make_folder(s->spec.output));
    TR_TRY(lock_folder(s));
    if (s->arguments->force) TR_TRY(forget_records(s));
    TR_TRY(write_spec(s));
out:
    return st;
}

/* ---- The next trial -------------------------------------------------------------------------- */

/* What a proposal cannot run with is found when it runs, and recorded: it is known by its settings. */
static tr_status identify(tr_sweep *s, tr_trial *t)
{
    tr_status st = TR_OK;
    tr_config *c = NULL;
    char *text = NULL;
    if (tr_trial_config(s, t, &c) == TR_OK) {
        TR_TRY(tr_trial_identify(s, t, c));
    } else {
        text = tr_trial_text(s, t);
        TR_HAVE(text);
        tr_sha256_hex(text, strlen(text), t->key);
    }
out:
    tr_config_close(c);
    tr_free(text);
    return st;
}

/* *Local.* All ranks find the same. *found false: every setting was tried. */
static tr_status search_next(tr_sweep *s, bool *found)
{
    tr_status st;
    const size_t n = s->ntrials;
    double *next = s->points + n * s->space.count;
    const tr_search_options o = {.seed = (uint64_t)s->spec.search.seed, .trials = s->planned};
    tr_search_result *all = tr_alloc(TR_MEM_OTHER, n, sizeof *all);
    TR_HAVE(all);
    for (size_t i = 0; i < n; i++) {
        const tr_trial_result *r = &s->trials[i].result;
        all[i].failed = r->state != TR_TRIAL_DONE;
        if (all[i].failed) continue;
        tr_sweep_objectives(&r->last, all[i].objectives);
        all[i].minimize = tr_sweep_minimized(s, &r->last);
        all[i].violation = tr_sweep_violation(s, &r->last);
    }
    TR_TRY(tr_search_next(&s->space, &o, n, s->points, all, next, found));
    if (!*found) goto out;
    TR_TRY(tr_trials_add(s, next));
    TR_TRY(identify(s, &s->trials[n]));
out:
    tr_free(all);
    return st;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* *Collective.* Between trials nothing is half done. */
static tr_status look_for_stop(tr_comm *comm, size_t number)
{
    double stop = tr_signals_pending() != 0;
    tr_status st = tr_comm_all_reduce(comm, &stop, 1, TR_F64);
    if (st == TR_OK && stop > 0)
        st = TR_FAIL(TR_STOPPED, "stopped before trial %zu; go on with --resume", number);
    return st;
}

/* Rank 0. */
static void say(const tr_sweep *s, const tr_trial *t, bool before)
{
    const tr_trial_result *r = &t->result;
    char size[32], quality[64] = "", *text = before ? tr_trial_text(s, t) : NULL;
    if (before)
        tr_log(TR_LOG_INFO, "trial %zu of %zu: %s", t->number, s->planned, text ? text : "");
    else if (r->state == TR_TRIAL_FAILED)
        tr_log(TR_LOG_WARN, "trial %zu failed: %s", t->number, r->reason);
    else {
        if (r->last.evaluated && r->last.accuracy >= 0)
            snprintf(quality, sizeof quality, ", accuracy %.4f", r->last.accuracy);
        else if (r->last.evaluated)
            snprintf(quality, sizeof quality, ", loss %.6g", r->last.loss);
        tr_log(TR_LOG_INFO, "trial %zu done%s: %.4g ms a sample, %s%s", t->number,
               t->recorded ? ", as recorded" : "", r->last.ms,
               tr_format_bytes((double)r->last.bytes, size, sizeof size), quality);
    }
    tr_free(text);
}

/* *Collective.* */
static tr_status run_trials(tr_sweep *s, tr_comm *comm, bool *agreed)
{
    tr_status st = TR_OK;
    const bool root = tr_comm_topology(comm)->rank == 0, search = s->spec.search.present;
    for (size_t i = 0; i < s->planned; i++) {
        bool found = true;
        TR_TRY(look_for_stop(comm, i));
        if (search) TR_TRY(tr_agree(comm, search_next(s, &found), NULL));
        if (!found && root)
            tr_log(TR_LOG_INFO,
                   "no setting was found beyond the %zu that were tried: the search ends", i);
        if (!found) break;
        if (root) say(s, &s->trials[i], true);
        st = tr_trial_run(s, &s->trials[i], comm, agreed);
        if (!*agreed) return st;
        if (root && s->trials[i].result.state != TR_TRIAL_OPEN) {
            const tr_error why = *tr_last_error();
            say(s, &s->trials[i], false);
            const tr_status written = s->trials[i].recorded ? TR_OK : tr_sweep_write(s, false);
            if (st != TR_OK) tr_set_error(&why);
            if (st == TR_OK) st = written;
        }
        TR_TRY(tr_agree(comm, st, NULL));
    }
out:
    return st;
}

tr_status tr_sweep_run(tr_sweep *s, tr_comm *comm, bool *agreed)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_status st = root ? begin(s) : TR_OK;
    *agreed = true;
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(run_trials(s, comm, agreed));
    TR_TRY(tr_agree(comm, root ? tr_sweep_write(s, true) : TR_OK, NULL));
    if (!tr_sweep_reference(s)) { /* the same on all ranks */
        const tr_trial_result *first = &s->trials[0].result;
        st = TR_FAIL(TR_BUDGET, "no trial is done; the first failed: %.900s", first->reason);
    }
out:
    return st;
}
