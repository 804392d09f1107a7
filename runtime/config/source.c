/* What data.train and data.eval say by convention: a file's format by its name, and which file or
 * dataset is which input of the model. */
#include "runtime/config/internal.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

int tr_source_format(const char *file)
{
    const char *base = strrchr(file, '/');
    base = base ? base + 1 : file;
    if (ends_with(base, ".h5") || ends_with(base, ".hdf5")) return TR_FORMAT_HDF5;
    if (ends_with(base, ".npy")) return TR_FORMAT_NPY;
    if (ends_with(base, ".npz")) return TR_FORMAT_NPZ;
    if (ends_with(base, ".csv") || ends_with(base, ".tsv")) return TR_FORMAT_CSV;
    if (ends_with(base, ".txt")) return TR_FORMAT_TEXT;
    if (ends_with(base, ".bin")) return TR_FORMAT_CIFAR10;
    if (ends_with(base, "-ubyte") || ends_with(base, ".gz") || strstr(base, ".idx"))
        return TR_FORMAT_IDX;
    return TR_FORMAT_AUTO;
}

const char *tr_source_delimiter(const char *file)
{
    return ends_with(file, ".tsv") ? "\t" : ",";
}

int tr_source_kind(const tr_config *c, const tr_source_config *s)
{
    struct stat info;
    if (s->format != TR_FORMAT_AUTO || !s->path) return s->format;
    const int format = tr_source_format(s->path);
    char *path = format == TR_FORMAT_AUTO ? tr_config_path(c, s->path) : NULL;
    /* with a training folder, what is not there (any more) was one, too */
    const bool folder = path && (stat(path, &info) == 0 ? S_ISDIR(info.st_mode)
                                                        : c->data.train.format == TR_FORMAT_FOLDER);
    tr_free(path);
    return folder ? TR_FORMAT_FOLDER : format;
}

static bool is_name(const tr_node *n)
{
    return n->kind == TR_NODE_SCALAR && !tr_node_empty(n);
}

size_t tr_input_names(const tr_config *c, const char *names[TR_YAML_KEYS])
{
    const tr_node *named = c->model.inputs;
    names[0] = "input";
    for (size_t i = 0; named && i < named->count; i++) names[i] = named->keys[i]->text;
    return named ? named->count : 1;
}

tr_status tr_input_check(const tr_node *key, const char *path, const char *const *names,
                         size_t count)
{
    char show[TR_SHOW];
    for (size_t k = 0; k < count; k++)
        if (strcmp(names[k], key->text) == 0) return TR_OK;
    const char *near = tr_nearest(key->text, names, count);
    return tr_node_fail(key, "%s: the model has no input %s%s%s%s", path,
                        tr_text_show(key->text, show), near ? "; did you mean \"" : "",
                        near ? near : "", near ? "\"?" : "");
}

/* A map: every key is an input's name, every value a text. */
static tr_status check_map(const tr_node *map, const char *path, const char *const *names,
                           size_t count)
{
    char show[TR_SHOW];
    for (size_t i = 0; i < map->count; i++) {
        const tr_status st = tr_input_check(map->keys[i], path, names, count);
        if (st != TR_OK) return st;
        if (!is_name(map->values[i]))
            return tr_node_fail(map->values[i], "%s.%s: found %s, expected a text", path,
                                map->keys[i]->text, tr_node_show(map->values[i], show));
    }
    return TR_OK;
}

tr_status tr_source_inputs(const tr_source_config *s, const char *block, const char *const *names,
                           size_t count, const char **out)
{
    char path[TR_PATH], show[TR_SHOW];
    const tr_node *n = tr_node_empty(s->inputs) ? NULL : s->inputs;
    tr_path_join(block, "inputs", path);
    for (size_t k = 0; k < count; k++) out[k] = NULL;
    if (!n) return TR_OK;
    if (n->kind == TR_NODE_SCALAR && count == 1) {
        out[0] = n->text;
        return TR_OK;
    }
    if (n->kind != TR_NODE_MAP)
        return tr_node_fail(n, "%s: found %s, expected %s", path, tr_node_show(n, show),
                            count == 1 ? "a text"
                                       : "a map with a text for each of the model's inputs");
    const tr_status st = check_map(n, path, names, count);
    if (st != TR_OK) return st;
    for (size_t k = 0; k < count; k++) {
        const tr_node *v = tr_node_get(n, names[k]);
        if (!v)
            return tr_node_fail(n, "%s: the model's input %s is missing", path,
                                tr_text_show(names[k], show));
        out[k] = v->text;
    }
    return TR_OK;
}
