/* What every stage has besides its budget: the files that it leaves beside its own. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "optimize/quantize/quantize.h"
#include "optimize/stages/stages.h"
#include "runtime/graph/facts.h"
#include "runtime/graph/ops.h"

/* ---- Before anything runs -------------------------------------------------------------------- */

const char *tr_stage_name(const tr_config *c, size_t place)
{
    return c->stages[c->pipeline.items[place].which].name;
}

const char *tr_stage_key(const tr_config *c, size_t place, const char *option,
                         char key[TR_STAGE_KEY])
{
    snprintf(key, TR_STAGE_KEY, "pipeline.%zu.%s.%s", place, tr_stage_name(c, place), option);
    return key;
}

tr_status tr_stage_blame(const tr_config *c, size_t place, const char *option, tr_status st)
{
    const tr_node *at = c->pipeline.items[place].at,
                  *given = tr_node_get(tr_node_get(at, tr_stage_name(c, place)), option);
    char key[TR_STAGE_KEY];
    (void)tr_fail_place(st, "%s", tr_stage_key(c, place, option, key));
    return tr_node_blame(given ? given : at, st);
}

tr_status tr_stage_fail(const tr_config *c, size_t place, const char *option, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tr_stage_blame(c, place, option, TR_FAIL(TR_CONFIG, "%s", text));
}

tr_status tr_stage_layers(const tr_stage_outlook *o, const char *option, const tr_node *names)
{
    tr_status st = TR_OK;
    const tr_model *m = o->model;
    const size_t values = m->ninputs + m->nlayers;
    char key[TR_STAGE_KEY];
    char(*steps)[TR_NAME] = tr_alloc(TR_MEM_OTHER, values, sizeof *steps);
    const char **all = tr_alloc(TR_MEM_OTHER, values + m->nlayers, sizeof *all);
    bool *found = tr_alloc(TR_MEM_OTHER, values + m->nlayers, sizeof *found);
    size_t n = 0;
    TR_HAVE(steps && all && found);
    for (size_t i = 0; i < m->nlayers; i++) all[n++] = m->layers[i].name;
    for (size_t v = 0; o->left & TR_LEAVES_INT8 && v < values; v++) {
        tr_steps_name(m, (int)v, steps[v]);
        all[n++] = steps[v];
    }
    st = tr_node_names(names, tr_stage_key(o->config, o->place, option, key), "layer", all, n,
                       found);
out:
    tr_free(steps);
    tr_free((void *)all);
    tr_free(found);
    return st;
}

/* One that stands behind others was looked at before they began: then the name was there. */
tr_status tr_stage_spared(const tr_stage_outlook *o, const char *option, const tr_node *names)
{
    const size_t n = names && names->kind == TR_NODE_LIST ? names->count : 1;
    char key[TR_STAGE_KEY];
    if (!o->runs || o->place == 0) return tr_stage_layers(o, option, names);
    for (size_t i = 0; names && i < n; i++) {
        const tr_node *name = names->kind == TR_NODE_LIST ? names->values[i] : names;
        const tr_status st = tr_stage_layers(o, option, name);
        if (st != TR_OK && st != TR_CONFIG) return st;
        if (st == TR_CONFIG)
            tr_log(TR_LOG_INFO,
                   "%s: there is no layer %s any more, which has nothing to leave alone",
                   tr_stage_key(o->config, o->place, option, key), name->text);
    }
    return TR_OK;
}

tr_status tr_stage_idle(const tr_config *c, size_t place, const char *why,
                        const char *const *options)
{
    const tr_list_item *item = &c->pipeline.items[place];
    tr_status st = TR_OK;
    for (size_t i = 0; options[i] && st == TR_OK; i++) {
        bool dflt = true;
        const tr_field *f = c->stages[item->which].fields;
        while (strcmp(f->key, options[i]) != 0) f++;
        st = tr_field_is_default(f, item->options, &dflt);
        if (st == TR_OK && !dflt)
            st =
                tr_stage_fail(c, place, options[i], "means nothing %s: leave one of them out", why);
    }
    return st;
}

char *tr_stage_file(const char *folder, const char *named)
{
    return access(named, F_OK) == 0 ? tr_strdup(named) : tr_sprintf("%s/%s", folder, named);
}

tr_status tr_stage_fits(const tr_stage_job *job, const char *option, int64_t batch, size_t nbytes)
{
    char key[TR_STAGE_KEY], what[TR_STAGE_KEY + 48];
    snprintf(what, sizeof what, "%s: %lld samples at once",
             tr_stage_key(job->config, job->place, option, key), (long long)batch);
    return tr_mem_fits(nbytes, what);
}

/* ---- Data ------------------------------------------------------------------------------------ */

tr_status tr_stage_source(const tr_stage_job *job, tr_over_source *source, char why[TR_ERROR_TEXT])
{
    static const tr_over_source all[] = {TR_OVER_EVAL, TR_OVER_TRAIN};
    (void)TR_FAIL(TR_DATA, "the config has none");
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        tr_dataset *data;
        const bool given = all[i] == TR_OVER_EVAL
                               ? tr_config_has_eval(job->config)
                               : tr_over_source_config(job->config, all[i])->present;
        if (!given) continue;
        *source = all[i];
        const tr_status st = tr_evaluator_data(job->evaluator, job->parent, all[i], &data);
        if (st == TR_OK) {
            why[0] = 0;
            return TR_OK;
        }
        if (!tr_evaluator_without(job->evaluator, st)) return tr_last_status();
    }
    snprintf(why, TR_ERROR_TEXT, "%s", tr_last_error()->text);
    return TR_OK;
}

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

/* One after the other of the names in the list: from NULL on, until false. */
static bool next_name(const tr_findings *f, const char **name, int *length)
{
    const tr_attr *a = tr_attrs_get(&f->values, FILES);
    const char *end = *name ? *name + *length : NULL;
    if (!a || a->kind != TR_ATTR_TEXT) return false;
    *name = !end ? a->text : end + (*end == '\n');
    *length = (int)strcspn(*name, "\n");
    return **name != 0;
}

void tr_stage_gone(const tr_findings *f, const char *file, char *name, size_t size)
{
    int n;
    for (const char *line = NULL; next_name(f, &line, &n);) {
        char *path = tr_sprintf("%.*s%.*s", (int)folder_length(file), file, n, line);
        struct stat info; /* what is none, such as a folder of that name, is not it */
        const bool there = path && stat(path, &info) == 0 && S_ISREG(info.st_mode);
        tr_free(path);
        if (there) continue;
        snprintf(name, size, "%.*s", n, line);
        return;
    }
    name[0] = 0;
}

static bool has_name(const tr_findings *f, const char *name, int length)
{
    int n;
    for (const char *line = NULL; next_name(f, &line, &n);)
        if (n == length && memcmp(line, name, (size_t)n) == 0) return true;
    return false;
}

/* Files elsewhere may be those of other stages, too, and a name of another beginning is none of
 * this one's. */
void tr_stage_replaced(const tr_findings *was, const tr_findings *now, const char *path)
{
    const int folder = (int)folder_length(path), own = (int)strlen(path + folder);
    int n;
    for (const char *line = NULL; next_name(was, &line, &n);) {
        if (n <= own || memcmp(line, path + folder, (size_t)own) != 0 || line[own] != '.' ||
            memchr(line, '/', (size_t)n) || has_name(now, line, n) ||
            (n == own + 3 && memcmp(line + own, ".h5", 3) == 0))
            continue;
        char *file = tr_sprintf("%.*s%.*s", folder, path, n, line);
        if (file && unlink(file) == 0)
            tr_log(TR_LOG_INFO, "%s is of before and goes", file);
        else if (file && errno != ENOENT)
            tr_log(TR_LOG_WARN, "%s is of before, and cannot be removed: %s", file,
                   strerror(errno));
        tr_free(file);
    }
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

/* ---- Devices --------------------------------------------------------------------------------- */

bool tr_stage_exact(const tr_config *run, bool host)
{
    return host || (!run->train.tf32 && run->run.deterministic == TR_DETERMINISTIC_ON);
}
