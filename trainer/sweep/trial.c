/* One trial: its training taken over from another where it is the same, then the pipeline as a job of its own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/pipeline/job.h"
#include "trainer/run/run_folder.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

/* ---- The folder ------------------------------------------------------------------------------ */

/* Rank 0. Of the training of the run that the folder holds; *any: it holds one. */
static tr_status key_there(const char *folder, bool *any, char key[65])
{
    tr_status st = TR_OK;
    tr_config *c = NULL;
    tr_variant_def stages[TR_STAGES + 1];
    char *text = NULL, *path = tr_sprintf("%s/config.yaml", folder);
    size_t n;
    TR_HAVE(path);
    *any = access(path, F_OK) == 0;
    if (!*any) goto out;
    tr_stages_known(stages);
    tr_status looked = tr_read_text(path, &text, &n);
    if (looked == TR_OK) looked = tr_config_open(path, text, n, NULL, 0, stages, &c);
    TR_TRY(tr_unread(looked)); /* to train again may take hours */
    if (looked == TR_OK) TR_TRY(tr_training_key(c, key));
out:
    tr_config_close(c);
    tr_free(text);
    tr_free(path);
    return st;
}

/* *Collective.* Whether the folder holds a run, and rank 0's `same`: of the training of this config, which is settled as it is
 * there; what cannot be is another's. */
static tr_status look(const char *folder, tr_config *c, tr_comm *comm, bool *any, bool *same,
                      tr_settled *now)
{
    tr_status st = TR_OK;
    char key[65] = "", there[65] = "";
    *any = *same = false;
    if (tr_comm_topology(comm)->rank == 0) st = key_there(folder, any, there);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, any, sizeof *any, 0));
    if (!*any) goto out;
    st = tr_settled_open(comm, c, folder, now);
    if (tr_comm_broken(comm)) goto out;
    const bool settled = st == TR_OK;
    if (settled) st = tr_training_key(now->config, key);
    TR_TRY(tr_agree(comm, tr_unread(st), NULL));
    *same = settled && strcmp(key, there) == 0;
out:
    return st;
}

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

/* *Collective.* What the config leaves open is as the run in that folder found it. */
static tr_status take_training(const char *from, const tr_trial *t, tr_config *c, tr_job *job,
                               tr_settled *now)
{
    tr_status st;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    TR_TRY(tr_settled_open(job->comm, c, from, now));
    st = root ? share_training(from, t, now->config, job->resume, job->force) : TR_OK;
    TR_TRY(tr_agree(job->comm, st, NULL));
    job->resume = true;
    job->force = false;
out:
    return st;
}

/* *Collective.* Whether the trial of before that may lend its training has done the one that this config is of. */
static tr_status ask_lender(const char *folder, tr_config *c, tr_comm *comm, bool *lends)
{
    tr_status st;
    tr_settled then = {0};
    bool any;
    TR_TRY(look(folder, c, comm, &any, lends, &then));
    TR_TRY(tr_comm_broadcast(comm, lends, sizeof *lends, 0));
out:;
    const tr_error why = *tr_last_error();
    tr_settled_close(&then);
    tr_set_error(&why);
    return st;
}

/* *Collective.* The folder that the training is taken from, allocated; NULL: it is the trial's own. */
static tr_status find_training(const tr_sweep *s, tr_trial *t, tr_config *c, const tr_job *job,
                               char **from)
{
    tr_status st = TR_OK;
    const tr_trial *source = &s->trials[t->source];
    const bool other = source != t;
    bool lends = false;
    *from = NULL;
    if (!other && (job->resume || t->lender == TR_NO_TRIAL)) goto out;
    *from = other ? tr_strdup(source->folder) : tr_sweep_folder(s, t->lender);
    TR_TRY(tr_agree(job->comm, *from ? TR_OK : tr_last_status(), NULL));
    if (!other) TR_TRY(ask_lender(*from, c, job->comm, &lends));
    if (other || lends) {
        t->takes = true;
        t->result.trained_by = other ? source->result.trained_by : (int64_t)t->lender;
    } else {
        tr_free(*from);
        *from = NULL;
    }
out:
    return st;
}

/* *Collective.* A run of another training is replaced; of the same one, the config is settled already. The record says that
 * the trial began: what is recorded of the folder no longer holds. */
static tr_status prepare(const tr_sweep *s, tr_trial *t, tr_config *c, tr_job *job, tr_settled *now)
{
    tr_status st;
    bool any, same;
    char *from = NULL;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    TR_TRY(tr_agree(job->comm, root ? tr_trial_record(s, t) : TR_OK, NULL));
    TR_TRY(look(t->folder, c, job->comm, &any, &same, now));
    job->resume = any && same && !s->arguments->force;
    job->force = any && !job->resume;
    TR_TRY(tr_comm_broadcast(job->comm, &job->resume, sizeof job->resume, 0));
    TR_TRY(tr_comm_broadcast(job->comm, &job->force, sizeof job->force, 0));
    TR_TRY(find_training(s, t, c, job, &from));
    if (!job->resume || from) tr_settled_close(now);
    if (from) TR_TRY(take_training(from, t, c, job, now));
    job->config = now->config ? now->config : c;
out:
    tr_free(from);
    return st;
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* What comes of a trial's settings, and would come of them again. */
static bool is_own(tr_status st)
{
    return st == TR_BUDGET || st == TR_NONFINITE || st == TR_CONFIG || st == TR_SHAPE ||
           st == TR_UNSUPPORTED || st == TR_DATA || st == TR_MEMORY || st == TR_KERNEL;
}

/* *Collective.* The failure of the first rank that has one of its own, on all. */
static tr_status share_failure(tr_comm *comm, tr_status st)
{
    const tr_topology *top = tr_comm_topology(comm);
    struct {
        tr_status status;
        char text[TR_ERROR_TEXT];
    } told = {.status = st};
    int root = 0;
    const tr_error why = *tr_last_error();
    tr_status *all = tr_alloc(TR_MEM_OTHER, (size_t)top->size, sizeof *all);
    TR_TRY(tr_agree(comm, all ? TR_OK : tr_last_status(), NULL));
    snprintf(told.text, sizeof told.text, "%s", why.text);
    TR_TRY(tr_comm_all_gather(comm, &told.status, all, sizeof *all));
    while (root < top->size - 1 && (all[root] == TR_PEER || all[root] == TR_OK)) root++;
    TR_TRY(tr_comm_broadcast(comm, &told, sizeof told, root));
    tr_set_error(&why);
    if (top->rank != root) (void)TR_FAIL(told.status, "%s", told.text);
    st = top->rank != root ? tr_fail_hearsay(told.status) : told.status;
out:
    tr_free(all);
    return st;
}

/* *Collective.* */
static tr_status fail(const tr_sweep *s, tr_trial *t, tr_comm *comm, tr_status st)
{
    tr_trial_result *r = &t->result;
    if (tr_comm_broken(comm)) return st;
    st = share_failure(comm, st);
    if (tr_comm_broken(comm) || !is_own(st)) return st;
    r->state = TR_TRIAL_FAILED;
    snprintf(r->reason, sizeof r->reason, "%s", tr_last_error()->text);
    return s->spec.on_failure ? st : TR_OK;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Whether a training that is the same has failed. */
static bool fails_likewise(const tr_sweep *s, tr_trial *t)
{
    const tr_trial *from = &s->trials[t->source];
    if (from == t || !from->result.training_failed) return false;
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

/* Rank 0. Failed before there is a model. */
static bool has_model(const tr_trial *t)
{
    char *model = tr_sprintf("%s/model.h5", t->folder);
    const bool there = model && access(model, F_OK) == 0;
    tr_free(model);
    return there;
}

tr_status tr_trial_record(const tr_sweep *s, const tr_trial *t)
{
    if (mkdir(t->folder, 0777) != 0 && errno != EEXIST)
        return TR_FAIL(TR_IO, "%s cannot be made: %s", t->folder, strerror(errno));
    return tr_record_write(s, t);
}

tr_status tr_trial_run(tr_sweep *s, tr_trial *t, tr_comm *comm, bool *agreed)
{
    tr_config *c = NULL;
    const bool root = tr_comm_topology(comm)->rank == 0;
    *agreed = true;
    t->result.trained_by = (int64_t)t->number;
    tr_status st = tr_agree(comm, tr_trial_config(s, t, &c), NULL);
    if (st == TR_OK) st = tr_agree(comm, tr_device_check(c), NULL);
    if (st == TR_OK && !fails_likewise(s, t)) st = run_pipeline(s, t, c, comm, agreed);
    if (!*agreed) return st; /* what it held stays open */
    if (st != TR_OK) {
        st = fail(s, t, comm, st);
        t->result.training_failed = root && t->result.state == TR_TRIAL_FAILED && !has_model(t);
    }
    const tr_error why = *tr_last_error();
    tr_config_close(c);
    tr_set_error(&why);
    return st;
}
