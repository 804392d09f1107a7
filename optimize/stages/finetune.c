/* The stage `finetune`: the training loop on this model, with keys of `train` of its own; with a teacher it is
 * distilled (train.distill). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/quantize/quantize.h"
#include "optimize/stages/stages.h"
#include "runtime/base/numbers.h"

typedef struct {
    tr_stage_common common;
    tr_distill_config distill;
    const tr_node *train;
    int scales;
} finetune_options;

enum { SCALES_FIXED, SCALES_LEARNED };
static const char *const scales[] = {"fixed", "learned", NULL};

static const tr_field fields[] = {
    TR_STAGE_COMMON(finetune_options),
    TR_DISTILL_FIELDS(offsetof(finetune_options, distill)),
    TR_NODE("train", offsetof(finetune_options, train), "",
            "keys of `train` that are other than the config's: {epochs: 2, optimizer: {sgd: {lr: "
            "0.001}}}"),
    TR_CHOICE(
        "scales", offsetof(finetune_options, scales), scales, "fixed",
        "behind quantize: learned: the scales of int8 weights and of what layers read are "
        "trained, too (LSQ; Esser et al. 2020); fixed: those of values stay, those of weights "
        "follow the largest one"),
    TR_END,
};

static bool is_taught(const finetune_options *o)
{
    return o->distill.teacher && *o->distill.teacher;
}

/* As a key of `train`. */
static tr_status distill_key(const tr_distill_config *d, const char *path, char **out)
{
    char *features = NULL, *name = tr_yaml_quoted(path), number[3][32];
    tr_status st = TR_OK;
    TR_HAVE(name);
    if (d->features) TR_TRY(tr_node_line(d->features, &features));
    *out = tr_sprintf(
        "train.distill={teacher: %s, temperature: %s, hard: %s, soft: %s, features: %s}", name,
        tr_format_real(d->temperature, number[0]), tr_format_real(d->hard, number[1]),
        tr_format_real(d->soft, number[2]), features ? features : "null");
    TR_HAVE(*out);
out:
    tr_free(name);
    tr_free(features);
    return st;
}

/* What the training needs beside the stage's keys: two overrides. */
enum { TAUGHT = 2 };
static const char no_buckets[] =
    "data.buckets=null"; /* a teacher has plans for whole sequences alone */

/* With a teacher of its own the stage says all of train.distill. */
static tr_status check_distill_once(const tr_config *c, size_t place, const finetune_options *o)
{
    const tr_node *also = tr_node_get(o->train, "distill");
    char key[TR_STAGE_KEY], text[80];
    if (!also || also->kind != TR_NODE_MAP) return TR_OK;
    tr_node_brief(also, text, sizeof text);
    return tr_stage_fail(c, place, "train", "distill: %s, and %s: %s: expected one of them", text,
                         tr_stage_key(c, place, "teacher", key), o->distill.teacher);
}

/* What the config has that does not go with a teacher. */
static tr_status check_taught(const tr_config *c, size_t place, const finetune_options *o)
{
    tr_config *derived = NULL;
    char *key = NULL, text[TR_ERROR_TEXT];
    tr_status st;
    TR_TRY(check_distill_once(c, place, o));
    TR_TRY(distill_key(&o->distill, o->distill.teacher, &key));
    const char *const overrides[TAUGHT] = {key, no_buckets};
    st = tr_config_derive(c, overrides, TAUGHT, &derived);
    snprintf(text, sizeof text, "%s", tr_last_error()->text);
    if (st == TR_CONFIG) st = tr_stage_fail(c, place, "teacher", "%s", text);
out:
    tr_config_close(derived);
    tr_free(key);
    return st;
}

static tr_status check(const tr_config *c, size_t place)
{
    const tr_list_item *item = &c->pipeline.items[place];
    const finetune_options *o = item->options;
    char path[40];
    tr_status st;
    snprintf(path, sizeof path, "pipeline.%zu.finetune", place);
    TR_TRY(tr_distill_check(&o->distill, &c->model.loss, c->data.train.weights != NULL, item->at,
                            path));
    TR_TRY(tr_training_keys_check(c, place, o->train));
    if (is_taught(o)) TR_TRY(check_taught(c, place, o));
out:
    return st;
}

static tr_status check_teacher(const tr_stage_outlook *o, const finetune_options *f)
{
    tr_status st = TR_OK;
    const tr_node *features = f->distill.features;
    char option[40];
    if (o->model->rows != 1)
        return tr_stage_fail(o->config, o->place, "teacher",
                             "the model has a class for each of %lld rows of a sample: a teacher "
                             "is for models with a class a sample",
                             (long long)o->model->rows);
    for (size_t i = 0; features && features->kind == TR_NODE_LIST && i < features->count; i++) {
        snprintf(option, sizeof option, "features.%zu.student", i);
        TR_TRY(tr_stage_layers(o, option, tr_node_get(features->values[i], "student")));
    }
out:
    return st;
}

/* Of weights in 8 bits, or of what layers read. */
static bool has_scales(const tr_stage_outlook *o)
{
    const tr_model *m = o->model;
    bool any = o->left & TR_LEAVES_INT8 || tr_stage_rounds(m);
    for (size_t i = 0; i < m->nparams; i++) any = any || m->params[i].stored == TR_I8;
    return any;
}

static tr_status check_model(const tr_stage_outlook *o)
{
    tr_status st;
    const finetune_options *f = o->config->pipeline.items[o->place].options;
    if (f->scales == SCALES_LEARNED && !has_scales(o))
        return tr_stage_fail(o->config, o->place, "scales",
                             "no weight is int8 and no layer rounds values: scales are learned "
                             "behind quantize");
    if (is_taught(f)) TR_TRY(check_teacher(o, f));
    tr_stage_outlook then = *o;
    if (f->scales == SCALES_LEARNED) then.left |= TR_LEAVES_NAMES;
    TR_TRY(tr_training_model_check(&then, "train", f->train));
out:
    return st;
}

static const char *file(const void *options, size_t i, const char **option)
{
    const finetune_options *o = options;
    *option = "teacher";
    return i == 0 && is_taught(o) ? o->distill.teacher : NULL;
}

static const tr_distill_config *teacher(const void *options)
{
    const finetune_options *o = options;
    return is_taught(o) ? &o->distill : NULL;
}

static size_t trains(const void *options, const tr_node **train)
{
    const finetune_options *o = options;
    *train = o->train;
    return o->scales == SCALES_LEARNED ? 2 : 1;
}

/* Returns st, a failure that is told at the option. */
static tr_status fail_at(const tr_stage_job *job, const char *option, const char *text,
                         tr_status st)
{
    (void)tr_stage_fail(job->config, job->place, option, "%s", text);
    const tr_error placed = *tr_last_error();
    return TR_FAIL(st, "%s", placed.text);
}

/* Rank 0. Where the teacher is: from where the job was started, or in the run's folder; *path is absolute. */
static tr_status find_teacher(const tr_stage_job *job, const char *given, char **path, char *sha256)
{
    tr_status st = TR_OK;
    char *there = tr_stage_file(job->folder, given), *real = NULL;
    TR_HAVE(there);
    real = realpath(there, NULL);
    TR_NEED(real, TR_IO, "teacher %s: no such file, neither here nor in %s", given, job->folder);
    TR_HAVE(*path = tr_strdup(real));
    st = tr_store_sha256(real, sha256);
    if (st == TR_FILE || st == TR_IO) {
        const tr_error why = *tr_last_error();
        st = fail_at(job, "teacher", why.text, st);
    }
out:
    free(real);
    tr_free(there);
    return st;
}

/* *Collective.* The same path and hash on every rank. */
static tr_status share_teacher(const tr_stage_job *job, const char *given, char **path,
                               char sha256[65])
{
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    size_t n = 0;
    tr_status st;
    TR_TRY(tr_agree(job->comm, root ? find_teacher(job, given, path, sha256) : TR_OK, NULL));
    if (root) n = strlen(*path) + 1;
    TR_TRY(tr_comm_broadcast(job->comm, &n, sizeof n, 0));
    if (!root) *path = tr_alloc(TR_MEM_OTHER, n, 1);
    TR_TRY(tr_agree(job->comm, *path ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_broadcast(job->comm, *path, n, 0));
    TR_TRY(tr_comm_broadcast(job->comm, sha256, 65, 0));
out:
    return st;
}

/* *Collective.* *key: that has this stage's training learn from the teacher; who it is becomes a finding. */
static tr_status take_teacher(const tr_stage_job *job, const tr_distill_config *d, char **key)
{
    tr_status st;
    char *path = NULL, sha256[65] = "";
    TR_TRY(share_teacher(job, d->teacher, &path, sha256));
    st = distill_key(d, path, key);
    if (st == TR_OK) st = tr_attrs_add_text(&job->findings->values, "teacher", path);
    if (st == TR_OK) st = tr_attrs_add_text(&job->findings->values, "teacher_sha256", sha256);
    TR_TRY(tr_agree(job->comm, st, NULL));
out:
    tr_free(path);
    return st;
}

/* What is wrong with the teacher that the training was given is told of the stage's own options. Returns st. */
static tr_status blame_teacher(const tr_stage_job *job, tr_status st)
{
    static const char given[] = "command line: train.distill=", key[] = ": train.distill.";
    const tr_error why = *tr_last_error();
    const char *at = strstr(why.text, key);
    char option[24];
    if (why.hearsay || !at || strncmp(why.text, given, sizeof given - 1) != 0) return st;
    at += sizeof key - 1;
    const size_t length = strcspn(at, ":");
    snprintf(option, sizeof option, "%.*s", (int)length, at);
    return fail_at(job, option, at[length] ? at + length + 2 : "", st);
}

static tr_status train(const tr_stage_job *job, const tr_network *start,
                       const char *const *overrides, size_t n, tr_network **out, bool *agreed)
{
    const tr_training t = {.start = start, .overrides = overrides, .noverrides = n};
    const tr_status st = job->train(job, &t, out, agreed);
    return st == TR_CONFIG || st == TR_FILE || st == TR_IO ? blame_teacher(job, st) : st;
}

static tr_status train_scales(const tr_stage_job *job, const char *const *overrides, size_t n,
                              tr_network **out, bool *agreed)
{
    tr_network *start = NULL, *trained = NULL;
    size_t count = 0;
    tr_status st = tr_quantize_learn(job->parent, &count, &start);
    if (st == TR_OK) st = tr_attrs_add_count(&job->findings->values, "learned_scales", count);
    TR_TRY(tr_agree(job->comm, st, NULL));
    TR_TRY(train(job, start, overrides, n, &trained, agreed));
    TR_TRY(tr_agree(job->comm, tr_quantize_settle(trained, out), NULL));
out:
    tr_network_close(trained);
    tr_network_close(start);
    return st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const finetune_options *o = job->options;
    char **keys = NULL, *key = NULL;
    const char **overrides = NULL;
    size_t n = 0;
    tr_status st = tr_training_keys(o->train, &keys, &n);
    if (st == TR_OK) {
        overrides = tr_alloc(TR_MEM_OTHER, n + TAUGHT, sizeof *overrides);
        if (!overrides) st = tr_last_status();
    }
    TR_TRY(tr_agree(job->comm, st, NULL));
    for (size_t i = 0; i < n; i++) overrides[i] = keys[i];
    if (is_taught(o)) {
        TR_TRY(take_teacher(job, &o->distill, &key));
        overrides[n++] = key;
        overrides[n++] = no_buckets;
    }
    if (o->scales == SCALES_LEARNED)
        TR_TRY(train_scales(job, overrides, n, &out->network, agreed));
    else
        TR_TRY(train(job, job->parent, overrides, n, &out->network, agreed));
out:
    tr_training_keys_free(keys);
    tr_free((void *)overrides);
    tr_free(key);
    return st;
}

const tr_stage tr_stage_finetune = {
    .name = "finetune",
    .makes = true,
    .doc = "Trains the model that it is given, from its weights on; with `teacher` it is distilled "
           "(`train.distill`). What it needs to go on after a stop is in `stages/NN-finetune/`",
    .fields = fields,
    .options_size = sizeof(finetune_options),
    .check = check,
    .check_model = check_model,
    .file = file,
    .teacher = teacher,
    .trains = trains,
    .run = run,
};
