/* The config as a whole: text, overrides, table, cross-checks; and the way back to text. */
#include "runtime/config/internal.h"
#include "runtime/config/level.h"
#include "runtime/config/schema.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of a file's path, without a slash at its end: "." for a bare name. */
static char *folder_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    if (!slash) return tr_strdup(".");
    if (slash == file) return tr_strdup("/");
    return tr_sprintf("%.*s", (int)(slash - file), file);
}

static char *join(const char *folder, const char *path)
{
    if (*path == '/' || strcmp(folder, ".") == 0) return tr_strdup(path);
    return tr_sprintf("%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", path);
}

static tr_variant_def *copy_stages(const tr_variant_def *stages)
{
    size_t n = 0;
    while (stages && stages[n].name) n++;
    tr_variant_def *copy = tr_alloc(TR_MEM_OTHER, n + 1, sizeof(*copy));
    if (copy && n) memcpy(copy, stages, n * sizeof(*copy));
    return copy;
}

tr_status tr_config_resolve(const char *file, tr_document *doc, const tr_variant_def *stages,
                            tr_config **out)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    tr_config_table table;
    tr_config *c = TR_NEW(TR_MEM_OTHER, tr_config);
    if (!c) return tr_last_status();
    c->stages = copy_stages(stages);
    if (!c->stages) {
        tr_free(c);
        return tr_last_status();
    }
    if (doc->root->kind != TR_NODE_MAP) {
        st = tr_node_fail(doc->root, "found %s, expected a map of keys such as name, data, model",
                          tr_node_show(doc->root, show));
        goto out;
    }
    uint64_t set;
    TR_TRY(tr_level_apply(doc, &set));
    TR_TRY(tr_fields_read(doc->root, tr_config_fields(c->stages, &table), "", c));
    c->run.level_set = set;
    c->document = *doc;
    c->file = tr_strdup(file);
    char *folder = folder_of(file);
    c->directory = folder && c->data.folder ? join(folder, c->data.folder) : folder;
    if (c->directory != folder) tr_free(folder);
    TR_HAVE(c->file && c->directory);
    TR_TRY(tr_config_check(c));
    TR_TRY(tr_memory_check(c));
out:
    if (st != TR_OK) {
        c->document = (tr_document){NULL, NULL}; /* the caller's */
        tr_config_close(c);
        return st;
    }
    *doc = (tr_document){NULL, NULL};
    *out = c;
    return TR_OK;
}

/* The keys of a map, as those of `train`. */
static tr_status set_train(tr_document *doc, const tr_node *map)
{
    tr_status st = TR_OK;
    for (size_t i = 0; map && map->kind == TR_NODE_MAP && i < map->count; i++) {
        tr_node key = *map->keys[i];
        TR_HAVE(key.text = tr_sprintf("train.%s", map->keys[i]->text));
        st = tr_document_set(doc, &key, map->values[i]);
        tr_free(key.text);
        TR_TRY(st);
    }
out:
    return st;
}

/* from: what the text was written out of; NULL: none. */
static tr_status open_text(const char *file, const char *text, size_t nbytes,
                           const tr_document *from, const tr_overrides *o,
                           const tr_variant_def *stages, tr_config **out)
{
    tr_status st = TR_OK;
    tr_document doc = {NULL, NULL};
    TR_TRY(tr_document_parse(file, text, nbytes, &doc));
    if (from && from->root) TR_TRY(tr_document_placed(&doc, from));
    for (size_t i = 0; i < o->count; i++) TR_TRY(tr_document_override(&doc, o->texts[i]));
    TR_TRY(set_train(&doc, o->train));
    TR_TRY(tr_config_resolve(file, &doc, stages, out));
out:
    tr_document_close(&doc);
    return st;
}

tr_status tr_config_open(const char *file, const char *text, size_t nbytes,
                         const char *const *overrides, size_t noverrides,
                         const tr_variant_def *stages, tr_config **out)
{
    const tr_overrides o = {.texts = overrides, .count = noverrides};
    return open_text(file, text, nbytes, NULL, &o, stages, out);
}

tr_status tr_config_reopen(const tr_config *c, const char *text, const tr_overrides *o,
                           tr_config **out)
{
    return open_text(c->file, text, strlen(text), &c->document, o, c->stages, out);
}

void tr_config_close(tr_config *c)
{
    if (!c) return;
    tr_config_table table;
    tr_fields_free(tr_config_fields(c->stages, &table), c);
    tr_normalize_free(c);
    tr_free(c->stages);
    tr_free(c->file);
    tr_free(c->directory);
    tr_document_close(&c->document);
    tr_free(c);
}

/* The copy in a run folder must find the data from there. */
static char *absolute(const char *folder)
{
    char real[PATH_MAX];
    if (realpath(folder, real)) return tr_strdup(real);
    if (*folder == '/' || !getcwd(real, sizeof real)) return tr_strdup(folder);
    return join(real, folder);
}

tr_status tr_config_write(const tr_config *c, FILE *to)
{
    tr_config_table table;
    tr_config resolved = *c;
    resolved.data.folder = absolute(c->directory);
    if (!resolved.data.folder) return tr_last_status();
    tr_status st = tr_fields_write(tr_config_fields(c->stages, &table), &resolved, 0, to);
    tr_free(resolved.data.folder);
    return st;
}

tr_status tr_config_write_with(const tr_config *c, const tr_node *model, FILE *to)
{
    tr_config other = *c;
    tr_status st = tr_fields_read(model, tr_model_fields, "model", &other.model);
    if (st != TR_OK) return st;
    st = tr_config_write(&other, to);
    tr_fields_free(tr_model_fields, &other.model);
    return st;
}

tr_status tr_config_text(const tr_config *c, char **text)
{
    size_t n;
    char *made = NULL;
    FILE *to = open_memstream(&made, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "out of memory for a config");
    tr_status st = tr_config_write(c, to);
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a config");
    if (st == TR_OK)
        *text = made;
    else
        free(made);
    return st;
}

tr_status tr_config_derive(const tr_config *c, const tr_overrides *o, tr_config **out)
{
    char *text = NULL;
    tr_status st = tr_config_text(c, &text);
    if (st == TR_OK) st = tr_config_reopen(c, text, o, out);
    free(text);
    return st;
}

void tr_config_help(const tr_variant_def *stages, FILE *to)
{
    tr_config_table table;
    fputs("# The config\n\nEvery key; what goes into `model.layers` follows at the end. "
          "Overrides on the command line use the same paths: `train.batch=128`. YAML's anchors "
          "(`&name`, `*name`) and merge "
          "keys (`<<: *name`) work; keys that begin with `x-` are left alone, and hold what "
          "anchors name.\n",
          to);
    tr_fields_help(tr_config_fields(stages, &table), "", to);
    tr_level_help(to);
}

char *tr_config_path(const tr_config *c, const char *path)
{
    return join(c->directory, path);
}
