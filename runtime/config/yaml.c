/* YAML to nodes, on libyaml's events. Here is what libyaml leaves to its caller: anchors, aliases
 * (copied, so that the tree is a tree) and merge keys are resolved, duplicate keys found, and
 * everything that a hostile file could make grow is bounded. Cost: linear, but for the search of
 * duplicates, quadratic in the keys of one map (at most TR_YAML_KEYS). */
#include "runtime/config/internal.h"

#include <string.h>
#include <yaml.h>

typedef struct {
    const char *name;
    tr_node *node; /* NULL while the node is still being read */
} anchor;

typedef struct {
    yaml_parser_t parser;
    yaml_event_t event;
    bool have_event;
    tr_arena *arena;
    const char *source, *text;
    size_t nbytes;
    anchor *anchors;
    size_t nanchors;
    size_t budget; /* nodes that aliases may still make */
} reader;

static tr_place place(const reader *r, yaml_mark_t m)
{
    return (tr_place){r->source, (int)m.line + 1, (int)m.column + 1};
}

/* The byte at a mark: marks count characters, lines as in tr_text_check. */
static char byte_at(const reader *r, yaml_mark_t m)
{
    size_t chars = 0, i = 0;
    while (i < r->nbytes && chars < m.index) {
        i++;
        while (i < r->nbytes && (r->text[i] & 0xc0) == 0x80) i++;
        chars++;
    }
    return i < r->nbytes ? r->text[i] : 0;
}

static tr_status syntax_error(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return TR_FAIL(TR_MEMORY, "out of memory while parsing %s", r->source);
    tr_place at = place(r, p->problem_mark);
    const char *problem = p->problem ? p->problem : "unreadable";
    if (p->error == YAML_READER_ERROR) return tr_place_fail(at, "not valid YAML: %s", problem);
    if (byte_at(r, p->problem_mark) == '\t')
        return tr_place_fail(at, "a tab stands where YAML allows only spaces");
    if (p->context)
        return tr_place_fail(at, "not valid YAML: %s (%s from line %d)", problem, p->context,
                             (int)p->context_mark.line + 1);
    return tr_place_fail(at, "not valid YAML: %s", problem);
}

static tr_status next(reader *r)
{
    if (r->have_event) yaml_event_delete(&r->event);
    r->have_event = false;
    if (!yaml_parser_parse(&r->parser, &r->event)) return syntax_error(r);
    r->have_event = true;
    return TR_OK;
}

static tr_status open_anchor(reader *r, const yaml_char_t *name, tr_place at, anchor **out)
{
    *out = NULL;
    if (!name) return TR_OK;
    if (r->nanchors == TR_YAML_ANCHORS)
        return tr_place_fail(at, "more than %d anchors", TR_YAML_ANCHORS);
    anchor *a = &r->anchors[r->nanchors];
    a->name = tr_arena_text(r->arena, (const char *)name, strlen((const char *)name));
    if (!a->name) return tr_last_status();
    a->node = NULL;
    r->nanchors++;
    *out = a;
    return TR_OK;
}

static tr_status read_alias(reader *r, tr_place at, tr_node **out)
{
    char show[TR_SHOW];
    const char *name = (const char *)r->event.data.alias.anchor;
    for (size_t i = r->nanchors; i-- > 0;) { /* the newest of that name */
        if (strcmp(r->anchors[i].name, name) != 0) continue;
        if (!r->anchors[i].node)
            return tr_place_fail(at, "alias %s stands inside what it refers to",
                                 tr_text_show(name, show));
        return tr_node_copy(r->arena, r->anchors[i].node, at, &r->budget, out);
    }
    return tr_place_fail(at, "alias %s refers to no anchor above it", tr_text_show(name, show));
}

static tr_status read_scalar(reader *r, tr_place at, tr_node **out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    size_t nbytes = r->event.data.scalar.length;
    if (memchr(text, 0, nbytes)) return tr_place_fail(at, "a NUL character in a text");
    /* Text of several lines is a string in whatever style: only quotes can write it again. */
    bool quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (memchr(text, '\n', nbytes) || strstr(text, "\xc2\x85") || strstr(text, "\xe2\x80\xa8") ||
        strstr(text, "\xe2\x80\xa9"))
        quoted = true;
    *out = tr_node_scalar(r->arena, at, text, nbytes, quoted);
    return *out ? TR_OK : tr_last_status();
}

static tr_status read_node(reader *r, int depth, tr_node **out);

static tr_status read_list(reader *r, int depth, tr_node *list)
{
    tr_status st = TR_OK;
    for (;;) {
        tr_node *value = NULL;
        TR_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        TR_TRY(read_node(r, depth + 1, &value));
        TR_TRY(tr_node_add(r->arena, list, NULL, value));
    }
out:
    return st;
}

static tr_status read_key(reader *r, const tr_node *map, tr_node **out)
{
    char show[TR_SHOW];
    tr_node *key = NULL;
    tr_place at = place(r, r->event.start_mark);
    if (r->event.type != YAML_SCALAR_EVENT || r->event.data.scalar.anchor)
        return tr_place_fail(at, "a key must be a plain word");
    tr_status st = read_scalar(r, at, &key);
    if (st != TR_OK) return st;
    if (!*key->text) return tr_place_fail(at, "an empty key");
    if (strlen(key->text) > TR_YAML_KEY)
        return tr_place_fail(at, "a key of %zu bytes", strlen(key->text));
    size_t first = tr_node_index(map, key->text);
    if (first != SIZE_MAX)
        return tr_place_fail(at, "key %s stands twice; it is already at %d:%d",
                             tr_text_show(key->text, show), map->keys[first]->line,
                             map->keys[first]->column);
    if (map->count >= TR_YAML_KEYS)
        return tr_place_fail(at, "more than %d keys in one map", TR_YAML_KEYS);
    *out = key;
    return TR_OK;
}

/* Adds what `map` does not have yet: its own keys win over merged ones, earlier maps over later. */
static tr_status merge(reader *r, const tr_node *from, tr_node *map)
{
    tr_status st = TR_OK;
    char show[TR_SHOW];
    tr_place at = {from->source, from->line, from->column};
    if (from->kind != TR_NODE_MAP)
        return tr_node_fail(from, "<< takes a map or a list of maps, found %s",
                            tr_node_show(from, show));
    for (size_t i = 0; i < from->count; i++) {
        if (tr_node_index(map, from->keys[i]->text) != SIZE_MAX) continue;
        if (map->count >= TR_YAML_KEYS)
            return tr_place_fail(at, "more than %d keys in one map", TR_YAML_KEYS);
        TR_TRY(tr_node_add(r->arena, map, from->keys[i], from->values[i]));
    }
out:
    return st;
}

static tr_status read_map(reader *r, int depth, tr_node *map)
{
    tr_status st = TR_OK;
    tr_node *merges = NULL;
    for (;;) {
        tr_node *key = NULL, *value = NULL;
        TR_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        TR_TRY(read_key(r, map, &key));
        TR_TRY(next(r));
        TR_TRY(read_node(r, depth + 1, &value));
        if (strcmp(key->text, "<<") == 0 && !key->quoted) {
            if (merges) {
                st = tr_node_fail(key, "<< stands twice: give it a list of maps");
                goto out;
            }
            merges = value;
        } else {
            TR_TRY(tr_node_add(r->arena, map, key, value));
        }
    }
    if (merges && merges->kind == TR_NODE_LIST) {
        for (size_t i = 0; i < merges->count; i++) TR_TRY(merge(r, merges->values[i], map));
    } else if (merges) {
        TR_TRY(merge(r, merges, map));
    }
out:
    return st;
}

/* The node that starts with the current event; ends on its last event. */
static tr_status read_node(reader *r, int depth, tr_node **out)
{
    tr_status st = TR_OK;
    tr_place at = place(r, r->event.start_mark);
    tr_node *n = NULL;
    anchor *mark = NULL;
    const yaml_char_t *tag = NULL, *name = NULL;
    yaml_event_type_t type = r->event.type;
    if (depth > TR_YAML_DEPTH) {
        st = tr_place_fail(at, "nested more than %d deep", TR_YAML_DEPTH);
        goto out;
    }
    if (type == YAML_SCALAR_EVENT) {
        tag = r->event.data.scalar.tag;
        name = r->event.data.scalar.anchor;
    } else if (type == YAML_SEQUENCE_START_EVENT) {
        tag = r->event.data.sequence_start.tag;
        name = r->event.data.sequence_start.anchor;
    } else if (type == YAML_MAPPING_START_EVENT) {
        tag = r->event.data.mapping_start.tag;
        name = r->event.data.mapping_start.anchor;
    }
    if (tag) {
        char show[TR_SHOW];
        st = tr_place_fail(at, "tag %s: a config has no tags",
                           tr_text_show((const char *)tag, show));
        goto out;
    }
    TR_TRY(open_anchor(r, name, at, &mark));
    if (type == YAML_ALIAS_EVENT) {
        TR_TRY(read_alias(r, at, &n));
    } else if (type == YAML_SCALAR_EVENT) {
        TR_TRY(read_scalar(r, at, &n));
    } else {
        bool map = type == YAML_MAPPING_START_EVENT;
        n = tr_node_new(r->arena, map ? TR_NODE_MAP : TR_NODE_LIST, at);
        TR_HAVE(n);
        TR_TRY(map ? read_map(r, depth, n) : read_list(r, depth, n));
    }
    if (mark) mark->node = n;
    *out = n;
out:
    return st;
}

tr_status tr_yaml_read(tr_arena *a, const char *source, const char *text, size_t nbytes, int depth,
                       tr_node **out)
{
    tr_status st = TR_OK;
    tr_node *root = NULL;
    if (nbytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
        text += 3;
        nbytes -= 3;
    }
    reader r = {
        .arena = a, .source = source, .text = text, .nbytes = nbytes, .budget = TR_YAML_EXPANDED};
    TR_TRY(tr_text_check(source, text, nbytes));
    r.anchors = tr_alloc(TR_MEM_OTHER, TR_YAML_ANCHORS, sizeof(anchor));
    if (!r.anchors || !yaml_parser_initialize(&r.parser)) {
        st = TR_FAIL(TR_MEMORY, "out of memory while parsing %s", source);
        tr_free(r.anchors);
        return st;
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, nbytes);
    TR_TRY(next(&r)); /* stream start */
    TR_TRY(next(&r));
    if (r.event.type == YAML_STREAM_END_EVENT) {
        root = tr_node_scalar(a, (tr_place){source, 1, 1}, "", 0, false);
        TR_HAVE(root);
        goto out;
    }
    TR_TRY(next(&r)); /* past the document's start */
    TR_TRY(read_node(&r, depth, &root));
    TR_TRY(next(&r)); /* the document's end */
    TR_TRY(next(&r));
    if (r.event.type != YAML_STREAM_END_EVENT)
        st = tr_place_fail(place(&r, r.event.start_mark), "a second document: a config is one");
out:
    if (r.have_event) yaml_event_delete(&r.event);
    if (r.anchors) {
        yaml_parser_delete(&r.parser);
        tr_free(r.anchors);
    }
    if (st == TR_OK) *out = root;
    return st;
}

tr_status tr_document_parse(const char *source, const char *text, size_t nbytes, tr_document *out)
{
    tr_status st = TR_OK;
    tr_document doc = {NULL, NULL};
    tr_arena *a = tr_arena_open();
    if (!a) return tr_last_status();
    doc.storage = a;
    const char *name = tr_arena_text(a, source, strlen(source));
    TR_HAVE(name);
    TR_TRY(tr_yaml_read(a, name, text, nbytes, 0, &doc.root));
out:
    if (st != TR_OK) {
        tr_document_close(&doc);
        return st;
    }
    *out = doc;
    return TR_OK;
}

void tr_document_close(tr_document *doc)
{
    tr_arena_close(doc->storage);
    doc->root = NULL;
    doc->storage = NULL;
}
