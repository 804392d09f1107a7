/* Overrides: pieces of YAML, from the command line or from another document, put into the tree
 * before anything reads it, so that they pass the same checks as the file. The value is parsed
 * first and the path walked to its end before anything is added: one that fails changes nothing
 * (unless memory is out). */
#include "runtime/config/internal.h"

#include <ctype.h>
#include <string.h>

typedef struct {
    tr_arena *arena;
    tr_place at;       /* of `typed` */
    const char *typed; /* the path, and what may stand behind its end */
    size_t begin, end; /* of the current element in `typed` */
} walk;

static tr_place here(const walk *w)
{
    return (tr_place){w->at.source, w->at.line, w->at.column + (int)w->begin};
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

/* Whether an element of a list goes by this name: it is a word, or a map that begins with it. */
static bool is_named(const tr_node *n, const char *word)
{
    if (n->kind == TR_NODE_SCALAR) return is_word(n) && strcmp(n->text, word) == 0;
    return n->kind == TR_NODE_MAP && n->count > 0 && strcmp(n->keys[0]->text, word) == 0;
}

/* To what stands behind the name of the one element of the list that goes by it. */
static tr_status named_slot(const walk *w, tr_node *list, const char *word, tr_node ***slot)
{
    tr_status st = TR_OK;
    char show[TR_SHOW], path[TR_SHOW];
    size_t found[2], count = 0;
    for (size_t i = 0; i < list->count && count < 2; i++)
        if (is_named(list->values[i], word)) found[count++] = i;
    if (count == 0)
        return tr_place_fail(here(w), "%s is a list: expected an index, found %s", parent(w, path),
                             tr_text_show(word, show));
    if (count > 1)
        return tr_place_fail(here(w), "%s has several elements %s: expected the index of one: %zu",
                             parent(w, path), tr_text_show(word, show), found[0]);
    tr_node **element = &list->values[found[0]];
    if ((*element)->kind == TR_NODE_SCALAR) TR_TRY(make_map(w, element));
    *slot = &(*element)->values[0];
out:
    return st;
}

static tr_status list_slot(const walk *w, tr_node *list, const char *word, tr_node *fresh,
                           tr_node ***slot)
{
    tr_status st = TR_OK;
    char path[TR_SHOW];
    int64_t i;
    if (tr_parse_int(word, &i) != TR_NUMBER_OK || i < 0) return named_slot(w, list, word, slot);
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
    key->override = true;
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
        if (w->end - i == 2 && memcmp(w->typed + i, "<<", 2) == 0)
            return tr_place_fail(here(w), "<< merges maps of a file and is no key of its own");
        if (++*depth > TR_YAML_DEPTH)
            return tr_place_fail(here(w), "nested more than %d deep", TR_YAML_DEPTH);
    }
    w->begin = w->end = 0;
    return TR_OK;
}

/* Puts the value where the path of `nbytes` leads. */
static tr_status put(tr_document *doc, walk *w, size_t nbytes, tr_node *value)
{
    tr_status st = TR_OK;
    char path[TR_PATH];
    tr_node **slot = &doc->root;
    snprintf(path, sizeof path, "%.*s", (int)nbytes, w->typed);
    tr_chosen_forget(doc, path);
    while (w->begin < nbytes) {
        w->end = w->begin + strcspn(w->typed + w->begin, ".=");
        TR_TRY(descend(w, &slot));
        w->begin = w->end + 1;
    }
    *slot = value;
out:
    return st;
}

tr_status tr_document_override(tr_document *doc, const char *assignment)
{
    tr_status st = TR_OK;
    char source[TR_SHOW + 64], show[TR_SHOW];
    tr_node *value = NULL;
    walk w = {.arena = doc->storage, .typed = assignment};
    const char *equals = strchr(assignment, '=');
    int depth = 0;
    tr_text_show(assignment, show);
    if (!equals || equals == assignment)
        return TR_FAIL(TR_USAGE, "command line: expected key.path=value, found %s", show);
    show[strlen(show) - 1] = 0; /* without the quotes */
    snprintf(source, sizeof source, TR_COMMAND_LINE "%s", show + 1);
    TR_TRY(tr_text_check(source, assignment, strlen(assignment)));
    w.at = (tr_place){tr_arena_text(w.arena, source, strlen(source)), 1, 1};
    if (!w.at.source) return tr_last_status();

    TR_TRY(check_path(&w, (size_t)(equals - assignment), &depth));
    TR_TRY(tr_yaml_read(w.arena, w.at.source, equals + 1, strlen(equals + 1), depth, &value));
    TR_TRY(put(doc, &w, (size_t)(equals - assignment), value));
out:
    return st;
}

static int height(const tr_node *n)
{
    int most = 0;
    for (size_t i = 0; i < n->count; i++) {
        const int h = height(n->values[i]);
        most = h > most ? h : most;
    }
    return most + 1;
}

tr_status tr_document_set(tr_document *doc, const tr_node *key, const tr_node *value)
{
    tr_status st = TR_OK;
    tr_node *copy = NULL;
    size_t budget = TR_YAML_EXPANDED;
    walk w = {
        .arena = doc->storage, .typed = key->text, .at = {key->source, key->line, key->column}};
    int depth = 0;
    if (strchr(key->text, '='))
        return tr_place_fail(w.at, "expected a key's path, without a \"=\"");
    TR_TRY(check_path(&w, strlen(key->text), &depth));
    if (depth + height(value) > TR_YAML_DEPTH)
        return tr_place_fail(w.at, "nested more than %d deep", TR_YAML_DEPTH);
    TR_TRY(tr_node_copy(w.arena, value, w.at, &budget, &copy));
    TR_TRY(put(doc, &w, strlen(key->text), copy));
out:
    return st;
}
