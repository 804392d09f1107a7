/* One trial: its training taken over from another where it is the same, then the pipeline as a job
 * of its own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/config/files.h"
#include "trainer/run/run_folder.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

/* ---- The training ---------------------------------------------------------------------------- */

/* Rank 0. The model at `to` is the one at `from`: a link where that can be made. */
static tr_status take_model(const char *from, const char *to)
{
    tr_status st;
    char theirs[65], own[65] = "";
    TR_TRY(tr_store_sha256(from, theirs));
    if (access(to, F_OK) == 0 && tr_store_sha256(to, own) == TR_OK && strcmp(own, theirs) == 0)
        return TR_OK;
    TR_TRY(tr_store_link(from, to));
out:
    return st;
}

/* Rank 0. The folder becomes a run's whose training is done. */
static tr_status share_training(const char *lender, const tr_trial *t, const tr_config *c,
                                bool resume, bool force)
{
    tr_status st;
    tr_run_folder *f = NULL;
    char *text = NULL, *from = tr_sprintf("%s/model.h5", lender),
         *to = tr_sprintf("%s/model.h5", t->folder);
    TR_HAVE(from && to);
    TR_TRY(tr_config_text(c, &text));
    TR_TRY(tr_run_folder_open(t->folder, resume, force, &f));
    TR_TRY(tr_run_folder_begin(f, text));
    TR_TRY(take_model(from, to));
out:;
    const tr_error why = *tr_last_error();
    tr_run_folder_close(f);
    tr_set_error(&why);
    free(text);
    tr_free(from);
    tr_free(to);
    return st;
}

/* *Collective.* What the config leaves open is as the run in that folder found it: `now`. */
static tr_status take_training(const char *from, const tr_trial *t, const tr_settled *now,
                               tr_job *job)
{
    tr_status st;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    st = root ? share_training(from, t, now->config, job->resume, job->force) : TR_OK;
    TR_TRY(tr_agree(job->comm, st, NULL));
    job->resume = true;
    job->force = false;
out:
    return st;
}

/* *Collective.* The folder that the training is taken from, allocated; NULL: it is the trial's own.
 * What is not whole, or no longer what it was, is passed over. */
static tr_status find_training(const tr_sweep *s, tr_trial *t, tr_config *c, const tr_job *job,
                               char **from, tr_settled *now)
{
    tr_status st = TR_OK;
    bool lends = false;
    tr_run_look l;
    tr_lender *v = NULL;
    *from = NULL;
    if (&s->trials[t->source] == t && job->resume) goto out;
    v = tr_alloc(TR_MEM_OTHER, s->ntrials + 1, sizeof *v);
    TR_TRY(tr_agree(job->comm, v ? TR_OK : tr_last_status(), NULL));
    const size_t n = tr_trial_lenders(s, t, v);
    for (size_t i = 0; i < n && !lends; i++) {
        tr_free(*from);
        *from = tr_sweep_folder(s, v[i].number);
        TR_TRY(tr_agree(job->comm, *from ? TR_OK : tr_last_status(), NULL));
        TR_TRY(tr_run_lends(*from, c, job->comm, &lends, &l));
        if (!lends) continue;
        t->takes = true;
        t->result.trained_by = v[i].trained_by;
        tr_settled_close(now);
        *now = l.now;
    }
out:
    tr_free(v);
    if (!lends) {
        tr_free(*from);
        *from = NULL;
    }
    return st;
}

/* ---- The folder ------------------------------------------------------------------------------ */

/* Rank 0. The folder is ours, which is known before anything is written there. What is in it goes
 * where it was replaced, or is a run of `another` training: nothing of that is to be taken for this
 * trial's. */
static tr_status own_folder(const char *folder, bool another)
{
    tr_status st;
    tr_run_folder *f = NULL;
    tr_known_trial known = {0};
    bool there;
    TR_TRY(tr_run_folder_open(folder, false, true, &f));
    if (!another) TR_TRY(tr_record_look(folder, &known, &there));
    if (another || known.state == TR_TRIAL_REPLACED) TR_TRY(tr_run_folder_discard(f));
out:;
    const tr_error why = *tr_last_error();
    tr_run_folder_close(f);
    tr_set_error(&why);
    return st;
}

tr_status tr_trial_record(const tr_sweep *s, const tr_trial *t)
{
    tr_status st;
    if (!t->prepared && !t->recorded) TR_TRY(own_folder(t->folder, false));
    TR_NEED(mkdir(t->folder, 0777) == 0 || errno == EEXIST, TR_IO, "%s cannot be made: %s",
            t->folder, strerror(errno));
    TR_TRY(tr_record_write(s, t));
out:
    return st;
}

/* *Collective.* A run of another training is replaced; of the same one, the config is settled
 * already. The record says that the trial began: what is recorded of the folder no longer holds. */
static tr_status prepare(const tr_sweep *s, tr_trial *t, tr_config *c, tr_job *job, tr_settled *now)
{
    tr_status st;
    tr_run_look l = {0};
    char *from = NULL;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    TR_TRY(tr_agree(job->comm, root ? tr_trial_record(s, t) : TR_OK, NULL));
    TR_TRY(tr_run_look_at(t->folder, c, job->comm, &l));
    job->resume = l.same && !s->arguments->force;
    /* what cannot be settled may be as before once data is back: it fails, and the run stays */
    job->force = l.any && !l.settled;
    t->prepared = !job->force;
    const bool other = l.any && l.settled && !job->resume;
    TR_TRY(tr_agree(job->comm, root && other ? own_folder(t->folder, true) : TR_OK, NULL));
    if (job->resume) {
        *now = l.now;
        l.now = (tr_settled){0};
    }
    TR_TRY(find_training(s, t, c, job, &from, now));
    if (from) TR_TRY(take_training(from, t, now, job));
    t->prepared = t->prepared || from;
    job->config = now->config ? now->config : c;
out:;
    const tr_error why = *tr_last_error();
    tr_settled_close(&l.now);
    tr_free(from);
    tr_set_error(&why);
    return st;
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* What comes of a trial's settings, and would come of them again. */
static bool is_own(tr_status st)
{
    return st == TR_BUDGET || st == TR_NONFINITE || st == TR_CONFIG || st == TR_SHAPE ||
           st == TR_UNSUPPORTED || st == TR_DATA || st == TR_MEMORY || st == TR_KERNEL;
}

static bool is_data_away(const tr_config *c)
{
    return tr_unreadable_key(c, &c->data.train) ||
           (c->data.eval.present && tr_unreadable_key(c, &c->data.eval));
}

typedef struct {
    tr_status status;
    int away; /* a file of the data cannot be opened */
} failure;

/* *Collective.* The failure of the first rank that has one of its own, on all; *away: on any. */
static tr_status share_failure(tr_comm *comm, failure own, bool *away)
{
    tr_status st;
    const tr_topology *top = tr_comm_topology(comm);
    struct {
        tr_status status;
        char text[TR_ERROR_TEXT];
    } told = {.status = own.status};
    int root = 0;
    const tr_error why = *tr_last_error();
    failure *all = tr_alloc(TR_MEM_OTHER, (size_t)top->size, sizeof *all);
    *away = false;
    TR_TRY(tr_agree(comm, all ? TR_OK : tr_last_status(), NULL));
    snprintf(told.text, sizeof told.text, "%s", why.text);
    TR_TRY(tr_comm_all_gather(comm, &own, all, sizeof *all));
    while (root < top->size - 1 && (all[root].status == TR_PEER || all[root].status == TR_OK))
        root++;
    for (int i = 0; i < top->size; i++) *away = *away || all[i].away;
    TR_TRY(tr_comm_broadcast(comm, &told, sizeof told, root));
    tr_set_error(&why);
    if (top->rank != root) (void)TR_FAIL(told.status, "%s", told.text);
    st = top->rank != root ? tr_fail_hearsay(told.status) : told.status;
out:
    tr_free(all);
    return st;
}

/* *Collective.* c: NULL where the trial has none. A search goes by what came of its trials, in
 * their order: there such a failure is one like others. */
static tr_status fail(const tr_sweep *s, tr_trial *t, const tr_config *c, tr_comm *comm,
                      tr_status st, tr_status *why)
{
    tr_trial_result *r = &t->result;
    bool away;
    if (tr_comm_broken(comm)) return st;
    *why = st = share_failure(comm, (failure){st, c && is_data_away(c)}, &away);
    if (tr_comm_broken(comm) || !is_own(st)) return st;
    r->state = TR_TRIAL_FAILED;
    r->away = away && st == TR_DATA && !s->spec.search.present;
    snprintf(r->reason, sizeof r->reason, "%s", tr_last_error()->text);
    return s->spec.on_failure ? st : TR_OK;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Whether a training that is the same has failed, in this job: one of before may have been helped
 * since. */
static bool fails_likewise(const tr_sweep *s, tr_trial *t)
{
    const tr_trial *from = &s->trials[t->source];
    if (from == t || !tr_trial_fails_others(from)) return false;
    t->result = (tr_trial_result){
        .state = TR_TRIAL_FAILED, .training_failed = true, .trained_by = from->result.trained_by};
    snprintf(t->result.reason, sizeof t->result.reason, "the training is that of trial %zu: %.900s",
             from->number, from->result.reason);
    return true;
}

/* *Collective.* */
static tr_status run_pipeline(tr_sweep *s, tr_trial *t, tr_config *c, tr_comm *comm, bool *agreed)
{
    tr_status st;
    tr_settled now = {0};
    tr_job job = {.comm = comm, .quiet = s->arguments->quiet};
    TR_TRY(prepare(s, t, c, &job, &now));
    /* a pipeline of training alone has nothing left to do with another's model */
    if (!t->takes || c->pipeline.count > 1) TR_TRY(tr_job_run(&job, agreed));
    TR_TRY(tr_trial_measure(t, c, s->arguments->quiet, comm, &t->result));
    t->result.state = TR_TRIAL_DONE;
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_settled_close(&now);
        tr_set_error(&why);
    }
    return st;
}

/* Rank 0. */
static bool is_there(const tr_trial *t, const char *name, struct stat *info)
{
    char *path = tr_sprintf("%s/%s", t->folder, name);
    const bool there = path && stat(path, info) == 0;
    tr_free(path);
    return there;
}

/* Rank 0. Whether it trained since then: what fails before, for want of memory, which a run may
 * limit, or of data, which may come back, is the trial's alone. */
static void judge_failure(tr_trial *t, bool began, const struct stat *before, tr_status why)
{
    tr_trial_result *r = &t->result;
    struct stat model, now;
    r->has_model = t->prepared && is_there(t, "model.h5", &model);
    const bool trained = t->prepared && is_there(t, "metrics.jsonl", &now) &&
                         (!began || now.st_ino != before->st_ino || now.st_size != before->st_size);
    r->training_failed = trained && !r->has_model && why != TR_MEMORY && !r->away;
}

tr_status tr_trial_run(tr_sweep *s, tr_trial *t, tr_comm *comm, bool *agreed)
{
    tr_config *c = NULL;
    const bool root = tr_comm_topology(comm)->rank == 0;
    struct stat metrics = {0};
    const bool began = root && is_there(t, "metrics.jsonl", &metrics);
    *agreed = true;
    t->result.trained_by = (int64_t)t->number;
    tr_status st = tr_agree(comm, tr_trial_config(s, t, &c), NULL);
    if (st == TR_OK) st = tr_agree(comm, tr_device_check(c), NULL);
    if (st == TR_OK && !fails_likewise(s, t)) st = run_pipeline(s, t, c, comm, agreed);
    if (!*agreed) return st; /* what it held stays open */
    if (st != TR_OK) {
        tr_status failed = st;
        st = fail(s, t, c, comm, st, &failed);
        if (root && t->result.state == TR_TRIAL_FAILED) judge_failure(t, began, &metrics, failed);
    }
    const tr_error why = *tr_last_error();
    tr_config_close(c);
    tr_set_error(&why);
    return st;
}
