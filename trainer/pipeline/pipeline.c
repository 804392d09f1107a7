#include "trainer/pipeline/pipeline.h"

#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/loop/signals.h"
#include "trainer/pipeline/essence.h"
#include "trainer/pipeline/stage_run.h"
#include "trainer/run/stage_files.h"

typedef struct {
    tr_frame frame;
    const tr_trainer_options *o;
    const char *folder; /* rank 0's, as it was when the run began */
    size_t from, until; /* stages that run in any case, and the last one */
    bool again;         /* a stage ran: those behind it do */
} pipeline;

static const tr_stage *stage_at(const tr_config *c, size_t place)
{
    return tr_stages[c->pipeline.items[place].which];
}

static char *name_of(const tr_config *c, size_t place)
{
    return tr_sprintf("%02zu-%s", place, stage_at(c, place)->name);
}

/* The first stage of the pipeline that is called so. */
static tr_status find(const tr_config *c, const char *flag, const char *name, size_t *place)
{
    char *full;
    for (*place = 0; *place < c->pipeline.count; ++*place) {
        if (!(full = name_of(c, *place))) return tr_last_status();
        const bool same = strcmp(name, full) == 0 || strcmp(name, stage_at(c, *place)->name) == 0;
        tr_free(full);
        if (same) return TR_OK;
    }
    return TR_FAIL(TR_USAGE, "%s %s: the pipeline has no such stage", flag, name);
}

static bool is_root(const pipeline *p)
{
    return tr_comm_topology(p->o->comm)->rank == 0;
}

/* ---- Is a stage done? ------------------------------------------------------------------------ */

static const char *text_of(const tr_findings *f, const char *name)
{
    const tr_attr *a = tr_attrs_get(&f->values, name);
    return a && a->kind == TR_ATTR_TEXT ? a->text : "";
}

/* A file that is gone, or none at all, is no other one. */
static bool is_other_file(const char *path, const char *sha256)
{
    char is[65];
    return *path && access(path, F_OK) == 0 && tr_store_sha256(path, is) == TR_OK &&
           strcmp(is, sha256) != 0;
}

/* Rank 0. A stage behind this one has made a model: it would have to be made again, as that of a parent which is another
 * file then, and may have taken hours. */
static bool model_behind(const pipeline *p, size_t place)
{
    for (size_t i = place + 1; i < p->o->config->pipeline.count; i++) {
        const tr_stage *s = stage_at(p->o->config, i);
        char *path = s->makes ? tr_stage_path(p->folder, i, s->name) : NULL;
        char *file = path ? tr_sprintf("%s.h5", path) : NULL;
        const bool there = file && access(file, F_OK) == 0;
        tr_free(file);
        tr_free(path);
        if (there) return true;
    }
    return false;
}

/* What came of looking at a stage's file, where it is no fault of the file's, but nobody could look (descriptors, a disk,
 * memory): to make its stage again would remove what is behind it. */
static tr_status unread(tr_status st)
{
    return st == TR_IO || st == TR_MEMORY ? st : TR_OK;
}

/* Rank 0. Whether the stage's file is what the stage would make again; if not, why. */
static tr_status look_at_stage(pipeline *p, size_t place, const char *file, bool *done, char *why,
                               size_t size)
{
    tr_status st = TR_OK;
    tr_lineage l = {0};
    const char *name = stage_at(p->o->config, place)->name;
    char *inputs = NULL, change[300], gone[200];
    *done = false;
    snprintf(why, size, "it is not finished");
    if (access(file, F_OK) != 0) return TR_OK;
    TR_TRY(tr_stage_inputs(&p->frame, place, &inputs));
    tr_status looked = tr_store_verify(file, NULL);
    if (looked == TR_OK) looked = tr_lineage_read(file, &l);
    TR_TRY(unread(looked));
    if (looked != TR_OK || l.count == 0) {
        snprintf(why, size, "its file is of no use: %.400s", tr_last_error()->text);
        goto out;
    }
    const tr_findings *f = &l.v[l.count - 1];
    tr_stage_gone(f, file, gone, sizeof gone);
    if (strcmp(text_of(f, "parent_sha256"), p->frame.chain.sha256) != 0)
        snprintf(why, size, "the stage before it made another model");
    else if (strcmp(text_of(f, "inputs"), inputs) != 0) {
        TR_TRY(tr_stage_inputs_change(stage_at(p->o->config, place), text_of(f, "inputs"), inputs,
                                      change, sizeof change));
        snprintf(why, size, "what it was asked for changed: %s", change);
    } else if (is_other_file(text_of(f, "teacher"), text_of(f, "teacher_sha256")))
        snprintf(why, size, "its teacher %.300s is another file now", text_of(f, "teacher"));
    else if (gone[0] && !model_behind(p, place))
        snprintf(why, size, "its file %s is gone", gone);
    else
        *done = true;
    if (*done && gone[0])
        tr_log(TR_LOG_WARN,
               "stage %02zu-%s: its file %s is gone; --resume --from %02zu-%s makes it again, and "
               "the models behind it",
               place, name, gone, place, name);
out:
    tr_lineage_free(&l);
    tr_free(inputs);
    return st;
}

/* Rank 0. A training that is done stays as it is: who would have it learn from another teacher is told. */
static tr_status look_at_teacher(const pipeline *p, const char *file, const tr_network *n)
{
    tr_status st = TR_OK;
    char *path = NULL;
    tr_snapshot s = {.params = n->params, .states = n->states};
    if (!tr_config_distills(p->o->config)) return TR_OK;
    TR_HAVE(path = tr_config_path(p->o->config, p->o->config->train.distill.teacher));
    TR_TRY(tr_store_read(file, n->model, &s, NULL));
    if (is_other_file(path, s.teacher_sha256))
        tr_log(TR_LOG_WARN,
               "%s was trained with another teacher (SHA-256 %.12s) than %s is now; it stays: "
               "--force trains again",
               file, s.teacher_sha256[0] ? s.teacher_sha256 : "none", path);
out:
    tr_free(path);
    return st;
}

/* Rank 0. model.h5 is there once training is done. */
static tr_status look_at_training(const pipeline *p, const char *file, bool *done, char *why,
                                  size_t size)
{
    tr_status st = TR_OK;
    tr_network *n = NULL;
    tr_config *c = NULL;
    char *was = NULL, *is = NULL, change[300];
    tr_variant_def stages[TR_STAGES + 1];
    *done = false;
    snprintf(why, size, "it is not finished");
    if (access(file, F_OK) != 0) return TR_OK;
    tr_stages_known(stages);
    const tr_status looked = tr_network_read(file, NULL, 0, stages, &n, &c);
    TR_TRY(unread(looked));
    if (looked != TR_OK) {
        snprintf(why, size, "its file is of no use: %.400s", tr_last_error()->text);
        goto out;
    }
    TR_TRY(tr_config_essence(c, true, &was));
    TR_TRY(tr_config_essence(p->o->config, true, &is));
    *done = strcmp(was, is) == 0;
    if (!*done) {
        TR_TRY(tr_stage_change("", was, is, change, sizeof change));
        snprintf(why, size, "its config changed: %s", change);
    } else
        TR_TRY(look_at_teacher(p, file, n));
out:
    tr_network_close(n);
    tr_config_close(c);
    tr_free(was);
    tr_free(is);
    return st;
}

/* *Collective.* What rank 0 finds. A pipeline of training alone is resumed by the training itself. */
static tr_status is_done(pipeline *p, size_t place, const char *file, bool *done)
{
    tr_status st = TR_OK;
    char why[800] = "";
    const bool training = stage_at(p->o->config, place) == &tr_stage_train;
    *done = false;
    if (!p->o->resume || place >= p->from || p->again) return TR_OK;
    if (training && p->o->config->pipeline.count == 1) return TR_OK;
    if (is_root(p)) tr_comm_busy(p->o->comm, TR_BUSY_READS);
    if (is_root(p))
        st = training ? look_at_training(p, file, done, why, sizeof why)
                      : look_at_stage(p, place, file, done, why, sizeof why);
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
    const char *name = stage_at(p->o->config, place)->name;
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

/* *Collective.* The stage that trains in the run folder itself. */
static tr_status run_training(pipeline *p, size_t place, bool *agreed)
{
    tr_stage_result made = {0};
    const tr_stage_job job = {.config = p->o->config,
                              .place = place,
                              .comm = p->o->comm,
                              .train = train,
                              .trainer = (void *)p->o};
    return tr_stage_train.run(&job, &made, agreed);
}

static tr_status run_stage(pipeline *p, size_t place, bool *agreed)
{
    tr_status st;
    bool done;
    tr_comm *comm = p->o->comm;
    const bool training = stage_at(p->o->config, place) == &tr_stage_train;
    const bool last = place + 1 == p->o->config->pipeline.count;
    char *name = name_of(p->o->config, place), *file = NULL,
         *path = tr_stage_path(p->folder, place, stage_at(p->o->config, place)->name);
    if (name && path)
        file = training ? tr_sprintf("%s/model.h5", p->folder) : tr_sprintf("%s.h5", path);
    TR_TRY(tr_agree(comm, file ? TR_OK : tr_last_status(), NULL));
    TR_TRY(is_done(p, place, file, &done));
    if (!done && p->again) TR_TRY(look_for_stop(p, name));
    if (!done && training) TR_TRY(run_training(p, place, agreed));
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
        char *path = tr_stage_path(p->folder, i, stage_at(p->o->config, i)->name);
        char *file = path ? tr_sprintf("%s.h5", path) : NULL;
        const bool done = file && p->o->resume && i < p->from && access(file, F_OK) == 0;
        if (!file)
            st = tr_last_status();
        else if (!done)
            st = tr_stages_check_files(p->o->config, i, p->folder);
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
    TR_NEED(!from || stage_at(o->config, p.from) != &tr_stage_train, TR_USAGE,
            "--from %s: a finished training is not done again; replace the run (--force)", from);
    TR_NEED(!from || p.from <= p.until, TR_USAGE, "--from %s stands behind --until %s", from,
            until);
    TR_TRY(tr_agree(o->comm, is_root(&p) ? check_files(&p) : TR_OK, NULL));
    for (size_t i = 0; i <= p.until; i++) TR_TRY(run_stage(&p, i, agreed));
    TR_TRY(tr_agree(o->comm, is_root(&p) ? tr_stage_files_left(p.folder, count) : TR_OK, NULL));
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_frame_close(&p.frame);
        tr_set_error(&why);
    }
    return st;
}

/* ---- By hand --------------------------------------------------------------------------------- */

/* Beside the file: its name without the extension, and the stage's. */
static char *path_beside(const char *file, const char *stage)
{
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    const char *dot = strrchr(name, '.');
    const size_t n = dot && dot > name ? (size_t)(dot - file) : strlen(file);
    return tr_sprintf("%.*s-%s", (int)n, file, stage);
}

/* Of the run that the file is in: that of model.h5, or above stages/. */
static char *folder_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    if (!slash) return tr_strdup(".");
    size_t n = (size_t)(slash - file);
    if (n >= 7 && memcmp(slash - 7, "/stages", 7) == 0) n -= 7;
    return n ? tr_sprintf("%.*s", (int)n, file) : tr_strdup("/");
}

/* Rank 0. Nothing that the stage may write is there: PATH.EXTENSION of whatever kind. A folder of its training may be
 * one to go on in. */
static tr_status look_beside(const char *path, bool force)
{
    tr_status st = TR_OK;
    glob_t found = {0};
    if (force) return TR_OK;
    TR_TRY(tr_files_like(path, ".*", &found));
    TR_NEED(found.gl_pathc == 0, TR_USAGE, "%s is there: move it away, or replace it (--force)",
            found.gl_pathv[0]);
out:
    globfree(&found);
    return st;
}

/* One more than the last stage's that made the file. */
static size_t number_after(const tr_lineage *l)
{
    const char *last = l->count ? l->v[l->count - 1].stage : "00";
    size_t n = 0;
    for (; *last >= '0' && *last <= '9' && n < 1000; last++) n = 10 * n + (size_t)(*last - '0');
    return n + 1;
}

tr_status tr_stage_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c, bool *agreed)
{
    tr_status st;
    size_t number = 0;
    char *name = NULL, *path = path_beside(a->config, a->stage);
    tr_frame f = {.comm = comm, .config = c, .quiet = a->quiet, .by_hand = true};
    *agreed = true;
    char *folder = folder_of(a->config);
    f.folder = folder;
    const bool root = tr_comm_topology(comm)->rank == 0;
    st = !path || !folder ? tr_last_status() : root ? look_beside(path, a->force) : TR_OK;
    if (st == TR_OK && root) st = tr_stages_check_files(c, 0, folder);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_chain_load(comm, a->config, a->overrides, a->noverrides, &f.chain));
    number = number_after(&f.chain.lineage); /* rank 0's lineage */
    TR_TRY(tr_comm_broadcast(comm, &number, sizeof number, 0));
    TR_NEED(number < 100, TR_USAGE, "%s: 99 stages have made it: more are not kept apart",
            a->config);
    name = tr_sprintf("%02zu-%s", number, a->stage);
    TR_TRY(tr_agree(comm, name ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_stage_run(&f, 0, name, path, agreed));
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_frame_close(&f);
        tr_free(name);
        tr_free(path);
        tr_free(folder);
        tr_set_error(&why);
    }
    return st;
}
