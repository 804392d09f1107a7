/* Teachers that a pipeline will learn from, and models that it will measure, as far as they can be
 * looked at before it begins. */
#include "trainer/pipeline/teachers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "trainer/models/teacher.h"
#include "trainer/stages/stages.h"

/* train.distill of the training within a stage. */
static tr_status check_training(const tr_config *c, const tr_model *m, size_t place,
                                const char *folder)
{
    tr_status st = TR_OK;
    const tr_stage *s = tr_stage_at(c, place);
    const tr_node *train = NULL;
    tr_config *own = NULL;
    char within[PATH_MAX], *path = NULL;
    if (s->trains) (void)s->trains(c->pipeline.items[place].options, &train);
    if (!tr_node_get(train, "distill")) return TR_OK;
    TR_TRY(tr_config_derive(c, &(tr_overrides){.train = train}, &own));
    if (!tr_config_distills(own)) goto out;
    const tr_teacher_place at = {
        .config = own, .key = "train.distill", .model_may_change = place > 1};
    TR_HAVE(path = tr_config_path(own, own->train.distill.teacher));
    const size_t maker =
        tr_file_within(folder, path, within) ? tr_stages_maker(c, within) : SIZE_MAX;
    if (maker != SIZE_MAX) TR_TRY(tr_stages_check_order(c, place, "train", within));
    if (maker >= place) st = tr_teacher_check(&at, &own->train.distill, path, m);
out:
    tr_free(path);
    tr_config_close(own);
    return st;
}

/* Of a file that the stage reads, its teacher or any other: that it is a run file. */
static tr_status check_file(const tr_config *c, const tr_model *m, size_t place, const char *folder,
                            const char *option, const char *named)
{
    tr_status st = TR_OK;
    const tr_stage *s = tr_stage_at(c, place);
    const tr_distill_config *d = s->teacher ? s->teacher(c->pipeline.items[place].options) : NULL;
    char key[64], within[PATH_MAX], *path = tr_stage_file(folder, named);
    tr_config *config = NULL;
    tr_model *other = NULL;
    TR_HAVE(path);
    if (access(path, F_OK) != 0 || tr_stages_makes(c, folder, named, within) != SIZE_MAX) goto out;
    snprintf(key, sizeof key, "pipeline.%zu.%s", place, s->name);
    const tr_teacher_place at = {.config = c, .key = key, .model_may_change = place > 1};
    if (d && d->teacher == named) {
        st = tr_teacher_check(&at, d, path, m);
        goto out;
    }
    st = tr_chain_model(path, &config, &other);
    if (st == TR_CONFIG || st == TR_FILE || st == TR_IO) st = tr_stage_blame(c, place, option, st);
    const tr_error why = *tr_last_error();
    tr_model_close(other);
    tr_config_close(config);
    tr_set_error(&why);
out:
    tr_free(path);
    return st;
}

tr_status tr_stage_models_check(const tr_config *c, const tr_model *m, size_t place,
                                const char *folder)
{
    tr_status st = TR_OK;
    const tr_stage *s = tr_stage_at(c, place);
    const void *options = c->pipeline.items[place].options;
    const char *option, *named;
    for (size_t i = 0; s->file && st == TR_OK; i++) {
        named = s->file(options, i, &option);
        if (!named) break;
        st = check_file(c, m, place, folder, option, named);
    }
    const bool taught = s->teacher && s->teacher(options);
    return st == TR_OK && !taught ? check_training(c, m, place, folder) : st;
}

tr_status tr_stages_models_check(const tr_config *c, const tr_model *m)
{
    tr_status st = TR_OK;
    const tr_teacher_place at = {.config = c, .key = "train.distill"};
    char *path = NULL;
    if (tr_config_distills(c)) {
        TR_HAVE(path = tr_config_path(c, c->train.distill.teacher));
        TR_TRY(tr_teacher_check(&at, &c->train.distill, path, m));
    }
    for (size_t i = 0; i < c->pipeline.count; i++) {
        TR_TRY(tr_stages_check_files(c, i, c->output));
        TR_TRY(tr_stage_models_check(c, m, i, c->output));
    }
out:
    tr_free(path);
    return st;
}
