#include "trainer/pipeline/teachers.h"

#include <stdio.h>
#include <unistd.h>

#include "runtime/config/files.h"
#include "trainer/models/teacher.h"
#include "trainer/stages/stages.h"

tr_status tr_stage_teacher_check(const tr_config *c, const tr_model *m, size_t place,
                                 const char *folder)
{
    tr_status st = TR_OK;
    const tr_stage *s = tr_stage_at(c, place);
    const tr_distill_config *d = s->teacher ? s->teacher(c->pipeline.items[place].options) : NULL;
    char key[64], *path = NULL;
    if (!d || tr_stages_make(c, place, d->teacher)) return TR_OK;
    snprintf(key, sizeof key, "pipeline.%zu.%s", place, s->name);
    const tr_teacher_place at = {.config = c, .key = key, .changes = place > 1};
    TR_HAVE(path = tr_stage_file(folder, d->teacher));
    if (access(path, F_OK) == 0) st = tr_teacher_check(&at, d, path, m);
out:
    tr_free(path);
    return st;
}

tr_status tr_teachers_check(const tr_config *c, const tr_model *m)
{
    tr_status st = TR_OK;
    const tr_distill_config *d = &c->train.distill;
    const tr_teacher_place at = {.config = c, .key = "train.distill"};
    char *path = NULL;
    if (tr_config_distills(c) && tr_config_file_readable(c, d->teacher)) {
        TR_HAVE(path = tr_config_path(c, d->teacher));
        TR_TRY(tr_teacher_check(&at, d, path, m));
    }
    for (size_t i = 0; i < c->pipeline.count; i++)
        TR_TRY(tr_stage_teacher_check(c, m, i, c->output));
out:
    tr_free(path);
    return st;
}
