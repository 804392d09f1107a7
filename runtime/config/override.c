/* key.path=value: an override is a piece of YAML put into the tree before anything reads it, so it
 * passes the same checks as the file. The value is parsed first and the path walked to its end
 * before anything is added: one that fails changes nothing (unless memory is out). */
#include "runtime/config/internal.h"

#include <ctype.h>
#include <string.h>

typedef struct {
    tr_arena *arena;
    const char *source; /* "command line: " and the override as typed */
    const char *typed;
    size_t begin, end; /* of the current element in `typed` */
} walk;

static tr_place here(const walk *w)
{
    return (tr_place){w->source, 1, (int)w->begin + 1};
}

/* What stands before the current element, for errors. */
static const char *parent(const walk *w, char buf[TR_SHOW])
{
    char path[TR_PATH];
    if (w->begin == 0) return "the config";
    snprintf(path, sizeof path, "%.*s", (int)w->begin - 1, w->typed);
    return tr_text_show(path, buf);
}

static bool is_word(const tr_node *n)
{
    if (n->quoted || !isalpha((unsigned char)*n->text)) return false;
    for (const char *p = n->text; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '_') return false;
    return true;
}

/* `optimizer: adamw` is `optimizer: {adamw: {}}`; nothing at all is {}. Others have no keys. */
static tr_status make_map(const walk *w, tr_node **slot)
{
    tr_status st = TR_OK;
    char show[TR_SHOW], path[TR_SHOW];
    tr_node *old = *slot;
    tr_place at = {old->source, old->line, old->column};
    bool empty = tr_node_empty(old);
    if (!empty && !is_word(old))
        return tr_place_fail(here(w), "%s is %s, not a map", parent(w, path),
                             tr_node_show(old, show));
    tr_node *map = tr_node_new(w->arena, TR_NODE_MAP, at);
    if (!map) return tr_last_status();
    if (!empty) {
        tr_node *none = tr_node_scalar(w->arena, at, "", 0, false);
        if (!none) return tr_last_status();
        TR_TRY(tr_node_add(w->arena, map, old, none));
    }
    *slot = map;
out:
    return st;
}

static tr_status list_slot(const walk *w, tr_node *list, const char *word, tr_node *fresh,
                           tr_node ***slot)
{
    tr_status st = TR_OK;
    char show[TR_SHOW], path[TR_SHOW];
    int64_t i;
    if (tr_parse_int(word, &i) != TR_NUMBER_OK || i < 0)
        return tr_place_fail(here(w), "%s is a list: expected an index, found %s", parent(w, path),
                             tr_text_show(word, show));
    if ((uint64_t)i > list->count)
        return tr_place_fail(here(w), "index %lld is past the end of %s, which has %zu elements",
                             (long long)i, parent(w, path), list->count);
    if ((uint64_t)i == list->count) TR_TRY(tr_node_add(w->arena, list, NULL, fresh));
    *slot = &list->values[i];
out:
    return st;
}

/* From the node at *slot to its child named by the current element, which is made if need be. */
static tr_status descend(const walk *w, tr_node ***slot)
{
    tr_status st = TR_OK;
    char word[TR_YAML_KEY + 1];
    size_t length = w->end - w->begin;
    memcpy(word, w->typed + w->begin, length);
    word[length] = 0;

    tr_node *fresh = tr_node_scalar(w->arena, here(w), "", 0, false);
    tr_node *key = tr_node_scalar(w->arena, here(w), word, length, false);
    if (!fresh || !key) return tr_last_status();
    if ((**slot)->kind == TR_NODE_SCALAR) TR_TRY(make_map(w, *slot));
    tr_node *n = **slot;
    if (n->kind == TR_NODE_LIST) return list_slot(w, n, word, fresh, slot);
    size_t i = tr_node_index(n, word);
    if (i == SIZE_MAX) {
        if (n->count >= TR_YAML_KEYS)
            return tr_place_fail(here(w), "more than %d keys in one map", TR_YAML_KEYS);
        i = n->count;
        TR_TRY(tr_node_add(w->arena, n, key, fresh));
    }
    *slot = &n->values[i];
out:
    return st;
}

static tr_status check_path(walk *w, size_t nbytes, int *depth)
{
    for (size_t i = 0; i <= nbytes; i = w->end + 1) {
        w->begin = i;
        w->end = i + strcspn(w->typed + i, ".=");
        if (w->end == i) return tr_place_fail(here(w), "an empty name in the path");
        if (w->end - i > TR_YAML_KEY)
            return tr_place_fail(here(w), "a name of %zu bytes in the path", w->end - i);
        if (++*depth > TR_YAML_DEPTH)
            return tr_place_fail(here(w), "nested more than %d deep", TR_YAML_DEPTH);
    }
    w->begin = w->end = 0;
    return TR_OK;
}

tr_status tr_document_override(tr_document *doc, const char *assignment)
{
    tr_status st = TR_OK;
    char source[TR_SHOW + 64], show[TR_SHOW];
    tr_node *value = NULL, **slot = &doc->root;
    walk w = {.arena = doc->storage, .typed = assignment};
    const char *equals = strchr(assignment, '=');
    int depth = 0;
    tr_text_show(assignment, show);
    if (!equals || equals == assignment)
        return TR_FAIL(TR_USAGE, "command line: expected key.path=value, found %s", show);
    show[strlen(show) - 1] = 0; /* without the quotes */
    snprintf(source, sizeof source, TR_COMMAND_LINE "%s", show + 1);
    TR_TRY(tr_text_check(source, assignment, strlen(assignment)));
    w.source = tr_arena_text(w.arena, source, strlen(source));
    if (!w.source) return tr_last_status();

    TR_TRY(check_path(&w, (size_t)(equals - assignment), &depth));
    TR_TRY(tr_yaml_read(w.arena, w.source, equals + 1, strlen(equals + 1), depth, &value));
    while (w.begin < (size_t)(equals - assignment)) {
        w.end = w.begin + strcspn(assignment + w.begin, ".=");
        TR_TRY(descend(&w, &slot));
        w.begin = w.end + 1;
    }
    *slot = value;
out:
    return st;
}
