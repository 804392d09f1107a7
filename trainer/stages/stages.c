/* The one list of stages. */
#include "trainer/stages/stages.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

const tr_stage *const tr_stages[TR_STAGES] = {
    &tr_stage_train,  &tr_stage_benchmark, &tr_stage_finetune, &tr_stage_fold,   &tr_stage_prune,
    &tr_stage_sketch, &tr_stage_quantize,  &tr_stage_profile,  &tr_stage_report, &tr_stage_export};

void tr_stages_known(tr_variant_def out[TR_STAGES + 1])
{
    for (size_t i = 0; i < TR_STAGES; i++)
        out[i] = (tr_variant_def){.name = tr_stages[i]->name,
                                  .fields = tr_stages[i]->fields,
                                  .doc = tr_stages[i]->doc,
                                  .size = tr_stages[i]->options_size};
    out[TR_STAGES] = (tr_variant_def){.name = NULL};
}

const tr_stage *tr_stage_at(const tr_config *c, size_t place)
{
    return tr_stages[c->pipeline.items[place].which];
}

/* What a budget goes by must be there to be measured. */
static tr_status check_budget(const tr_config *c, size_t place)
{
    const tr_stage *s = tr_stage_at(c, place);
    const tr_stage_common *common = s->fields ? c->pipeline.items[place].options : NULL;
    const tr_budget *b = s == &tr_stage_train ? tr_train_budget(c, place)
                         : common             ? &common->budget
                                              : NULL;
    const bool accuracy = b && (b->accuracy >= 0 || b->accuracy_drop >= 0);
    const bool loss = b && (b->loss >= 0 || b->loss_rise >= 0);
    if ((accuracy || loss) && !tr_config_has_eval(c))
        return tr_stage_fail(c, place, "budget", "there is no data.eval to measure on");
    if (accuracy && !tr_loss_counts(c->model.loss.kind.which))
        return tr_stage_fail(c, place, "budget",
                             "accuracy is asked for, which the loss does not have");
    return TR_OK;
}

tr_status tr_stages_check(const tr_config *c)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < c->pipeline.count; i++) {
        const tr_stage *s = tr_stage_at(c, i);
        if (s->check) TR_TRY(s->check(c, i));
        TR_TRY(check_budget(c, i));
    }
out:
    return st;
}

tr_status tr_stages_check_model(const tr_config *c, const tr_model *m)
{
    tr_status st = TR_OK;
    tr_stage_outlook o = {.config = c, .model = m};
    for (o.place = 0; o.place < c->pipeline.count; o.place++) {
        const tr_stage *s = tr_stage_at(c, o.place);
        if (s->check_model) TR_TRY(s->check_model(&o));
        if (s->leaves) o.left |= s->leaves(c->pipeline.items[o.place].options);
    }
out:
    return st;
}

/* Whether the training may leave that in its folder. Which steps have a checkpoint the run
 * decides. */
static bool is_trained(const tr_config *c, const char *path)
{
    unsigned long long step;
    char made[64];
    if (strcmp(path, "checkpoints/best.h5") == 0) return c->train.checkpoint.best;
    if (sscanf(path, "checkpoints/step-%llu", &step) != 1) return strcmp(path, "model.h5") == 0;
    snprintf(made, sizeof made, "checkpoints/step-%08llu.h5", step);
    return strcmp(path, made) == 0;
}

size_t tr_stages_maker(const tr_config *c, const char *path)
{
    if (is_trained(c, path)) return 0;
    for (size_t i = 0; i < c->pipeline.count; i++) {
        char name[64];
        const int length =
            snprintf(name, sizeof name, "stages/%02zu-%s", i, tr_stage_at(c, i)->name);
        if (strncmp(path, name, (size_t)length) == 0 &&
            (path[length] == '.' || path[length] == '/'))
            return i;
    }
    return SIZE_MAX;
}

tr_status tr_stages_check_order(const tr_config *c, size_t place, const char *option,
                                const char *path)
{
    const size_t maker = tr_stages_maker(c, path);
    if (place == 0 || maker == SIZE_MAX || maker < place) return TR_OK;
    return tr_stage_fail(c, place, option, "%s: %s makes it%s: expected a file of a stage before",
                         path, maker == place ? "this stage" : "a later stage",
                         maker == place ? " itself" : "");
}

size_t tr_stages_makes(const tr_config *c, const char *folder, const char *named,
                       char within[PATH_MAX])
{
    size_t maker = SIZE_MAX;
    if (tr_file_within(folder, named, within)) maker = tr_stages_maker(c, within);
    if (maker != SIZE_MAX || access(named, F_OK) == 0) return maker;
    char *path = tr_stage_file(folder, named);
    if (path && tr_file_within(folder, path, within)) maker = tr_stages_maker(c, within);
    tr_free(path);
    return maker;
}

static tr_status check_file(const tr_config *c, size_t place, const char *folder,
                            const char *option, const char *named)
{
    tr_status st = TR_OK;
    char within[PATH_MAX], *path = tr_stage_file(folder, named);
    TR_HAVE(path);
    const size_t maker = tr_stages_makes(c, folder, named, within);
    if (maker < place) goto out;
    if (maker != SIZE_MAX) TR_TRY(tr_stages_check_order(c, place, option, within));
    if (access(path, F_OK) != 0)
        st = tr_stage_fail(c, place, option, "%s: no such file, neither here nor in %s", named,
                           folder);
out:
    tr_free(path);
    return st;
}

tr_status tr_stages_check_files(const tr_config *c, size_t place, const char *folder)
{
    tr_status st = TR_OK;
    const tr_stage *s = tr_stage_at(c, place);
    const char *option, *named;
    for (size_t i = 0; s->file && st == TR_OK; i++) {
        named = s->file(c->pipeline.items[place].options, i, &option);
        if (!named) break;
        st = check_file(c, place, folder, option, named);
    }
    return st;
}

tr_status tr_stages_check_first(const tr_config *c)
{
    const tr_list_item *first = c->pipeline.items;
    if (c->pipeline.count > 0 && tr_stages[first->which] == &tr_stage_train) return TR_OK;
    return tr_node_fail(first ? first->at : c->document.root,
                        "pipeline: the first stage is train, which makes the model that the others "
                        "work on; on a model that is there: trainer STAGE FILE");
}
