/* Nodes and the arena that owns them. A document's nodes live and die together, so they are cut
 * from chunks and freed at once; arrays of children double within the arena (at most twice the
 * space). */
#include "runtime/config/internal.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/visible.h"

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
} chunk;

struct tr_arena {
    chunk *chunks;
};

#define CHUNK_BYTES 16384
#define CHUNK_HEAD  ((sizeof(chunk) + 15) / 16 * 16)

tr_arena *tr_arena_open(void)
{
    return TR_NEW(TR_MEM_OTHER, tr_arena);
}

void tr_arena_close(tr_arena *a)
{
    if (!a) return;
    for (chunk *c = a->chunks; c;) {
        chunk *next = c->next;
        tr_free(c);
        c = next;
    }
    tr_free(a);
}

void *tr_arena_get(tr_arena *a, size_t nbytes)
{
    size_t need = tr_align_up(nbytes ? nbytes : 1, 16);
    chunk *c = a->chunks;
    if (!c || c->size - c->used < need) {
        size_t size = need > CHUNK_BYTES - CHUNK_HEAD ? need + CHUNK_HEAD : CHUNK_BYTES;
        c = tr_alloc(TR_MEM_OTHER, size, 1);
        if (!c) return NULL;
        c->size = size;
        c->used = CHUNK_HEAD;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = (char *)c + c->used;
    c->used += need;
    return p;
}

char *tr_arena_text(tr_arena *a, const char *text, size_t nbytes)
{
    char *p = tr_arena_get(a, nbytes + 1);
    if (p && nbytes) memcpy(p, text, nbytes);
    return p;
}

/* ---- Nodes --------------------------------------------------------------------------------- */

tr_node *tr_node_new(tr_arena *a, tr_node_kind kind, tr_place at)
{
    tr_node *n = tr_arena_get(a, sizeof *n);
    if (!n) return NULL;
    n->kind = kind;
    n->source = at.source;
    n->line = at.line;
    n->column = at.column;
    return n;
}

tr_node *tr_node_scalar(tr_arena *a, tr_place at, const char *text, size_t nbytes, bool quoted)
{
    tr_node *n = tr_node_new(a, TR_NODE_SCALAR, at);
    if (!n) return NULL;
    n->text = tr_arena_text(a, text, nbytes);
    n->quoted = quoted;
    return n->text ? n : NULL;
}

/* Arrays hold 4, 8, 16, ... pointers: full exactly when the count is such a number. */
static tr_status grow(tr_arena *a, tr_node ***array, size_t count)
{
    if (count != 0 && (count < 4 || (count & (count - 1)))) return TR_OK;
    tr_node **wider = tr_arena_get(a, (count ? 2 * count : 4) * sizeof(**array));
    if (!wider) return tr_last_status();
    if (count) memcpy(wider, *array, count * sizeof(**array));
    *array = wider;
    return TR_OK;
}

tr_status tr_node_add(tr_arena *a, tr_node *to, tr_node *key, tr_node *value)
{
    tr_status st = TR_OK;
    if (key) TR_TRY(grow(a, &to->keys, to->count));
    TR_TRY(grow(a, &to->values, to->count));
    if (key) to->keys[to->count] = key;
    to->values[to->count++] = value;
out:
    return st;
}

tr_status tr_node_copy(tr_arena *a, const tr_node *from, tr_place at, size_t *budget, tr_node **out)
{
    tr_status st = TR_OK;
    tr_place where = {from->source, from->line, from->column};
    if (*budget == 0)
        return tr_place_fail(at, "aliases expand to more than %d nodes", TR_YAML_EXPANDED);
    --*budget;
    tr_node *n;
    if (from->kind == TR_NODE_SCALAR) {
        n = tr_node_scalar(a, where, from->text, strlen(from->text), from->quoted);
    } else {
        n = tr_node_new(a, from->kind, where);
    }
    if (!n) return tr_last_status();
    for (size_t i = 0; i < from->count; i++) {
        tr_node *key = NULL, *value = NULL;
        if (from->keys) TR_TRY(tr_node_copy(a, from->keys[i], at, budget, &key));
        TR_TRY(tr_node_copy(a, from->values[i], at, budget, &value));
        TR_TRY(tr_node_add(a, n, key, value));
    }
    *out = n;
out:
    return st;
}

size_t tr_node_index(const tr_node *map, const char *key)
{
    if (!map || map->kind != TR_NODE_MAP) return SIZE_MAX;
    for (size_t i = 0; i < map->count; i++)
        if (strcmp(map->keys[i]->text, key) == 0) return i;
    return SIZE_MAX;
}

void tr_document_drop(tr_document *doc, const char *path)
{
    tr_node *map = doc->root;
    char key[TR_YAML_KEY + 1];
    size_t n;
    for (; path[n = strcspn(path, ".")]; path += n + 1) {
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        const size_t i = tr_node_index(map, key);
        if (i == SIZE_MAX) return;
        map = map->values[i];
    }
    if (map->kind != TR_NODE_MAP) return;
    n = 0;
    for (size_t i = 0; i < map->count; i++) {
        if (strcmp(map->keys[i]->text, path) == 0) continue;
        map->keys[n] = map->keys[i];
        map->values[n++] = map->values[i];
    }
    map->count = n;
}

const tr_node *tr_node_get(const tr_node *map, const char *key)
{
    size_t i = tr_node_index(map, key);
    return i == SIZE_MAX ? NULL : map->values[i];
}

static const tr_node *item_named(const tr_node *list, const char *word)
{
    for (size_t i = 0; i < list->count; i++) {
        const tr_node *n = list->values[i], *behind = tr_node_get(n, word);
        if (behind) return behind;
        if (n->kind == TR_NODE_SCALAR && strcmp(n->text, word) == 0) return n;
    }
    return NULL;
}

static const tr_node *child_at(const tr_node *n, const char *word, bool root)
{
    if (n->kind == TR_NODE_LIST && !word[strspn(word, "0123456789")]) {
        const unsigned long i = strtoul(word, NULL, 10);
        return *word && i < n->count ? n->values[i] : NULL;
    }
    if (n->kind == TR_NODE_LIST) return item_named(n, word);
    const tr_node *child = tr_node_get(n, word);
    if (!child && !root && n->count == 1) child = tr_node_get(n->values[0], word);
    return child;
}

const tr_node *tr_node_at(const tr_node *root, const char *path, const tr_node **nearest)
{
    const tr_node *n = root, *last = root;
    while (n && *path) {
        char word[TR_YAML_KEY + 1];
        const size_t length = strcspn(path, ".");
        const bool whole = snprintf(word, sizeof word, "%.*s", (int)length, path) < TR_YAML_KEY + 1;
        n = whole ? child_at(n, word, n == root) : NULL;
        if (n) last = n;
        path += length + (path[length] == '.');
    }
    if (nearest) *nearest = last;
    return n;
}

bool tr_node_empty(const tr_node *n)
{
    if (!n) return true;
    if (n->kind != TR_NODE_SCALAR || n->quoted) return false;
    return !*n->text || strcmp(n->text, "~") == 0 || strcmp(n->text, "null") == 0;
}

/* ---- Errors -------------------------------------------------------------------------------- */

static void unline(tr_node *n)
{
    n->line = n->column = 0;
    for (size_t i = 0; i < n->count; i++) {
        if (n->keys) unline(n->keys[i]);
        unline(n->values[i]);
    }
}

void tr_document_written(tr_document *doc)
{
    unline(doc->root);
}

typedef struct {
    tr_arena *to;
    const char *was, *is; /* the source that was last met, and the copy of it */
} sources;

static tr_status place(sources *s, tr_node *n, const tr_node *at, bool same)
{
    const bool alike = same && n->kind == at->kind && (n->keys || n->count == at->count);
    tr_status st = TR_OK;
    if (s->was != at->source) {
        TR_HAVE(s->is = tr_arena_text(s->to, at->source, strlen(at->source)));
        s->was = at->source;
    }
    n->source = s->is;
    n->line = at->line;
    n->column = at->column;
    for (size_t i = 0; i < n->count; i++) {
        const size_t k = !alike ? SIZE_MAX : n->keys ? tr_node_index(at, n->keys[i]->text) : i;
        if (n->keys) TR_TRY(place(s, n->keys[i], k == SIZE_MAX ? at : at->keys[k], false));
        TR_TRY(place(s, n->values[i], k == SIZE_MAX ? at : at->values[k], k != SIZE_MAX));
    }
out:
    return st;
}

tr_status tr_document_placed(tr_document *doc, const tr_document *from)
{
    sources s = {.to = doc->storage};
    return place(&s, doc->root, from->root, true);
}

/* Nor has the command line any lines: its source, the override as typed, is place enough. */
static bool has_lines(tr_place at)
{
    return at.line > 0 && strncmp(at.source, TR_COMMAND_LINE, strlen(TR_COMMAND_LINE)) != 0;
}

char *tr_node_place(const tr_node *n)
{
    return has_lines((tr_place){n->source, n->line, n->column})
               ? tr_sprintf("%s:%d:%d", n->source, n->line, n->column)
               : tr_strdup(n->source);
}

static tr_status blame(tr_place at, tr_status st)
{
    return has_lines(at) ? tr_fail_place(st, "%s:%d:%d", at.source, at.line, at.column)
                         : tr_fail_place(st, "%s", at.source);
}

tr_status tr_node_blame(const tr_node *at, tr_status st)
{
    return at ? blame((tr_place){at->source, at->line, at->column}, st) : st;
}

static tr_status fail(tr_place at, const char *fmt, va_list args)
{
    char text[TR_ERROR_TEXT];
    vsnprintf(text, sizeof text, fmt, args);
    return blame(at, TR_FAIL(TR_CONFIG, "%s", text));
}

tr_status tr_place_fail(tr_place at, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tr_status st = fail(at, fmt, args);
    va_end(args);
    return st;
}

tr_status tr_node_fail(const tr_node *at, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tr_status st = fail((tr_place){at->source, at->line, at->column}, fmt, args);
    va_end(args);
    return st;
}

const char *tr_text_show(const char *text, char buf[TR_SHOW])
{
    size_t o = 0, left = strlen(text);
    char shown[TR_VISIBLE];
    buf[o++] = '"';
    for (size_t n; left; text += n, left -= n) {
        n = tr_visible_next(text, left, shown);
        const size_t length = strlen(shown);
        if (o + length > TR_SHOW - 11) { /* room for the dots, the quote and the NUL */
            memcpy(buf + o, "...", 3);
            o += 3;
            break;
        }
        memcpy(buf + o, shown, length);
        o += length;
    }
    buf[o++] = '"';
    buf[o] = 0;
    return buf;
}

const char *tr_node_show(const tr_node *n, char buf[TR_SHOW])
{
    if (tr_node_empty(n)) {
        snprintf(buf, TR_SHOW, "nothing");
    } else if (n->kind == TR_NODE_SCALAR) {
        tr_text_show(n->text, buf);
    } else if (n->kind == TR_NODE_MAP) {
        snprintf(buf, TR_SHOW, "a map of %zu", n->count);
    } else {
        snprintf(buf, TR_SHOW, "a list of %zu", n->count);
    }
    return buf;
}
