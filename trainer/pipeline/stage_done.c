/* Whether a stage of a resumed pipeline has to run again. */
#include "trainer/pipeline/stage_run.h"

#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/pipeline/essence.h"
#include "trainer/run/stage_files.h"

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

/* Rank 0. A stage behind this one has made a model: it would have to be made again, as that of a
 * parent which is another file then, and may have taken hours. */
static bool model_behind(const tr_frame *f, size_t place)
{
    for (size_t i = place + 1; i < f->config->pipeline.count; i++) {
        const tr_stage *s = tr_stage_at(f->config, i);
        char *path = s->makes ? tr_stage_path(f->folder, i, s->name) : NULL;
        char *file = path ? tr_sprintf("%s.h5", path) : NULL;
        const bool there = file && access(file, F_OK) == 0;
        tr_free(file);
        tr_free(path);
        if (there) return true;
    }
    return false;
}

/* Rank 0. Whether the stage's file is what the stage would make again; if not, why. */
static tr_status look_at_stage(const tr_frame *f, size_t place, const char *file, bool *done,
                               char *why, size_t size)
{
    tr_status st = TR_OK;
    tr_lineage l = {0};
    const char *name = tr_stage_at(f->config, place)->name;
    char *inputs = NULL, change[300], gone[200];
    *done = false;
    snprintf(why, size, "it is not finished");
    if (access(file, F_OK) != 0) return TR_OK;
    TR_TRY(tr_stage_inputs(f, place, &inputs));
    tr_status looked = tr_store_verify(file, NULL);
    if (looked == TR_OK) looked = tr_lineage_read(file, &l);
    TR_TRY(tr_unread(looked)); /* to make the stage again would remove what is behind it */
    if (looked != TR_OK || l.count == 0) {
        snprintf(why, size, "its file is of no use: %.400s", tr_last_error()->text);
        goto out;
    }
    const tr_findings *found = &l.v[l.count - 1];
    tr_stage_gone(found, file, gone, sizeof gone);
    if (strcmp(text_of(found, "parent_sha256"), f->chain.sha256) != 0)
        snprintf(why, size, "the stage before it made another model");
    else if (strcmp(text_of(found, "inputs"), inputs) != 0) {
        TR_TRY(tr_stage_inputs_change(tr_stage_at(f->config, place), text_of(found, "inputs"),
                                      inputs, change, sizeof change));
        snprintf(why, size, "what it was asked for changed: %s", change);
    } else if (is_other_file(text_of(found, "teacher"), text_of(found, "teacher_sha256")))
        snprintf(why, size, "its teacher %.300s is another file now", text_of(found, "teacher"));
    else if (gone[0] && !model_behind(f, place))
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

/* Rank 0. A training that is done stays as it is: who would have it learn from another teacher is
 * told. */
static tr_status look_at_teacher(const tr_frame *f, const char *file, const tr_network *n)
{
    tr_status st = TR_OK;
    char *path = NULL;
    tr_snapshot s = {.params = n->params, .states = n->states};
    if (!tr_config_distills(f->config)) return TR_OK;
    TR_HAVE(path = tr_config_path(f->config, f->config->train.distill.teacher));
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
static tr_status look_at_training(const tr_frame *f, const char *file, bool *done, char *why,
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
    TR_TRY(tr_unread(looked));
    if (looked != TR_OK) {
        snprintf(why, size, "its file is of no use: %.400s", tr_last_error()->text);
        goto out;
    }
    TR_TRY(tr_config_essence(c, true, &was));
    TR_TRY(tr_config_essence(f->config, true, &is));
    *done = strcmp(was, is) == 0;
    if (!*done) {
        TR_TRY(tr_stage_change("", was, is, change, sizeof change));
        snprintf(why, size, "its config changed: %s", change);
    } else
        TR_TRY(look_at_teacher(f, file, n));
out:
    tr_network_close(n);
    tr_config_close(c);
    tr_free(was);
    tr_free(is);
    return st;
}

tr_status tr_stage_is_done(const tr_frame *f, size_t place, const char *file, bool *done, char *why,
                           size_t size)
{
    return tr_stage_at(f->config, place) == &tr_stage_train
               ? look_at_training(f, file, done, why, size)
               : look_at_stage(f, place, file, done, why, size);
}
