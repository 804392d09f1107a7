/* Which of the trials that are recorded in the sweep's folder are trials of this sweep, which may have others, or the same
 * in another order. A record's key says all that its trial depended on (tr_trial.key), so that a trial is known by it:
 *
 *     recorded     0: lr 0.1    1: lr 0.2    2: lr 0.4 (killed)
 *     asked for    lr 0.05, lr 0.1, lr 0.4, lr 0.8
 *     folders      3        0       2       4              1 is earlier
 *
 * It keeps its folder, and so its number; others get the lowest numbers at which nothing is recorded. Of a search trials
 * become known one generation after the other. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/sweep/internal.h"

/* ---- What is there --------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const size_t x = ((const tr_known_trial *)a)->number, y = ((const tr_known_trial *)b)->number;
    return (x > y) - (x < y);
}

enum { MOST = 1000000000 };

/* trial-0001 is nobody's: number 1 is trial-001. */
static tr_status look(tr_sweep *s, const char *folder)
{
    tr_status st;
    tr_known_trial *t = &s->known[s->nknown];
    bool there;
    *t = (tr_known_trial){.number = strtoul(strrchr(folder, '-') + 1, NULL, 10)};
    char *path = tr_sweep_folder(s, t->number);
    TR_HAVE(path);
    if (strcmp(path, folder) != 0 || t->number > MOST) goto out;
    TR_TRY(tr_record_look(folder, t, &there));
    s->nknown += there;
out:
    tr_free(path);
    return st;
}

tr_status tr_sweep_find_known(tr_sweep *s)
{
    tr_status st;
    glob_t found = {0};
    size_t n;
    TR_TRY(tr_sweep_folders(s, &found, &n));
    TR_HAVE(s->known = tr_alloc(TR_MEM_OTHER, n, sizeof *s->known));
    for (size_t i = 0; i < n; i++) TR_TRY(look(s, found.gl_pathv[i]));
    if (s->nknown > 0) qsort(s->known, s->nknown, sizeof *s->known, by_number);
out:
    globfree(&found);
    return st;
}

/* ---- Whose folder ---------------------------------------------------------------------------- */

typedef enum { ENDED, KILLED, KILLED_TRAINING, WAYS } way;

/* ENDED, KILLED: that trial. KILLED_TRAINING: it had the same training, which can be gone on with. */
static bool fits(const tr_known_trial *k, const tr_trial *t, way how)
{
    if (k->taken || (how == ENDED) != (k->state != TR_TRIAL_OPEN)) return false;
    if (how == KILLED_TRAINING) return *t->training && strcmp(k->training, t->training) == 0;
    return strcmp(k->key, t->key) == 0;
}

/* From its own place on: where nothing changed that is it, also of trials that are the same. */
static tr_known_trial *find(const tr_sweep *s, const tr_trial *t, way how)
{
    for (size_t i = 0; i < s->nknown; i++) {
        tr_known_trial *k = &s->known[(t->place + i) % s->nknown];
        if (fits(k, t, how)) return k;
    }
    return NULL;
}

static size_t next_free(tr_sweep *s)
{
    size_t n = s->free;
    for (size_t k = 0; k < s->nknown; k++) n += s->known[k].number == n; /* they ascend */
    s->free = n + 1;
    return n;
}

static tr_status has_model(const tr_sweep *s, size_t number, bool *has)
{
    char *folder = tr_sweep_folder(s, number),
         *model = folder ? tr_sprintf("%s/model.h5", folder) : NULL;
    *has = model && access(model, F_OK) == 0;
    const tr_status st = model ? TR_OK : tr_last_status();
    tr_free(model);
    tr_free(folder);
    return st;
}

/* Who has done the training that this trial needs, as far as records say; one that does not say it may, where the trial had
 * run in its place. */
static tr_status find_lender(const tr_sweep *s, const tr_trial *t, size_t own, size_t *lender)
{
    tr_status st = TR_OK;
    bool has;
    *lender = TR_NO_TRIAL;
    for (size_t i = 0; i < s->nknown && *lender == TR_NO_TRIAL; i++) {
        const tr_known_trial *k = &s->known[i];
        const bool may = *k->training ? strcmp(k->training, t->training) == 0
                                      : k->number == t->place && *t->training;
        if (!may || k->number == own) continue;
        TR_TRY(has_model(s, k->number, &has));
        if (has) *lender = k->number;
    }
out:
    return st;
}

tr_status tr_trials_find(tr_sweep *s, size_t begin, tr_trial_match *m)
{
    tr_status st = TR_OK;
    const size_t n = s->ntrials - begin;
    for (size_t i = 0; i < n; i++) m[i] = (tr_trial_match){TR_NO_TRIAL, TR_NO_TRIAL, false};
    for (way how = ENDED; how < WAYS; how++)
        for (size_t i = 0; i < n; i++) {
            if (m[i].number != TR_NO_TRIAL) continue;
            tr_known_trial *k = find(s, &s->trials[begin + i], how);
            if (!k) continue;
            k->taken = true;
            m[i].number = k->number;
            m[i].ended = how == ENDED;
        }
    for (size_t i = 0; i < n; i++) {
        if (m[i].number == TR_NO_TRIAL) m[i].number = next_free(s);
        if (!m[i].ended) TR_TRY(find_lender(s, &s->trials[begin + i], m[i].number, &m[i].lender));
    }
out:
    return st;
}

static tr_status take(const tr_sweep *s, tr_trial *t, const tr_trial_match *m)
{
    char *folder = tr_sweep_folder(s, m->number);
    if (!folder) return tr_last_status();
    tr_free(t->folder);
    t->folder = folder;
    t->number = m->number;
    t->lender = m->lender;
    return TR_OK;
}

/* ---- Whose training -------------------------------------------------------------------------- */

/* 0: its training is there; 1: it has failed; 2: it did not run yet. */
static int rank_of(const tr_trial *t)
{
    return t->result.state == TR_TRIAL_OPEN ? 2 : t->result.training_failed;
}

/* The first that ended, else the first that will. */
static void find_source(const tr_sweep *s, tr_trial *t)
{
    for (size_t i = 0; *t->training && i < s->ntrials; i++) {
        const tr_trial *a = &s->trials[i], *b = &s->trials[t->source];
        if (rank_of(a) == 2 || strcmp(a->training, t->training) != 0) continue;
        if (rank_of(a) < rank_of(b) || (rank_of(a) == rank_of(b) && a->number < b->number))
            t->source = i;
    }
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* *Collective.* */
static tr_status read_result(tr_trial *t, bool ended, tr_comm *comm)
{
    tr_status st = TR_OK;
    if (!ended) return TR_OK;
    if (tr_comm_topology(comm)->rank == 0)
        st = tr_record_read(t->folder, t->key, &t->result, &t->recorded);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &t->recorded, sizeof t->recorded, 0));
    if (t->recorded) TR_TRY(tr_comm_broadcast(comm, &t->result, sizeof t->result, 0));
out:
    return st;
}

tr_status tr_trials_match(tr_sweep *s, size_t begin, tr_comm *comm)
{
    tr_status st;
    const size_t n = s->ntrials - begin;
    tr_trial_match *m = tr_alloc(TR_MEM_OTHER, n, sizeof *m);
    TR_TRY(tr_agree(comm, m ? TR_OK : tr_last_status(), NULL));
    st = tr_comm_topology(comm)->rank == 0 ? tr_trials_find(s, begin, m) : TR_OK;
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, m, n * sizeof *m, 0));
    for (size_t i = 0; i < n && st == TR_OK; i++) st = take(s, &s->trials[begin + i], &m[i]);
    TR_TRY(tr_agree(comm, st, NULL));
    for (size_t i = 0; i < n; i++) TR_TRY(read_result(&s->trials[begin + i], m[i].ended, comm));
    for (size_t i = begin; i < s->ntrials; i++) find_source(s, &s->trials[i]);
    for (size_t i = begin; i < s->ntrials; i++) {
        int64_t *by = &s->trials[i].result.trained_by;
        if (s->trials[i].recorded && *by < 0) *by = (int64_t)s->trials[s->trials[i].source].number;
    }
out:
    tr_free(m);
    return st;
}
