/* Which of the trials that are recorded in the sweep's folder are trials of this sweep, which may
 * have others, or the same in another order. A record's key is its trial's config's (tr_trial.key),
 * so that a trial is known by it:
 *
 *     recorded     0: lr 0.1    1: lr 0.2    2: lr 0.4 (killed)
 *     asked for    lr 0.05, lr 0.1, lr 0.4, lr 0.8
 *     folders      3        0       2       4              1 is earlier
 *
 * It keeps its folder, and so its number; others get the lowest numbers at which there is neither a
 * record nor a run. A run without a record, of an earlier version that was killed, goes by its
 * config. Of a search trials become known one generation after the other. */
#include <string.h>
#include <unistd.h>

#include "trainer/sweep/internal.h"

/* ---- Whose folder ---------------------------------------------------------------------------- */

typedef enum { ENDED, KILLED, KILLED_TRAINING, WAYS } way;

/* ENDED, KILLED: that trial. KILLED_TRAINING: it had the same training, which can be gone on with;
 * once that is done it can be lent, and the stages behind it stay. */
static bool fits(const tr_known_trial *k, const tr_trial *t, way how)
{
    if (k->taken || (how == ENDED) != (k->state != TR_TRIAL_OPEN)) return false;
    if (how == KILLED_TRAINING)
        return *t->training && !k->model && strcmp(k->training, t->training) == 0;
    return strcmp(k->key, t->key) == 0;
}

/* In its own place; then from there on: of trials that are the same each stays where it is. */
static tr_known_trial *find(const tr_sweep *s, const tr_trial *t, way how, bool own)
{
    if (own) {
        tr_known_trial *k = tr_known_at(s, t->place);
        return k && fits(k, t, how) ? k : NULL;
    }
    const size_t begin = tr_known_from(s, t->place);
    for (size_t i = 0; i < s->nknown; i++) {
        tr_known_trial *k = &s->known[(begin + i) % s->nknown];
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

static tr_status may_lend(const tr_sweep *s, tr_known_trial *k, bool *may)
{
    tr_status st = TR_OK;
    char *folder = NULL;
    bool whole = false;
    if (k->model && k->whole == 0) {
        TR_HAVE(folder = tr_sweep_folder(s, k->number));
        TR_TRY(tr_model_is_whole(folder, &whole));
        k->whole = whole ? 1 : -1;
    }
    *may = k->model && k->whole > 0;
out:
    tr_free(folder);
    return st;
}

/* Who has done the training that this trial needs, as far as records and runs say; where no record
 * says it one may, where the trial had run in its place. */
static tr_status find_lender(const tr_sweep *s, const tr_trial *t, size_t own, size_t *lender)
{
    tr_status st = TR_OK;
    bool may;
    *lender = TR_NO_TRIAL;
    if (!*t->training) return TR_OK;
    for (size_t i = 0; i < s->nknown && *lender == TR_NO_TRIAL; i++) {
        tr_known_trial *k = &s->known[i];
        if (strcmp(k->training, t->training) != 0 || k->number == own) continue;
        TR_TRY(may_lend(s, k, &may));
        if (may) *lender = k->number;
    }
    tr_known_trial *k = tr_known_at(s, t->place);
    if (*lender != TR_NO_TRIAL || !k || k->says || k->number == own) goto out;
    TR_TRY(may_lend(s, k, &may));
    if (may) *lender = k->number;
out:
    return st;
}

tr_status tr_trials_find(tr_sweep *s, size_t begin, tr_trial_match *m)
{
    tr_status st = TR_OK;
    const size_t n = s->ntrials - begin;
    for (size_t i = 0; i < n; i++) m[i] = (tr_trial_match){TR_NO_TRIAL, TR_NO_TRIAL, 0, false};
    for (int pass = 0; pass < 2 * WAYS; pass++)
        for (size_t i = 0; i < n; i++) {
            const way how = (way)(pass / 2);
            if (m[i].number != TR_NO_TRIAL) continue;
            tr_known_trial *k = find(s, &s->trials[begin + i], how, pass % 2 == 0);
            if (!k) continue;
            k->taken = true;
            m[i].number = k->number;
            m[i].ended = how == ENDED;
            if (!m[i].ended) m[i].start = k->model ? 2 : k->checkpoints;
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
    t->start = m->start;
    return TR_OK;
}

/* ---- Runs without a record ------------------------------------------------------------------- */

/* Whether a run that no record tells of is in the trial's place, and its config is no trial's as it
 * stands. */
static bool is_to_be_asked(const tr_sweep *s, size_t begin, const tr_trial *t)
{
    const tr_known_trial *k = tr_known_at(s, t->place);
    if (!*t->training || !k || k->recorded || k->taken || !*k->training) return false;
    for (size_t i = begin; i < s->ntrials; i++)
        if (strcmp(s->trials[i].training, k->training) == 0) return false;
    return true;
}

/* *Collective.* */
static tr_status adopt(const tr_sweep *s, const tr_trial *t, tr_comm *comm)
{
    tr_status st;
    tr_run_look l = {0};
    tr_config *c = NULL;
    char *folder = tr_sweep_folder(s, t->place);
    st = folder ? tr_trial_config(s, t, &c) : tr_last_status();
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_run_look_at(folder, c, comm, &l));
    if (l.same && tr_comm_topology(comm)->rank == 0) {
        tr_known_trial *k = tr_known_at(s, t->place);
        memcpy(k->training, t->training, sizeof k->training);
        if (strcmp(k->key, l.key) == 0) memcpy(k->key, t->key, sizeof k->key);
    }
out:;
    const tr_error why = *tr_last_error();
    tr_settled_close(&l.now);
    tr_config_close(c);
    tr_free(folder);
    tr_set_error(&why);
    return st;
}

/* *Collective.* What data and device settled in a config that leaves it open makes the keys of its
 * run other ones: such a run is asked for where it ran, in the trial's place. */
static tr_status adopt_runs(tr_sweep *s, size_t begin, tr_comm *comm)
{
    tr_status st = TR_OK;
    const bool root = tr_comm_topology(comm)->rank == 0;
    for (size_t i = begin;; i++) {
        while (root && i < s->ntrials && !is_to_be_asked(s, begin, &s->trials[i])) i++;
        TR_TRY(tr_comm_broadcast(comm, &i, sizeof i, 0));
        if (i == s->ntrials) break;
        TR_TRY(adopt(s, &s->trials[i], comm));
    }
out:
    return st;
}

/* ---- Results --------------------------------------------------------------------------------- */

/* Rank 0. Whether the training of that number is this trial's. */
static bool has_training(const tr_sweep *s, const tr_trial *t, size_t number)
{
    const tr_known_trial *k = tr_known_at(s, number);
    return t->number == number || (k && (!k->says || strcmp(k->training, t->training) == 0));
}

/* Rank 0. A number in a record may be another trial's by now. */
static void check_trained_by(const tr_sweep *s, tr_trial *t)
{
    int64_t *by = &t->result.trained_by;
    const tr_trial *source = &s->trials[t->source];
    if (*by < 0)
        *by = (int64_t)source->number;
    else if (!has_training(s, t, (size_t)*by))
        *by = source != t ? (int64_t)source->number : -1;
}

/* Rank 0. */
static tr_status read_record(tr_trial *t)
{
    tr_status st;
    tr_trial_result *r = &t->result;
    char *model = tr_sprintf("%s/model.h5", t->folder);
    TR_HAVE(model);
    TR_TRY(tr_record_read(t->folder, t->key, r, &t->recorded));
    r->has_model = t->recorded && r->state == TR_TRIAL_FAILED && !r->training_failed &&
                   access(model, F_OK) == 0;
out:
    tr_free(model);
    return st;
}

/* *Collective.* */
static tr_status read_result(tr_trial *t, bool ended, tr_comm *comm)
{
    tr_status st = TR_OK;
    if (!ended) return TR_OK;
    if (tr_comm_topology(comm)->rank == 0) st = read_record(t);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &t->recorded, sizeof t->recorded, 0));
    if (t->recorded) TR_TRY(tr_comm_broadcast(comm, &t->result, sizeof t->result, 0));
out:
    return st;
}

/* *Collective.* */
static tr_status read_trained_by(const tr_sweep *s, tr_trial *t, tr_comm *comm)
{
    if (!t->recorded) return TR_OK;
    if (tr_comm_topology(comm)->rank == 0) check_trained_by(s, t);
    return tr_comm_broadcast(comm, &t->result.trained_by, sizeof t->result.trained_by, 0);
}

tr_status tr_trials_match(tr_sweep *s, size_t begin, tr_comm *comm)
{
    tr_status st;
    const size_t n = s->ntrials - begin;
    tr_trial_match *m = tr_alloc(TR_MEM_OTHER, n, sizeof *m);
    TR_TRY(tr_agree(comm, m ? TR_OK : tr_last_status(), NULL));
    TR_TRY(adopt_runs(s, begin, comm));
    st = tr_comm_topology(comm)->rank == 0 ? tr_trials_find(s, begin, m) : TR_OK;
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, m, n * sizeof *m, 0));
    for (size_t i = 0; i < n && st == TR_OK; i++) st = take(s, &s->trials[begin + i], &m[i]);
    TR_TRY(tr_agree(comm, st, NULL));
    for (size_t i = 0; i < n; i++) TR_TRY(read_result(&s->trials[begin + i], m[i].ended, comm));
    tr_trials_sources(s);
    for (size_t i = begin; i < s->ntrials; i++) TR_TRY(read_trained_by(s, &s->trials[i], comm));
out:
    tr_free(m);
    return st;
}
