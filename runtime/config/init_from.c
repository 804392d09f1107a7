/* model.init_from: a file, or a map with how its arrays become the model's. */
#include "runtime/config/internal.h"

#include <string.h>

#include "runtime/config/patterns.h"

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

/* A map of patterns with what each becomes, or a list of patterns alone. */
typedef struct {
    tr_node_kind kind;
    const char *key, *expected;
} pattern_form;

static const pattern_form map_form = {
    TR_NODE_MAP, "model.init_from.map",
    "a map of patterns, such as {\"backbone.*\": \"*\", \"fc.*\": \"\"}"};
static const pattern_form transpose_form = {TR_NODE_LIST, "model.init_from.transpose",
                                            "a list of patterns, such as [\"*.c_attn.weight\"]"};

static tr_status check_pattern(const tr_node *from, const tr_node *to, const pattern_form *form)
{
    char show[TR_SHOW];
    const tr_node *text = to ? to : from;
    if (text->kind != TR_NODE_SCALAR)
        return tr_node_fail(text, "%s: found %s, expected a name%s", form->key,
                            tr_node_show(text, show), to ? "" : " or a pattern");
    if (stars(from->text) > TR_PATTERN_STARS || (to && stars(to->text) > stars(from->text)))
        return tr_node_fail(from, "%s: \"%s\"%s%s%s: expected at most %d *%s", form->key,
                            from->text, to ? ": \"" : "", to ? to->text : "", to ? "\"" : "",
                            TR_PATTERN_STARS, to ? " on the left, and no more on the right" : "");
    return TR_OK;
}

/* *out: allocated; NULL where nothing is written. */
static tr_status read_patterns(const tr_node *n, const pattern_form *form, tr_init_rule **out,
                               size_t *count)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    if (tr_node_empty(n)) return TR_OK;
    if (n->kind != form->kind)
        return tr_node_fail(n, "%s: found %s, expected %s", form->key, tr_node_show(n, show),
                            form->expected);
    TR_HAVE(*out = tr_alloc(TR_MEM_OTHER, n->count, sizeof **out));
    for (size_t i = 0; i < n->count; i++) {
        const bool map = form->kind == TR_NODE_MAP;
        const tr_node *from = map ? n->keys[i] : n->values[i], *to = map ? n->values[i] : NULL;
        TR_TRY(check_pattern(from, to, form));
        (*out)[i] = (tr_init_rule){from->text, to ? to->text : NULL};
        *count = i + 1;
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
    TR_TRY(read_patterns(w.map, &map_form, &out->rules, &out->nrules));
    st = read_patterns(w.transpose, &transpose_form, &out->transposed, &out->ntransposed);
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
