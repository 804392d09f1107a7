/* Training within a stage: a run folder of its own, below the stage's path, in which it goes on
 * where it was stopped. The folder knows what it started from; another start, or another config,
 * begins anew. */
#include "trainer/pipeline/stage_run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/config/chosen.h"
#include "trainer/pipeline/essence.h"

#define KEY "start" /* the file in the folder that says what its training depends on */

typedef struct {
    tr_frame *f;
    const char *path;     /* the stage's */
    char *folder, *model; /* PATH/NAME, its model.h5 */
    char *key, *key_path; /* what it depends on; that file */
    char *text;           /* of the config */
    tr_config *config;
    tr_model *made;
    tr_run_folder *run;
    bool resume, done; /* rank 0 decides */
} within;

/* Parts to recompute that were named after layers which a stage took away: blocks instead, with the
 * same numbers. */
static tr_status forget_segments(within *w, const tr_model *m)
{
    static const char *const blocks[] = {"train.recompute=blocks"};
    static const tr_overrides all = {.texts = blocks, .count = 1};
    int *segments = NULL;
    tr_config *other = NULL;
    const tr_status st = tr_segments_read(w->config, m, &segments);
    tr_free(segments);
    if (st != TR_CONFIG) return st;
    const tr_status derived = tr_config_derive(w->config, &all, &other);
    if (derived != TR_OK) return derived;
    tr_config_close(w->config);
    w->config = other;
    return TR_OK;
}

/* The config of the training: the network's model, the stage's overrides, a folder of its own; what
 * memory chose for a training before is left to it again. */
static tr_status resolve(within *w, const tr_training *t)
{
    tr_status st = TR_OK;
    const bool host = w->f->backend && w->f->backend->host; /* then this trains there, too */
    char *folder = tr_yaml_quoted(w->folder);
    char *output = folder ? tr_sprintf("output=%s", folder) : NULL;
    const char *texts[TR_CHOSEN_MOST + 4];
    TR_HAVE(output);
    size_t n = tr_config_unchoose(w->f->chain.config, texts);
    texts[n++] = output;
    texts[n++] = "pipeline=[train]";
    if (host) texts[n++] = "device=cpu";
    if (t->override) texts[n++] = t->override;
    const tr_overrides all = {.train = t->train, .texts = texts, .count = n};
    TR_TRY(tr_model_config(t->start->model, w->f->chain.config, &all, &w->config));
    TR_TRY(forget_segments(w, t->start->model));
    TR_TRY(tr_train_model(w->config, &w->made));
    TR_TRY(tr_config_text(w->config, &w->text));
out:
    tr_free(folder);
    tr_free(output);
    return st;
}

/* Of the config and every value at the start. */
static tr_status make_key(within *w, const tr_network *start)
{
    tr_status st;
    char params[65], states[65], *essence = NULL, hex[65];
    TR_TRY(tr_config_essence(w->config, true, &essence));
    tr_sha256_hex(start->params, start->model->flat_count * sizeof(float), params);
    tr_sha256_hex(start->states, start->model->state_count * sizeof(float), states);
    tr_sha256_hex(essence, strlen(essence), hex);
    w->key = tr_sprintf("config %s\nparameters %s\nstates %s\n", hex, params, states);
    TR_HAVE(w->key);
out:
    tr_free(essence);
    return st;
}

/* Rank 0. Who teaches is who that file is now. */
static tr_status add_teacher(within *w)
{
    tr_status st = TR_OK;
    char *path = NULL, *key = NULL, sha256[65];
    if (!tr_config_distills(w->config)) return TR_OK;
    TR_HAVE(path = tr_config_path(w->config, w->config->train.distill.teacher));
    TR_TRY(tr_store_sha256(path, sha256));
    TR_HAVE(key = tr_sprintf("%steacher %s\n", w->key, sha256));
    tr_free(w->key);
    w->key = key;
out:
    tr_free(path);
    return st;
}

/* Rank 0. In which config the folder's training differs from this one. */
static tr_status config_change(const within *w, char *change, size_t size)
{
    tr_status st;
    tr_config *c = NULL;
    tr_variant_def stages[TR_STAGES + 1];
    char *path = tr_sprintf("%s/config.yaml", w->folder), *text = NULL, *was = NULL, *is = NULL;
    size_t n;
    TR_HAVE(path);
    tr_stages_known(stages);
    TR_TRY(tr_read_text(path, &text, &n));
    TR_TRY(tr_config_open(path, text, n, NULL, 0, stages, &c));
    TR_TRY(tr_config_essence(c, true, &was));
    TR_TRY(tr_config_essence(w->config, true, &is));
    TR_TRY(tr_stage_change("", was, is, change, size));
out:
    tr_config_close(c);
    tr_free(path);
    tr_free(text);
    tr_free(was);
    tr_free(is);
    return st;
}

static bool same_line(const char *a, const char *b, const char *name)
{
    const char *x = strstr(a, name), *y = strstr(b, name);
    const size_t n = x ? strcspn(x, "\n") : 0;
    return x && y && n == strcspn(y, "\n") && memcmp(x, y, n) == 0;
}

/* Rank 0. The training that is in the folder goes, as `was`, the key that it began with, is another
 * one: that is told. */
static void say_anew(const within *w, const char *was)
{
    char change[400] = "", why[480];
    if (same_line(was, w->key, "config "))
        snprintf(why, sizeof why,
                 same_line(was, w->key, "parameters ") && same_line(was, w->key, "states ")
                     ? "its teacher is another file now"
                     : "it starts from another model");
    else
        snprintf(why, sizeof why, "what it was asked for changed%s%s",
                 config_change(w, change, sizeof change) == TR_OK && change[0] ? ": " : "", change);
    tr_log(TR_LOG_INFO, "the training in %s begins anew: %s", w->folder, why);
}

/* Rank 0. What is in the folder, and the folder itself. */
static tr_status look(within *w)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t n;
    TR_TRY(tr_folder_own(w->path)); /* no link: behind one lies another's training */
    TR_TRY(tr_folder_own(w->folder));
    TR_TRY(add_teacher(w));
    const bool there = access(w->key_path, F_OK) == 0;
    if (there) TR_TRY(tr_read_text(w->key_path, &text, &n));
    w->resume = there && strcmp(text, w->key) == 0;
    w->done = w->resume && access(w->model, F_OK) == 0;
    if (w->done && tr_store_verify(w->model, NULL) != TR_OK) {
        tr_log(TR_LOG_WARN, "%s; trained on from its last checkpoint", tr_last_error()->text);
        w->done = false;
    }
    if (w->done) goto out;
    if (there && !w->resume) say_anew(w, text);
    TR_TRY(tr_run_folder_open(w->folder, w->resume, !w->resume, &w->run));
    tr_run_folder_with(w->run, KEY, w->key);
out:
    tr_free(text);
    return st;
}

static tr_status prepare(within *w, const tr_stage_job *job, const tr_training *t)
{
    tr_status st;
    char again[24] = "";
    w->path = job->path;
    if (w->f->attempt > 0) snprintf(again, sizeof again, "-retry%d", w->f->attempt);
    w->folder = tr_sprintf("%s/%s%s", job->path, t->name ? t->name : "train", again);
    TR_HAVE(w->folder);
    w->model = tr_sprintf("%s/model.h5", w->folder);
    w->key_path = tr_sprintf("%s/" KEY, w->folder);
    TR_HAVE(w->model && w->key_path);
    TR_TRY(resolve(w, t));
    TR_TRY(make_key(w, t->start));
out:
    return st;
}

/* *Collective.* */
static tr_status take_result(within *w, tr_network **out)
{
    tr_status st;
    tr_chain got = {0};
    TR_TRY(tr_chain_load(w->f->comm, w->model, NULL, 0, &got));
    *out = got.network;
    got.network = NULL;
out:
    tr_chain_free(&got);
    return st;
}

tr_status tr_stage_train_within(const tr_stage_job *job, const tr_training *t, tr_network **out,
                                bool *agreed)
{
    tr_status st;
    within w = {.f = job->trainer};
    tr_comm *comm = w.f->comm;
    const bool root = tr_comm_topology(comm)->rank == 0;
    *agreed = true;
    TR_TRY(tr_agree(comm, prepare(&w, job, t), NULL));
    if (root) tr_comm_busy(comm, TR_BUSY_READS);
    st = tr_agree(comm, root ? look(&w) : TR_OK, NULL);
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(st);
    TR_TRY(tr_comm_broadcast(comm, &w.resume, sizeof w.resume, 0));
    TR_TRY(tr_comm_broadcast(comm, &w.done, sizeof w.done, 0));
    if (!w.done) {
        const tr_trainer_options o = {.comm = comm,
                                      .config = w.config,
                                      .config_text = w.text,
                                      .model = w.made,
                                      .folder = w.run,
                                      .start = t->start,
                                      .resume = w.resume,
                                      .quiet = w.f->quiet};
        tr_frame_leave_device(w.f);
        TR_TRY(tr_train(&o, agreed));
        TR_TRY(tr_frame_enter_device(w.f));
    }
    TR_TRY(take_result(&w, out));
out:
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_model_close(w.made);
        tr_config_close(w.config);
        tr_run_folder_close(w.run);
        free(w.text);
        tr_free(w.key);
        tr_free(w.key_path);
        tr_free(w.model);
        tr_free(w.folder);
        tr_set_error(&why);
    }
    return st;
}
