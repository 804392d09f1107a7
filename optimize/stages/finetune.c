/* The stage `finetune`: the training loop on this model, with keys of `train` of its own; with a
 * teacher it is distilled (train.distill). */
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

static const char no_buckets[] =
    "data.buckets=null"; /* a teacher has plans for whole sequences alone */

/* Keys of `train` that have the training learn from the stage's teacher, each where its option
 * stands. */
enum { DISTILL_KEYS = 5 };
typedef struct {
    tr_node train, key, distill, teacher, *keys[DISTILL_KEYS], *values[DISTILL_KEYS];
} taught;

static void taught_free(taught *t)
{
    tr_free(t->train.keys);
    tr_free(t->train.values);
}

/* `path`: of the teacher. Holds nodes of `c` and the path; to be freed by taught_free, also on
 * failure. */
static tr_status taught_make(const tr_config *c, size_t place, char *path, taught *t)
{
    static const tr_field distill[] = {TR_DISTILL_FIELDS(0), TR_END};
    static char name[] = "distill";
    const tr_list_item *item = &c->pipeline.items[place];
    const finetune_options *o = item->options;
    const tr_node *own = o->train, *given = tr_node_get(item->at, tr_stage_name(c, place));
    const size_t n = own ? own->count : 0;
    tr_status st = TR_OK;
    t->key = (tr_node){.source = item->at->source,
                       .line = item->at->line,
                       .column = item->at->column,
                       .text = name};
    t->distill = t->train = t->key;
    t->distill.kind = t->train.kind = TR_NODE_MAP;
    t->distill.keys = t->keys;
    t->distill.values = t->values;
    for (size_t i = 0; given && i < given->count; i++)
        for (const tr_field *f = distill; f->key; f++) {
            if (strcmp(f->key, given->keys[i]->text) != 0) continue;
            t->keys[t->distill.count] = given->keys[i];
            t->values[t->distill.count] = given->values[i];
            if (strcmp(f->key, "teacher") == 0) {
                t->teacher = *given->values[i];
                t->teacher.text = path;
                t->teacher.quoted = true;
                t->values[t->distill.count] = &t->teacher;
            }
            t->distill.count++;
        }
    TR_HAVE(t->train.keys = tr_alloc(TR_MEM_OTHER, n + 1, sizeof(tr_node *)));
    TR_HAVE(t->train.values = tr_alloc(TR_MEM_OTHER, n + 1, sizeof(tr_node *)));
    for (size_t i = 0; i < n; i++) {
        t->train.keys[i] = own->keys[i];
        t->train.values[i] = own->values[i];
    }
    t->train.keys[n] = &t->key;
    t->train.values[n] = &t->distill;
    t->train.count = n + 1;
out:
    return st;
}

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
    static const char *const also[] = {no_buckets};
    taught t = {0};
    tr_status st;
    TR_TRY(check_distill_once(c, place, o));
    TR_TRY(taught_make(c, place, o->distill.teacher, &t));
    st = tr_training_keys_check(
        c, place, &(tr_overrides){.train = &t.train, .texts = also, .count = TR_COUNT(also)});
out:
    taught_free(&t);
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
    TR_TRY(tr_training_keys_check(c, place, &(tr_overrides){.train = o->train}));
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

/* Rank 0. Where the teacher is: from where the job was started, or in the run's folder; *path is
 * absolute. */
static tr_status find_teacher(const tr_stage_job *job, const char *given, char **path, char *sha256)
{
    tr_status st = TR_OK;
    char *there = tr_stage_file(job->folder, given), *real = NULL;
    TR_HAVE(there);
    real = realpath(there, NULL);
    TR_NEED(real, TR_IO, "teacher %s: no such file, neither here nor in %s", given, job->folder);
    TR_HAVE(*path = tr_strdup(real));
    st = tr_store_sha256(real, sha256);
    if (st == TR_FILE || st == TR_IO) st = tr_stage_blame(job->config, job->place, "teacher", st);
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
    tr_status st;
    TR_TRY(tr_agree(job->comm, root ? find_teacher(job, given, path, sha256) : TR_OK, NULL));
    TR_TRY(tr_comm_share_text(job->comm, path));
    TR_TRY(tr_comm_broadcast(job->comm, sha256, 65, 0));
out:
    return st;
}

/* *Collective.* *path: of the teacher that this stage's training learns from; who it is becomes a
 * finding. */
static tr_status take_teacher(const tr_stage_job *job, const tr_distill_config *d, char **path)
{
    tr_status st;
    char sha256[65] = "";
    TR_TRY(share_teacher(job, d->teacher, path, sha256));
    st = tr_attrs_add_text(&job->findings->values, "teacher", *path);
    if (st == TR_OK) st = tr_attrs_add_text(&job->findings->values, "teacher_sha256", sha256);
    TR_TRY(tr_agree(job->comm, st, NULL));
out:
    return st;
}

static tr_status train_scales(const tr_stage_job *job, tr_training *t, tr_network **out,
                              bool *agreed)
{
    tr_network *start = NULL, *trained = NULL;
    size_t count = 0;
    tr_status st = tr_quantize_learn(job->parent, &count, &start);
    if (st == TR_OK) st = tr_attrs_add_count(&job->findings->values, "learned_scales", count);
    TR_TRY(tr_agree(job->comm, st, NULL));
    t->start = start;
    TR_TRY(tr_training_run(job, t, &trained, agreed));
    TR_TRY(tr_agree(job->comm, tr_quantize_settle(trained, out), NULL));
out:
    tr_network_close(trained);
    tr_network_close(start);
    return st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const finetune_options *o = job->options;
    tr_training t = {.start = job->parent, .train = o->train};
    taught by = {0};
    char *path = NULL;
    tr_status st = TR_OK;
    if (is_taught(o)) {
        TR_TRY(take_teacher(job, &o->distill, &path));
        TR_TRY(tr_agree(job->comm, taught_make(job->config, job->place, path, &by), NULL));
        t.train = &by.train;
        t.override = no_buckets;
    }
    st = o->scales == SCALES_LEARNED ? train_scales(job, &t, &out->network, agreed)
                                     : tr_training_run(job, &t, &out->network, agreed);
out:
    taught_free(&by);
    tr_free(path);
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
