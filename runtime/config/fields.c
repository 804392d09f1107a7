/* Tables of fields: one reader for every struct that users fill by YAML. A default is read by the
 * same code as if the user had typed it, so a table cannot hold one that it would refuse. */
#include "runtime/config/internal.h"

#include <string.h>

/* The map that is being read; options of a variant may stand in two: {adamw: {eps: 1}, lr: 2}. */
typedef struct {
    const tr_node *own;    /* NULL: nothing written */
    const tr_node *beside; /* the map that names the variant, or NULL */
    size_t skip;           /* in `beside`: the variant's name; SIZE_MAX: none */
    const tr_node *at;     /* where errors about what is missing point to; NULL: nowhere */
} view;

static tr_status read_table(const view *v, const tr_field *fields, const char *path, void *base);
static tr_status read_value(const tr_field *f, const tr_node *n, const char *path, void *base);
static void clear(const tr_field *fields, void *base, bool release);

const char *tr_path_join(const char *path, const char *key, char buf[TR_PATH])
{
    bool cut = snprintf(buf, TR_PATH, "%s%s%s", path, *path ? "." : "", key) >= TR_PATH;
    if (cut) memcpy(buf + TR_PATH - 4, "...", 4);
    return buf;
}

size_t tr_fields_count(const tr_field *fields)
{
    size_t n = 0;
    while (fields && fields[n].key) n++;
    return n;
}

static size_t variant_count(const tr_variant_def *variants)
{
    size_t n = 0;
    while (variants[n].name) n++;
    return n;
}

/* ---- Variants ------------------------------------------------------------------------------ */

static int variant_index(const tr_field *f, const char *name)
{
    for (int i = 0; f->variants[i].name; i++)
        if (strcmp(f->variants[i].name, name) == 0) return i;
    return -1;
}

/* A key that is neither a variant's name nor an option of the chosen one. */
static tr_status unknown_option(const tr_field *f, int which, const tr_node *key, const char *path)
{
    const char *names[64];
    char show[TR_SHOW];
    size_t count = 0;
    for (int i = 0; f->variants[i].name && count < 32; i++) names[count++] = f->variants[i].name;
    const tr_field *fields = which < 0 ? NULL : f->variants[which].fields;
    for (size_t i = 0; i < tr_fields_count(fields) && count < TR_COUNT(names); i++)
        names[count++] = fields[i].key;
    const char *near = tr_nearest(key->text, names, count);
    char want[256];
    if (near)
        return tr_node_fail(key, "%s: unknown key %s; did you mean \"%s\"?", path,
                            tr_text_show(key->text, show), near);
    return tr_node_fail(key, "%s: unknown key %s, expected %s", path, tr_text_show(key->text, show),
                        tr_field_expected(f, want, sizeof want));
}

/* Which variant a map names, and at which of its keys; -1 and SIZE_MAX when none. */
static tr_status find_variant(const tr_field *f, const tr_node *n, const char *path, int *which,
                              size_t *at)
{
    *which = -1;
    *at = SIZE_MAX;
    for (size_t i = 0; i < n->count; i++) {
        int v = variant_index(f, n->keys[i]->text);
        if (v < 0) continue;
        if (*which >= 0)
            return tr_node_fail(n->keys[i], "%s: both \"%s\" and \"%s\", expected one", path,
                                f->variants[*which].name, n->keys[i]->text);
        *which = v;
        *at = i;
    }
    if (*which < 0 && f->dflt && *f->dflt) *which = variant_index(f, f->dflt);
    if (*which >= 0) return TR_OK;
    return n->count ? unknown_option(f, -1, n->keys[0], path) : tr_field_unexpected(f, n, path);
}

/* Which variant a node names, and where its options stand. */
static tr_status choose_variant(const tr_field *f, const tr_node *n, const char *path, int *which,
                                view *v)
{
    *v = (view){.skip = SIZE_MAX, .at = n};
    *which = -1;
    if (n->kind == TR_NODE_SCALAR) *which = variant_index(f, n->text);
    if (n->kind != TR_NODE_MAP) return *which < 0 ? tr_field_unexpected(f, n, path) : TR_OK;
    tr_status st = find_variant(f, n, path, which, &v->skip);
    if (st != TR_OK) return st;
    v->beside = n;
    v->own = v->skip == SIZE_MAX ? NULL : n->values[v->skip];
    const tr_variant_def *def = &f->variants[*which];
    for (size_t i = 0; i < n->count; i++) {
        bool known = i == v->skip;
        for (size_t k = 0; k < tr_fields_count(def->fields) && !known; k++)
            known = strcmp(def->fields[k].key, n->keys[i]->text) == 0;
        if (!known) return unknown_option(f, *which, n->keys[i], path);
    }
    return TR_OK;
}

static tr_status read_options(const tr_variant_def *def, view v, const char *path, void *options)
{
    char sub[TR_PATH];
    tr_node *bare_key[1], *bare_value[1], key, bare;
    tr_path_join(path, def->name, sub);
    if (tr_fields_count(def->fields) == 1 && v.own && v.own->kind != TR_NODE_MAP &&
        !tr_node_empty(v.own)) { /* every: 2 */
        key = *v.own;
        key.kind = TR_NODE_SCALAR;
        key.text = (char *)def->fields[0].key;
        bare = key;
        bare.kind = TR_NODE_MAP;
        bare.count = 1;
        bare_key[0] = &key;
        bare_value[0] = (tr_node *)v.own;
        bare.keys = bare_key;
        bare.values = bare_value;
        v.own = &bare;
    }
    return read_table(&v, def->fields, sub, options);
}

static tr_status read_variant(const tr_field *f, const tr_node *n, const char *path, void *base)
{
    view v;
    int *which = &((tr_variant *)((char *)base + f->offset))->which, chosen;
    tr_status st = choose_variant(f, n, path, &chosen, &v);
    if (st != TR_OK) return st;
    *which = chosen;
    return read_options(&f->variants[chosen], v, path, (char *)base + f->variant_options);
}

/* What was read before a failure is released with the whole struct. */
static tr_status read_list(const tr_field *f, const tr_node *n, const char *path, void *base)
{
    tr_list *list = (tr_list *)((char *)base + f->offset);
    const tr_field one = {.key = f->key, .kind = TR_FIELD_VARIANT, .variants = f->variants};
    tr_status st = TR_OK;
    char index[32], sub[TR_PATH];
    if (n->kind != TR_NODE_LIST || !n->count) return tr_field_unexpected(f, n, path);
    list->items = tr_alloc(TR_MEM_OTHER, n->count, sizeof(*list->items));
    if (!list->items) return tr_last_status();
    for (size_t i = 0; i < n->count; i++) {
        tr_list_item *item = &list->items[i];
        view v;
        snprintf(index, sizeof index, "%zu", i);
        tr_path_join(path, index, sub);
        TR_TRY(choose_variant(&one, n->values[i], sub, &item->which, &v));
        const tr_variant_def *def = &f->variants[item->which];
        if (def->size && !(item->options = tr_alloc(TR_MEM_OTHER, 1, def->size)))
            return tr_last_status();
        item->at = n->values[i];
        list->count = i + 1;
        if (def->size) clear(def->fields, item->options, false);
        TR_TRY(read_options(def, v, sub, item->options));
    }
out:
    return st;
}

/* ---- Tables -------------------------------------------------------------------------------- */

static tr_status read_map(const tr_field *f, const tr_node *n, const char *path, void *base)
{
    view v = {.own = n, .skip = SIZE_MAX, .at = n};
    if (f->kind == TR_FIELD_BLOCK) *(bool *)((char *)base + f->offset) = true;
    return read_table(&v, f->fields, path, (char *)base + f->offset);
}

static tr_status read_value(const tr_field *f, const tr_node *n, const char *path, void *base)
{
    switch (f->kind) {
    case TR_FIELD_MAP:
    case TR_FIELD_BLOCK:
        return read_map(f, n, path, base);
    case TR_FIELD_VARIANT:
        return read_variant(f, n, path, base);
    case TR_FIELD_LIST:
        return read_list(f, n, path, base);
    default:
        return tr_field_read_simple(f, n, path, (char *)base + f->offset);
    }
}

static tr_status read_default(const tr_field *f, const tr_node *at, const char *path, void *base)
{
    tr_status st = TR_OK;
    if (!f->dflt) {
        char want[256];
        const char *dot = strrchr(path, '.');
        tr_field_expected(f, want, sizeof want);
        if (!at) return TR_FAIL(TR_CONFIG, "%s is required: %s (%s)", path, f->doc, want);
        if (!dot)
            return tr_node_fail(at, "required key \"%s\" is missing: %s (%s)", f->key, f->doc,
                                want);
        return tr_node_fail(at, "%.*s: required key \"%s\" is missing: %s (%s)", (int)(dot - path),
                            path, f->key, f->doc, want);
    }
    if (!*f->dflt) {
        view none = {.skip = SIZE_MAX, .at = at};
        if (f->kind == TR_FIELD_MAP)
            return read_table(&none, f->fields, path, (char *)base + f->offset);
        return TR_OK; /* cleared already */
    }
    if (*f->dflt == '[' || *f->dflt == '{') {
        tr_document doc;
        TR_TRY(tr_document_parse("default", f->dflt, strlen(f->dflt), &doc));
        st = read_value(f, doc.root, path, base);
        tr_list *list = f->kind == TR_FIELD_LIST ? (tr_list *)((char *)base + f->offset) : NULL;
        for (size_t i = 0; list && i < list->count; i++) list->items[i].at = at;
        tr_document_close(&doc);
    } else {
        tr_node n = {.kind = TR_NODE_SCALAR, .source = "default", .text = (char *)f->dflt};
        st = read_value(f, &n, path, base);
    }
out:
    return st;
}

static tr_status unknown_key(const tr_field *fields, const tr_node *key, const char *path)
{
    const char *names[64];
    char show[TR_SHOW], known[256] = "";
    size_t count = 0;
    for (const tr_field *f = fields; f && f->key && count < TR_COUNT(names); f++)
        names[count++] = f->key;
    const char *near = tr_nearest(key->text, names, count);
    const char *colon = *path ? ": " : "";
    tr_text_show(key->text, show);
    if (near)
        return tr_node_fail(key, "%s%sunknown key %s; did you mean \"%s\"?", path, colon, show,
                            near);
    for (size_t i = 0; i < count; i++)
        tr_text_append(known, sizeof known, i ? ", %s" : "%s", names[i]);
    return tr_node_fail(key, "%s%sunknown key %s; %s%s", path, colon, show,
                        count ? "there are: " : "it has no options", known);
}

/* Where a field stands: by its name, or by the one that it had. */
static size_t key_index(const tr_node *map, const tr_field *f)
{
    const size_t i = tr_node_index(map, f->key);
    return i == SIZE_MAX && f->was ? tr_node_index(map, f->was) : i;
}

static tr_status check_keys(const tr_node *map, size_t skip, const tr_field *fields,
                            const char *path)
{
    for (size_t i = 0; map && i < map->count; i++) {
        /* x-...: the user's own, such as anchors for later */
        bool known = i == skip || strncmp(map->keys[i]->text, "x-", 2) == 0;
        for (const tr_field *f = fields; f && f->key && !known; f++) known = key_index(map, f) == i;
        if (!known) return unknown_key(fields, map->keys[i], path);
    }
    return TR_OK;
}

static tr_status read_table(const view *v, const tr_field *fields, const char *path, void *base)
{
    tr_status st = TR_OK;
    char show[TR_SHOW], sub[TR_PATH];
    const tr_node *own = tr_node_empty(v->own) ? NULL : v->own;
    const tr_node *at = v->own ? v->own : v->at;
    if (own && own->kind != TR_NODE_MAP)
        return tr_node_fail(own, "%s%sfound %s, expected a map of keys", path, *path ? ": " : "",
                            tr_node_show(own, show));
    TR_TRY(check_keys(own, SIZE_MAX, fields, path));
    TR_TRY(check_keys(v->beside, v->skip, fields, path));
    for (const tr_field *f = fields; f && f->key; f++) {
        const size_t a = key_index(own, f), b = key_index(v->beside, f);
        const tr_node *n = a == SIZE_MAX ? NULL : own->values[a];
        if (b != SIZE_MAX && b != v->skip) {
            const tr_node *key = v->beside->keys[b];
            if (n && !key->override) {
                st = tr_node_fail(key, "%s: key \"%s\" stands twice; it is already at %d:%d", path,
                                  f->key, own->keys[a]->line, own->keys[a]->column);
                goto out;
            }
            n = v->beside->values[b];
        }
        tr_path_join(path, f->key, sub);
        bool table = f->kind == TR_FIELD_MAP || f->kind == TR_FIELD_BLOCK;
        if (!n)
            TR_TRY(read_default(f, at, sub, base));
        else if (tr_node_empty(n) && !table && f->dflt && !*f->dflt)
            ; /* null for what may be absent */
        else
            TR_TRY(read_value(f, n, sub, base));
    }
out:
    return st;
}

/* ---- Clearing and freeing -------------------------------------------------------------------- */

static void clear_list(const tr_field *f, tr_list *list, bool release)
{
    for (size_t i = 0; release && i < list->count; i++) {
        clear(f->variants[list->items[i].which].fields, list->items[i].options, true);
        tr_free(list->items[i].options);
    }
    if (release) tr_free(list->items);
    *list = (tr_list){0};
}

static void clear(const tr_field *fields, void *base, bool release)
{
    for (const tr_field *f = fields; f && f->key; f++) {
        void *p = (char *)base + f->offset;
        switch (f->kind) {
        case TR_FIELD_INT:
            *(int64_t *)p = 0;
            break;
        case TR_FIELD_REAL:
            *(double *)p = 0;
            break;
        case TR_FIELD_BOOL:
            *(bool *)p = false;
            break;
        case TR_FIELD_CHOICE:
            *(int *)p = 0;
            break;
        case TR_FIELD_INTS:
            *(tr_ints *)p = (tr_ints){0};
            break;
        case TR_FIELD_SPAN:
            *(tr_span *)p = (tr_span){0};
            break;
        case TR_FIELD_SPANS:
            *(tr_spans *)p = (tr_spans){0};
            break;
        case TR_FIELD_NODE:
            *(const tr_node **)p = NULL;
            break;
        case TR_FIELD_STRING:
            if (release) tr_free(*(char **)p);
            *(char **)p = NULL;
            break;
        case TR_FIELD_REALS:
            if (release) tr_free(((tr_reals *)p)->v);
            *(tr_reals *)p = (tr_reals){0};
            break;
        case TR_FIELD_BLOCK:
            *(bool *)p = false; /* fall through */
        case TR_FIELD_MAP:
            clear(f->fields, p, release);
            break;
        case TR_FIELD_VARIANT:
            ((tr_variant *)p)->which = -1;
            for (size_t i = 0; i < variant_count(f->variants); i++)
                clear(f->variants[i].fields, (char *)base + f->variant_options, release);
            break;
        case TR_FIELD_LIST:
            clear_list(f, p, release);
            break;
        }
    }
}

tr_status tr_fields_read(const tr_node *n, const tr_field *fields, const char *what, void *out)
{
    view v = {.own = n, .skip = SIZE_MAX, .at = n};
    clear(fields, out, false);
    tr_status st = read_table(&v, fields, what ? what : "", out);
    if (st != TR_OK) clear(fields, out, true);
    return st;
}

void tr_fields_free(const tr_field *fields, void *out)
{
    clear(fields, out, true);
}
