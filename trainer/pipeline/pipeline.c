/* The stages of a config one after the other, in its run folder: which of them run. */
#include "trainer/pipeline/pipeline.h"

#include <string.h>
#include <unistd.h>

#include "trainer/loop/signals.h"
#include "trainer/pipeline/stage_run.h"
#include "trainer/pipeline/teachers.h"
#include "trainer/run/stage_files.h"

typedef struct {
    tr_frame frame;
    const tr_trainer_options *o;
    const char *folder; /* rank 0's, as it was when the run began, or the training ended */
    char *moved;        /* that, once a training ended */
    size_t from, until; /* stages that run in any case, and the last one */
    bool again;         /* a stage ran: those behind it do */
} pipeline;

static char *name_of(const tr_config *c, size_t place)
{
    return tr_sprintf("%02zu-%s", place, tr_stage_at(c, place)->name);
}

/* The first stage of the pipeline that is called so. */
static tr_status find(const tr_config *c, const char *flag, const char *name, size_t *place)
{
    char *full;
    for (*place = 0; *place < c->pipeline.count; ++*place) {
        if (!(full = name_of(c, *place))) return tr_last_status();
        const bool same =
            strcmp(name, full) == 0 || strcmp(name, tr_stage_at(c, *place)->name) == 0;
        tr_free(full);
        if (same) return TR_OK;
    }
    return TR_FAIL(TR_USAGE, "%s %s: the pipeline has no such stage", flag, name);
}

static bool is_root(const pipeline *p)
{
    return tr_comm_topology(p->o->comm)->rank == 0;
}

/* *Collective.* What rank 0 finds. A pipeline of training alone is resumed by the training
 * itself. */
static tr_status is_done(pipeline *p, size_t place, const char *file, bool *done)
{
    tr_status st = TR_OK;
    char why[800] = "";
    const bool training = tr_stage_at(p->o->config, place) == &tr_stage_train;
    *done = false;
    if (!p->o->resume || place >= p->from || p->again) return TR_OK;
    if (training && p->o->config->pipeline.count == 1) return TR_OK;
    if (is_root(p)) tr_comm_busy(p->o->comm, TR_BUSY_READS);
    if (is_root(p)) st = tr_stage_is_done(&p->frame, place, file, done, why, sizeof why);
    st = tr_agree(p->o->comm, st, NULL);
    tr_comm_busy(p->o->comm, TR_BUSY_NOT);
    TR_TRY(st);
    TR_TRY(tr_comm_broadcast(p->o->comm, done, sizeof *done, 0));
    if (!is_root(p)) goto out;
    char *name = name_of(p->o->config, place);
    if (*done)
        tr_log(TR_LOG_INFO, "stage %s is done", name ? name : "");
    else
        tr_log(TR_LOG_INFO, "stage %s runs: %s", name ? name : "", why);
    tr_free(name);
out:
    return st;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* *Collective.* Between stages nothing is half done. */
static tr_status look_for_stop(pipeline *p, const char *next)
{
    double stop = tr_signals_ask_stop(p->o->comm);
    tr_status st = tr_comm_all_reduce(p->o->comm, &stop, 1, TR_F64);
    if (st == TR_OK && stop > 0)
        st = TR_FAIL(TR_STOPPED, "stopped before stage %s; go on with --resume", next);
    return st;
}

/* Rank 0. What comes from this stage on is of before. */
static tr_status clear_behind(const pipeline *p, size_t place)
{
    const char *name = tr_stage_at(p->o->config, place)->name;
    tr_status st = tr_run_folder_begin(p->o->folder, p->o->config_text);
    if (st == TR_OK) st = tr_stage_files_make(p->folder);
    if (st == TR_OK) st = tr_stage_files_remove(p->folder, place, name, true);
    return st;
}

static tr_status train(const tr_stage_job *job, const tr_training *t, tr_network **out,
                       bool *agreed)
{
    (void)t, (void)out;
    return tr_train(job->trainer, agreed);
}

/* *Collective.* A training goes on where its folder was moved: so does what is behind it. */
static tr_status find_folder(pipeline *p)
{
    tr_status st;
    tr_comm *comm = p->o->comm;
    char *now = is_root(p) ? tr_strdup(tr_run_folder_path(p->o->folder)) : NULL;
    TR_TRY(tr_agree(comm, now || !is_root(p) ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_share_text(comm, &now));
    tr_free(p->moved);
    p->folder = p->frame.folder = p->moved = now;
    now = NULL;
out:
    tr_free(now);
    return st;
}

/* *Collective.* The stage that trains in the run folder itself. */
static tr_status run_training(pipeline *p, size_t place, bool *agreed)
{
    tr_status st;
    tr_stage_result made = {0};
    const tr_stage_job job = {.config = p->o->config,
                              .place = place,
                              .comm = p->o->comm,
                              .train = train,
                              .trainer = (void *)p->o};
    TR_TRY(tr_stage_train.run(&job, &made, agreed));
    TR_TRY(find_folder(p));
out:
    return st;
}

/* What a training leaves. */
static char *model_of(const pipeline *p)
{
    return tr_sprintf("%s/model.h5", p->folder);
}

static tr_status run_stage(pipeline *p, size_t place, bool *agreed)
{
    tr_status st;
    bool done;
    tr_comm *comm = p->o->comm;
    const bool training = tr_stage_at(p->o->config, place) == &tr_stage_train;
    const bool last = place + 1 == p->o->config->pipeline.count;
    char *name = name_of(p->o->config, place), *file = NULL,
         *path = tr_stage_path(p->folder, place, tr_stage_at(p->o->config, place)->name);
    if (name && path) file = training ? model_of(p) : tr_sprintf("%s.h5", path);
    TR_TRY(tr_agree(comm, file ? TR_OK : tr_last_status(), NULL));
    TR_TRY(is_done(p, place, file, &done));
    if (!done && p->again) TR_TRY(look_for_stop(p, name));
    if (!done && training) {
        TR_TRY(run_training(p, place, agreed));
        tr_free(file);
        file = model_of(p);
        TR_TRY(tr_agree(comm, file ? TR_OK : tr_last_status(), NULL));
    }
    if (!done && !training) {
        TR_TRY(tr_agree(comm, is_root(p) ? clear_behind(p, place) : TR_OK, NULL));
        TR_TRY(tr_stage_run(&p->frame, place, name, path, agreed));
    }
    const tr_budget *budget = training ? tr_train_budget(p->o->config, place) : NULL;
    if (((done || training) && !last) || budget) {
        TR_TRY(tr_chain_load(comm, file, NULL, 0, &p->frame.chain));
        p->frame.latency_ms = 0;
    }
    if (budget)
        TR_TRY(tr_frame_judge(&p->frame, name, budget)); /* also of a training that is done */
    p->again = p->again || !done;
out:
    tr_free(name);
    tr_free(file);
    tr_free(path);
    return st;
}

/* Rank 0. Files that stages read, but for those that are done: they have read them. */
static tr_status check_files(const pipeline *p)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i <= p->until && st == TR_OK; i++) {
        char *path = tr_stage_path(p->folder, i, tr_stage_at(p->o->config, i)->name);
        char *file = path ? tr_sprintf("%s.h5", path) : NULL;
        const bool done = file && p->o->resume && i < p->from && access(file, F_OK) == 0;
        if (!file)
            st = tr_last_status();
        else if (!done)
            st = tr_stages_check_files(p->o->config, i, p->folder);
        if (st == TR_OK && !done)
            st = tr_stage_models_check(p->o->config, p->o->model, i, p->folder);
        tr_free(file);
        tr_free(path);
    }
    return st;
}

tr_status tr_pipeline_run(const tr_trainer_options *o, const char *from, const char *until,
                          bool *agreed)
{
    tr_status st = TR_OK;
    const size_t count = o->config->pipeline.count;
    pipeline p = {.frame = {.comm = o->comm,
                            .config = o->config,
                            .quiet = o->quiet,
                            .folder = o->config->output},
                  .o = o,
                  .folder = o->config->output,
                  .from = count,
                  .until = count - 1};
    *agreed = true;
    if (from) TR_TRY(find(o->config, "--from", from, &p.from));
    if (until) TR_TRY(find(o->config, "--until", until, &p.until));
    TR_NEED(!from || o->resume, TR_USAGE,
            "--from %s runs again from there on: it goes with --resume", from);
    TR_NEED(!from || tr_stage_at(o->config, p.from) != &tr_stage_train, TR_USAGE,
            "--from %s: a finished training is not done again; replace the run (--force)", from);
    TR_NEED(!from || p.from <= p.until, TR_USAGE, "--from %s stands behind --until %s", from,
            until);
    if (is_root(&p)) tr_comm_busy(o->comm, TR_BUSY_READS);
    st = is_root(&p) ? check_files(&p) : TR_OK;
    tr_comm_busy(o->comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(o->comm, st, NULL));
    for (size_t i = 0; i <= p.until; i++) TR_TRY(run_stage(&p, i, agreed));
    TR_TRY(tr_agree(o->comm, is_root(&p) ? tr_stage_files_left(p.folder, count) : TR_OK, NULL));
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_frame_close(&p.frame);
        tr_free(p.moved);
        tr_set_error(&why);
    }
    return st;
}
