/* What every stage has besides its budget: the files that it leaves beside its own. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "optimize/stages/stages.h"
#include "runtime/graph/facts.h"
#include "runtime/graph/ops.h"

/* ---- Files beside the stage's own ------------------------------------------------------------ */

#define FILES                                                                                      \
    "files" /* the finding: names from the folder of the stage's own file on, a line each */

/* What precedes the last part of a path, with its slash. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

tr_status tr_stage_wrote(const tr_stage_job *job, const char *path)
{
    tr_status st = TR_OK;
    const size_t n = folder_length(job->path);
    const bool beside = folder_length(path) == n && memcmp(path, job->path, n) == 0;
    tr_attrs *a = &job->findings->values;
    const tr_attr *so_far = tr_attrs_get(a, FILES);
    char *all = tr_sprintf("%s%s%s%s", so_far ? so_far->text : "", so_far ? "\n" : "",
                           beside ? "" : "../", path + folder_length(path));
    TR_HAVE(all);
    tr_attrs_remove(a, FILES);
    TR_TRY(tr_attrs_add_text(a, FILES, all));
out:
    tr_free(all);
    return st;
}

void tr_stage_gone(const tr_findings *f, const char *file, char *name, size_t size)
{
    const tr_attr *a = tr_attrs_get(&f->values, FILES);
    const char *line = a && a->kind == TR_ATTR_TEXT ? a->text : "";
    for (size_t n; *line; line += n + (line[n] != 0)) {
        n = strcspn(line, "\n");
        char *path = tr_sprintf("%.*s%.*s", (int)folder_length(file), file, (int)n, line);
        struct stat info; /* what is none, such as a folder of that name, is not it */
        const bool there = path && stat(path, &info) == 0 && S_ISREG(info.st_mode);
        tr_free(path);
        if (there) continue;
        snprintf(name, size, "%.*s", (int)n, line);
        return;
    }
    name[0] = 0;
}

/* ---- Models ---------------------------------------------------------------------------------- */

bool tr_stage_rounds(const tr_model *m)
{
    bool any = false;
    for (size_t i = 0; i < m->nlayers; i++) {
        const char *type = tr_op_def_name(m->layers[i].def);
        any = any || strcmp(type, tr_layer_rounder()) == 0 ||
              strcmp(type, tr_layer_dynamic_rounder()) == 0;
    }
    return any;
}
