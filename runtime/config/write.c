/* Tables of fields, the other way: a filled struct becomes a tree that reads back to the same
 * struct, and a table becomes its reference page. */
#include "runtime/config/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

static const tr_place NOWHERE = {"resolved", 1, 1};

static tr_status build_table(tr_arena *a, const tr_field *fields, const void *base, tr_node *map);

/* ---- Values to nodes ------------------------------------------------------------------------- */

/* Quotes whatever could be taken for something else. */
static bool needs_quotes(const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_./-0123456789";
    return text[strspn(text, safe)] || strchr("-0123456789", *text) || strcmp(text, "null") == 0;
}

static tr_node *text_node(tr_arena *a, const char *text, bool quoted)
{
    return tr_node_scalar(a, NOWHERE, text, strlen(text), quoted);
}

static const char *word_for(const tr_field *f, double v)
{
    if (f->auto_text && f->auto_value == v) return f->auto_text;
    for (const tr_field_word *w = f->words; w && w->text; w++)
        if (w->value == v) return w->text;
    return NULL;
}

static tr_node *int_node(tr_arena *a, const tr_field *f, int64_t v)
{
    char buf[32];
    const char *word = word_for(f, (double)v);
    if (!word) snprintf(buf, sizeof buf, "%lld", (long long)v);
    return text_node(a, word ? word : buf, false);
}

static tr_node *real_node(tr_arena *a, const tr_field *f, double v)
{
    char buf[32];
    const char *word = word_for(f, v);
    return text_node(a, word ? word : tr_format_real(v, buf), false);
}

static tr_node *span_node(tr_arena *a, const tr_field *f, const tr_span *s)
{
    static const char *const units[] = {" steps", " epochs", "%"};
    char buf[48], number[32];
    const bool plain = s->unit == tr_span_default(f);
    snprintf(buf, sizeof buf, "%s%s", tr_format_real(s->value, number),
             plain ? "" : units[s->unit]);
    return text_node(a, buf, !plain);
}

static size_t list_count(const tr_field *f, const void *at)
{
    return f->kind == TR_FIELD_INTS    ? ((const tr_ints *)at)->count
           : f->kind == TR_FIELD_SPANS ? ((const tr_spans *)at)->count
                                       : ((const tr_reals *)at)->count;
}

static tr_status build_list(tr_arena *a, const tr_field *f, const void *at, tr_node **out)
{
    tr_status st = TR_OK;
    const size_t count = list_count(f, at);
    if (count == 0) return TR_OK;
    if (f->kind == TR_FIELD_REALS && count == 1 && word_for(f, *((const tr_reals *)at)->v)) {
        *out = real_node(a, f, *((const tr_reals *)at)->v); /* the word stands for the list */
        return *out ? TR_OK : tr_last_status();
    }
    tr_node *list = tr_node_new(a, TR_NODE_LIST, NOWHERE);
    if (!list) return tr_last_status();
    for (size_t i = 0; i < count; i++) {
        tr_node *n = f->kind == TR_FIELD_INTS    ? int_node(a, f, ((const tr_ints *)at)->v[i])
                     : f->kind == TR_FIELD_SPANS ? span_node(a, f, &((const tr_spans *)at)->v[i])
                                                 : real_node(a, f, ((const tr_reals *)at)->v[i]);
        if (!n) return tr_last_status();
        TR_TRY(tr_node_add(a, list, NULL, n));
    }
    *out = list;
out:
    return st;
}

static tr_status build_map(tr_arena *a, const tr_field *fields, const void *base, tr_node **out)
{
    *out = tr_node_new(a, TR_NODE_MAP, NOWHERE);
    return *out ? build_table(a, fields, base, *out) : tr_last_status();
}

static tr_status build_named(tr_arena *a, const tr_variant_def *def, const void *values,
                             tr_node **out)
{
    tr_status st = TR_OK;
    tr_node *name = text_node(a, def->name, false), *options = NULL;
    tr_node *map = tr_node_new(a, TR_NODE_MAP, NOWHERE);
    if (!name || !map) return tr_last_status();
    TR_TRY(build_map(a, def->fields, values, &options));
    if (options->count == 0) {
        *out = name;
        return TR_OK;
    }
    bool bare = tr_fields_count(def->fields) == 1 && options->values[0]->kind != TR_NODE_MAP;
    TR_TRY(tr_node_add(a, map, name, bare ? options->values[0] : options));
    *out = map;
out:
    return st;
}

static tr_status build_variant(tr_arena *a, const tr_field *f, const void *base, tr_node **out)
{
    const int which = ((const tr_variant *)((const char *)base + f->offset))->which;
    if (which < 0) return TR_OK;
    return build_named(a, &f->variants[which], (const char *)base + f->variant_options, out);
}

static tr_status build_items(tr_arena *a, const tr_field *f, const tr_list *from, tr_node **out)
{
    tr_status st = TR_OK;
    if (!from->count) return TR_OK;
    tr_node *list = tr_node_new(a, TR_NODE_LIST, NOWHERE);
    if (!list) return tr_last_status();
    for (size_t i = 0; i < from->count; i++) {
        const tr_list_item *item = &from->items[i];
        tr_node *n = NULL;
        TR_TRY(build_named(a, &f->variants[item->which], item->options, &n));
        TR_TRY(tr_node_add(a, list, NULL, n));
    }
    *out = list;
out:
    return st;
}

/* *out stays NULL for what is absent. */
static tr_status build_value(tr_arena *a, const tr_field *f, const void *base, tr_node **out)
{
    const void *at = (const char *)base + f->offset;
    const char *text;
    switch (f->kind) {
    case TR_FIELD_INT:
        *out = int_node(a, f, *(const int64_t *)at);
        break;
    case TR_FIELD_REAL:
        *out = real_node(a, f, *(const double *)at);
        break;
    case TR_FIELD_BOOL:
        *out = text_node(a, *(const bool *)at ? "true" : "false", false);
        break;
    case TR_FIELD_CHOICE:
        *out = text_node(a, f->choices[*(const int *)at], false);
        break;
    case TR_FIELD_STRING:
        text = *(char *const *)at;
        if (!text) return TR_OK;
        *out = text_node(a, text, needs_quotes(text));
        break;
    case TR_FIELD_NODE:
        *out = *(tr_node *const *)at;
        return TR_OK;
    case TR_FIELD_SPAN:
        *out = span_node(a, f, at);
        break;
    case TR_FIELD_INTS:
    case TR_FIELD_REALS:
    case TR_FIELD_SPANS:
        return build_list(a, f, at, out);
    case TR_FIELD_BLOCK:
        if (!*(const bool *)at) return TR_OK;
        return build_map(a, f->fields, at, out);
    case TR_FIELD_MAP:
        return build_map(a, f->fields, at, out);
    case TR_FIELD_VARIANT:
        return build_variant(a, f, base, out);
    case TR_FIELD_LIST:
        return build_items(a, f, at, out);
    }
    return *out ? TR_OK : tr_last_status();
}

static tr_status build_table(tr_arena *a, const tr_field *fields, const void *base, tr_node *map)
{
    tr_status st = TR_OK;
    for (const tr_field *f = fields; f && f->key; f++) {
        tr_node *value = NULL;
        TR_TRY(build_value(a, f, base, &value));
        if (!value || (f->kind == TR_FIELD_MAP && value->count == 0)) continue;
        tr_node *key = text_node(a, f->key, false);
        if (!key) return tr_last_status();
        TR_TRY(tr_node_add(a, map, key, value));
    }
out:
    return st;
}

tr_status tr_fields_write(const tr_field *fields, const void *in, int indent, FILE *to)
{
    tr_status st = TR_OK;
    tr_node *map = NULL;
    tr_arena *a = tr_arena_open();
    if (!a) return tr_last_status();
    TR_TRY(build_map(a, fields, in, &map));
    if (map->count) TR_TRY(tr_emit(map, indent, to));
out:
    tr_arena_close(a);
    return st;
}

tr_status tr_field_is_default(const tr_field *f, const void *in, bool *is)
{
    max_align_t untouched[4] = {0};
    tr_field alone[] = {*f, {.key = NULL}};
    char *text[2] = {NULL, NULL};
    size_t n;
    tr_status st;
    alone->offset = 0;
    TR_TRY(tr_fields_read(NULL, alone, "", untouched));
    for (int k = 0; k < 2; k++) {
        FILE *to = open_memstream(&text[k], &n);
        TR_NEED(to, TR_MEMORY, "no memory for a text");
        st = tr_fields_write(alone, k ? (const void *)untouched : (const char *)in + f->offset, 0,
                             to);
        if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "no memory for a text");
        TR_TRY(st);
    }
    *is = strcmp(text[0], text[1]) == 0;
out:
    tr_fields_free(alone, untouched);
    free(text[0]);
    free(text[1]);
    return st;
}

/* ---- The reference --------------------------------------------------------------------------- */

static void help_default(const tr_field *f, FILE *to)
{
    if (!f->dflt)
        fputs("required", to);
    else if (*f->dflt)
        fprintf(to, "`%s`", f->dflt);
    else
        fputs(f->kind == TR_FIELD_MAP ? "" : "none", to);
}

static bool is_map(const tr_field *f)
{
    return f->kind == TR_FIELD_MAP || f->kind == TR_FIELD_BLOCK;
}

enum { SHORT = 60 }; /* bytes of a meaning that is said again rather than referred to */

/* The variants of a field, of which one is told: what an earlier one has as well is not told
 * again. */
typedef struct {
    const tr_variant_def *first, *now; /* NULL: there are none */
    const char *path;
} told;

/* The path of an earlier variant's field that is the same: [TR_PATH]; false: there is none. */
static bool was_told(const told *t, const tr_field *f, char sub[TR_PATH])
{
    char deeper[TR_PATH];
    const bool map = is_map(f);
    for (const tr_variant_def *v = t->first; v != t->now; v++)
        for (const tr_field *g = v->fields; g && g->key; g++) {
            if (strcmp(g->key, f->key) != 0 || (map && g->fields != f->fields)) continue;
            if (!map && (g->kind != f->kind || strcmp(g->doc, f->doc) != 0)) continue;
            tr_path_join(tr_path_join(t->path, v->name, deeper), f->key, sub);
            return true;
        }
    return false;
}

static void help_table(const tr_field *fields, const char *path, const told *t, FILE *to);

/* A map of `fields`, each under its own heading: keys that several of them take are told of the
 * first. */
static void help_map(const tr_field *fields, const tr_field *f, const char *path, FILE *to)
{
    char sub[TR_PATH], other[TR_PATH];
    const tr_field *first = fields;
    bool also = false;
    while (!is_map(first) || first->fields != f->fields) first++;
    fprintf(to, "\n## `%s`\n", tr_path_join(path, f->key, sub));
    if (first != f) {
        fprintf(to, "\nKeys as of `%s`.\n", tr_path_join(path, first->key, other));
        return;
    }
    for (const tr_field *g = f + 1; g->key; g++) {
        if (!is_map(g) || g->fields != f->fields) continue;
        fprintf(to, "%s `%s`", also ? "," : "\nAlso the keys of",
                tr_path_join(path, g->key, other));
        also = true;
    }
    if (also) fputs(".\n", to);
    help_table(f->fields, sub, &(told){NULL, NULL, sub}, to);
}

static void help_nested(const tr_field *fields, const tr_field *f, const char *path, const told *t,
                        FILE *to)
{
    char sub[TR_PATH], deeper[TR_PATH];
    if (was_told(t, f, sub)) return;
    if (is_map(f)) help_map(fields, f, path, to);
    tr_path_join(path, f->key, sub);
    if (f->kind != TR_FIELD_VARIANT && f->kind != TR_FIELD_LIST) return;
    for (const tr_variant_def *v = f->variants; v->name; v++) {
        tr_path_join(sub, v->name, deeper);
        fprintf(to, "\n### `%s`\n\n%s.%s\n", deeper, v->doc,
                tr_fields_count(v->fields) ? "" : " No options.");
        if (tr_fields_count(v->fields))
            help_table(v->fields, deeper, &(told){f->variants, v, sub}, to);
    }
}

static void help_meaning(const tr_field *f, const told *t, FILE *to)
{
    char as[TR_PATH];
    const bool map = is_map(f);
    if (!was_told(t, f, as) || (!map && strlen(f->doc) < SHORT))
        fprintf(to, "%s |\n", f->doc);
    else if (map)
        fprintf(to, "%s; keys as of `%s` |\n", f->doc, as);
    else
        fprintf(to, "as `%s` |\n", as);
}

static void help_table(const tr_field *fields, const char *path, const told *t, FILE *to)
{
    char sub[TR_PATH], want[256];
    fputs("\n| key | type | default | unit | meaning |\n| --- | --- | --- | --- | --- |\n", to);
    for (const tr_field *f = fields; f && f->key; f++) {
        fprintf(to, "| `%s` | %s | ", tr_path_join(path, f->key, sub),
                tr_field_expected(f, want, sizeof want));
        help_default(f, to);
        fprintf(to, " | %s | ", f->unit ? f->unit : "");
        help_meaning(f, t, to);
    }
    for (const tr_field *f = fields; f && f->key; f++) help_nested(fields, f, path, t, to);
}

void tr_fields_help(const tr_field *fields, const char *path, FILE *to)
{
    path = path ? path : "";
    if (*path) fprintf(to, "\n## `%s`\n", path);
    help_table(fields, path, &(told){NULL, NULL, path}, to);
}
