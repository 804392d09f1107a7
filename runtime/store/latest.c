/* The checkpoint that a run goes on from. Candidates are the files of steps, newest first; once one
 * of them is of no use, best.h5 has its place among them, by its step. What stands in the way is
 * named and moved out of it, and nothing is deleted. */
#include "runtime/store/internal.h"

#include <errno.h>
#include <string.h>

typedef enum { USABLE, DAMAGED, UNREADABLE, UNKNOWN, NEWER, OTHER, UNSOUND } verdict;

typedef struct {
    const tr_model *m;
    const tr_snapshot *s;
    tr_step_files files;
    char *best; /* best.h5; NULL once it was looked at, or where it is not there */
    uint64_t best_step;
    tr_step_files others;    /* whole, but of another model */
    char why[TR_ERROR_TEXT]; /* the first of them is not */
    size_t bad, unsound;
    size_t renamed; /* of those that are bad */
} choice;

/* The step is as the file says itself, which is what a resume will have. */
static verdict judge(const choice *c, const char *path, uint64_t *step)
{
    tr_index ix;
    tr_train_state train;
    verdict v = USABLE;
    tr_status st = tr_index_open(path, &ix);
    if (st == TR_OK) st = tr_index_verify(&ix, &train);
    if (st != TR_OK)
        v = ix.starved ? UNKNOWN : ix.newer ? NEWER : st == TR_FILE ? DAMAGED : UNREADABLE;
    else if (c->m && (st = tr_index_fits(&ix, c->m, c->s)) != TR_OK)
        v = st == TR_FILE ? OTHER : UNREADABLE;
    if (v == USABLE && train.unsound) v = UNSOUND;
    if (v == USABLE) *step = train.step;
    tr_index_close(&ix);
    return v;
}

/* Out of the way, but kept. Whether it is. */
static bool set_aside(const char *path, const char *why, const char *suffix)
{
    char *aside = tr_sprintf("%s%s", path, suffix);
    const bool is = aside && rename(path, aside) == 0;
    if (is)
        tr_log(TR_LOG_WARN, "%s; renamed %s", why, aside);
    else
        tr_log(TR_LOG_WARN, "%s; it cannot be renamed: %s", why, strerror(errno));
    tr_free(aside);
    return is;
}

/* The step that best.h5 says it is of; it is looked at in full when its turn comes. */
static void find_best(choice *c, const char *checkpoints)
{
    tr_train_state train;
    c->best = tr_sprintf("%s/best.h5", checkpoints);
    if (!c->best) return;
    if (tr_store_train(c->best, &train) == TR_OK) c->best_step = train.step;
    if (tr_file_there(c->best)) return;
    tr_free(c->best);
    c->best = NULL;
}

static tr_status keep_other(choice *c, char **path)
{
    tr_step_files *o = &c->others;
    tr_step_file *grown = tr_realloc(TR_MEM_OTHER, o->v, o->count + 1, sizeof *grown);
    if (!grown) return tr_last_status();
    if (o->count == 0) snprintf(c->why, sizeof c->why, "%s", tr_last_error()->text);
    o->v = grown;
    o->v[o->count++] = (tr_step_file){.name = *path};
    *path = NULL;
    return TR_OK;
}

/* Whole, but what was trained last is what failed. */
static tr_status keep_unsound(choice *c, const char *path)
{
    char *why = tr_sprintf("%s is not sound: the updates before it were skipped, or its weights or "
                           "its evaluation are not finite",
                           path);
    if (!why) return tr_last_status();
    set_aside(path, why, TR_UNSOUND);
    tr_free(why);
    c->unsound++;
    return TR_OK;
}

/* Tries one; *path goes to *found when it is the one. */
static tr_status try_one(choice *c, char **path, char **found, uint64_t *step)
{
    switch (judge(c, *path, step)) {
    case USABLE:
        *found = *path;
        *path = NULL;
        return TR_OK;
    case UNKNOWN: /* to pass over it would be to train again what it has */
    case NEWER:
        return tr_last_status();
    case OTHER:
        return keep_other(c, path);
    case UNSOUND:
        return keep_unsound(c, *path);
    case DAMAGED: {
        char why[TR_ERROR_TEXT];
        snprintf(why, sizeof why, "%s", tr_last_error()->text);
        c->renamed += set_aside(*path, why, TR_DAMAGED);
        break;
    }
    case UNREADABLE:
        if (tr_last_status() == TR_MEMORY) return tr_last_status();
        tr_log(TR_LOG_WARN, "%s; passed over", tr_last_error()->text);
        break;
    }
    c->bad++;
    return TR_OK;
}

static tr_status try_best(choice *c, char **found, uint64_t *step)
{
    char *path = c->best;
    c->best = NULL;
    tr_status st = try_one(c, &path, found, step);
    tr_free(path);
    if (st == TR_OK && *found)
        tr_log(TR_LOG_WARN, "%s (step %llu) is the newest checkpoint that can be used", *found,
               (unsigned long long)*step);
    return st;
}

static tr_status choose(choice *c, const char *checkpoints, char **found, uint64_t *step)
{
    tr_status st = TR_OK;
    bool looked = false;
    for (size_t i = 0; i <= c->files.count && !*found; i++) {
        const bool last = i == c->files.count;
        const bool gaps =
            c->bad + c->files.damaged + c->others.count > 0 || c->unsound + c->files.unsound > 0;
        if (!looked && (last || gaps)) {
            find_best(c, checkpoints);
            looked = true;
        }
        if (c->best && (last || c->best_step > c->files.v[i].step))
            TR_TRY(try_best(c, found, step));
        if (!last && !*found) TR_TRY(try_one(c, &c->files.v[i].name, found, step));
    }
out:
    return st;
}

/* Whole files of another model: in the way of one that fits, or all there is. */
static tr_status settle_others(choice *c, const char *checkpoints, bool found)
{
    const size_t n = c->others.count;
    if (n == 0) return TR_OK;
    if (!found)
        return TR_FAIL(TR_FILE,
                       "%s; %zu whole checkpoint%s in %s, none of this config's model: nothing was "
                       "changed; use the config that the run began with, or another folder "
                       "(output=...)",
                       c->why, n, n > 1 ? "s" : "", checkpoints);
    for (size_t i = 0; i < n; i++) {
        char *why = tr_sprintf("%s is whole, but not of this config's model (%s)",
                               c->others.v[i].name, c->why);
        if (!why) return tr_last_status();
        set_aside(c->others.v[i].name, why, ".other");
        tr_free(why);
    }
    return TR_OK;
}

/* Files are there, and none is of use: to begin at the start would pass over what they may still
 * hold. */
static tr_status settle_bad(const choice *c, const char *checkpoints)
{
    const size_t renamed = c->files.damaged + c->renamed, n = c->files.damaged + c->bad;
    char which[64] = "nothing was changed";
    if (n == 0) return TR_OK;
    if (renamed == n)
        snprintf(which, sizeof which, "they are renamed *" TR_DAMAGED);
    else if (renamed > 0)
        snprintf(which, sizeof which, "%zu of them are renamed *" TR_DAMAGED, renamed);
    return TR_FAIL(TR_FILE,
                   "none of the %zu checkpoints in %s can be read; %s; start over with --force", n,
                   checkpoints, which);
}

tr_status tr_store_latest(const char *folder, const tr_model *m, const tr_snapshot *s, char **path,
                          uint64_t *step)
{
    tr_status st = TR_OK;
    choice c = {.m = m, .s = s};
    char *found = NULL, *checkpoints = tr_sprintf("%s/checkpoints", folder);
    *path = NULL;
    *step = 0;
    if (!checkpoints) return tr_last_status();
    TR_TRY(tr_step_files_list(checkpoints, true, &c.files));
    TR_TRY(choose(&c, checkpoints, &found, step));
    TR_TRY(settle_others(&c, checkpoints, found != NULL));
    if (!found) TR_TRY(settle_bad(&c, checkpoints));
    *path = found;
    found = NULL;
out:
    tr_free(found);
    tr_free(c.best);
    tr_step_files_free(&c.files);
    tr_step_files_free(&c.others);
    tr_free(checkpoints);
    return st;
}
