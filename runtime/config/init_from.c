/* model.init_from: a file, or a map with how its arrays become the model's. */
#include "runtime/config/internal.h"

#include <string.h>

typedef struct {
    char *file;
    bool strict;
    const tr_node *map, *transpose;
} written;

static const tr_field fields[] = {
    TR_TEXT("file", offsetof(written, file), NULL, "relative to the config file, as data is"),
    TR_BOOL("strict", offsetof(written, strict), "true",
            "every parameter and state of the model, and every array of the file"),
    TR_NODE("map", offsetof(written, map), "", "patterns of names"),
    TR_NODE("transpose", offsetof(written, transpose), "", "patterns of names"),
    TR_END,
};

static size_t stars(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += *text == '*';
    return n;
}

static tr_status read_rules(const tr_node *map, tr_init_from *out)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    if (tr_node_empty(map)) return TR_OK;
    if (map->kind != TR_NODE_MAP)
        return tr_node_fail(map,
                            "model.init_from.map: found %s, expected a map of patterns, such as "
                            "{\"backbone.*\": \"*\", \"fc.*\": \"\"}",
                            tr_node_show(map, show));
    TR_HAVE(out->rules = tr_alloc(TR_MEM_OTHER, map->count, sizeof *out->rules));
    for (size_t i = 0; i < map->count; i++) {
        const tr_node *from = map->keys[i], *to = map->values[i];
        if (to->kind != TR_NODE_SCALAR)
            return tr_node_fail(to, "model.init_from.map: found %s, expected a name",
                                tr_node_show(to, show));
        if (stars(from->text) > TR_PATTERN_STARS || stars(to->text) > stars(from->text))
            return tr_node_fail(from,
                                "model.init_from.map: \"%s\": \"%s\": expected at most %d * on the "
                                "left, and no more on the right",
                                from->text, to->text, TR_PATTERN_STARS);
        out->rules[i].from = from->text;
        out->rules[i].to = to->text;
        out->nrules++;
    }
out:
    return st;
}

static tr_status read_transposed(const tr_node *list, tr_init_from *out)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    if (tr_node_empty(list)) return TR_OK;
    if (list->kind != TR_NODE_LIST)
        return tr_node_fail(list,
                            "model.init_from.transpose: found %s, expected a list of patterns, "
                            "such as [\"*.c_attn.weight\"]",
                            tr_node_show(list, show));
    TR_HAVE(out->transposed = tr_alloc(TR_MEM_OTHER, list->count, sizeof *out->transposed));
    for (size_t i = 0; i < list->count; i++) {
        const tr_node *name = list->values[i];
        if (name->kind != TR_NODE_SCALAR || stars(name->text) > TR_PATTERN_STARS)
            return tr_node_fail(name,
                                "model.init_from.transpose: found %s, expected a name with at most "
                                "%d *",
                                tr_node_show(name, show), TR_PATTERN_STARS);
        out->transposed[out->ntransposed++] = name->text;
    }
out:
    return st;
}

tr_status tr_config_init_from(const tr_config *c, tr_init_from *out)
{
    const tr_node *n = c->model.init_from;
    tr_status st = TR_OK;
    char show[TR_SHOW];
    written w = {.file = NULL};
    *out = (tr_init_from){.strict = true};
    if (tr_node_empty(n)) return TR_OK;
    if (n->kind == TR_NODE_LIST)
        return tr_node_fail(n, "model.init_from: found %s, expected a file, or a map with one",
                            tr_node_show(n, show));
    if (n->kind == TR_NODE_SCALAR) {
        TR_HAVE(out->file = tr_strdup(n->text));
        return TR_OK;
    }
    TR_TRY(tr_fields_read(n, fields, "model.init_from", &w));
    if (!*w.file) {
        st = tr_node_fail(n, "model.init_from.file: expected a file, found \"\"");
        goto out;
    }
    out->file = w.file;
    out->strict = w.strict;
    w.file = NULL;
    TR_TRY(read_rules(w.map, out));
    st = read_transposed(w.transpose, out);
out:
    tr_free(w.file);
    if (st != TR_OK) tr_init_from_free(out);
    return st;
}

void tr_init_from_free(tr_init_from *o)
{
    tr_free(o->file);
    tr_free(o->rules);
    tr_free(o->transposed);
    *o = (tr_init_from){.strict = true};
}
