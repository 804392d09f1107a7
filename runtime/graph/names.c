/* Names of layers: given or made, unique, and found again by `from:`. */
#include "runtime/graph/maker.h"

#include <string.h>

bool tr_name_valid(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return name[0] && name[0] != '.' && name[strspn(name, good)] == '\0';
}

int tr_count_next(tr_counter counters[TR_COUNTERS], const char *type)
{
    size_t i = 0;
    while (counters[i].type && strcmp(counters[i].type, type) != 0) i++;
    counters[i].type = type;
    return ++counters[i].count;
}

tr_status tr_name_layer(tr_maker *mk, tr_layer *l, const char *name, const tr_node *options)
{
    /* Counted whether named or not, so that naming one layer renames no other. */
    int number = tr_count_next(mk->counters, l->def->name);
    const tr_scope *s = mk->scope;
    const tr_node *given = options && !name ? tr_node_get(options, "name") : NULL;
    int n;
    if (given) name = given->kind == TR_NODE_SCALAR ? given->text : "";
    if (name && !tr_name_valid(name))
        return tr_maker_fail(given, l->where,
                             "a layer's name has letters, digits and _.- only, not \"%s\"",
                             !given || given->kind == TR_NODE_SCALAR ? name : "a list or map");
    if (name)
        n = snprintf(l->name, TR_LAYER_NAME, "%s%s%s", s->path, name, s->suffix);
    else
        n = snprintf(l->name, TR_LAYER_NAME, "%s%s%d%s", s->path, l->def->name, number, s->suffix);
    if (n >= TR_LAYER_NAME)
        return tr_maker_fail(given, l->where, "the layer's name is longer than %d characters",
                             TR_LAYER_NAME - 1);
    return TR_OK;
}

/* The slot that holds the name, or the empty one where it would go. FNV-1a, linear probing. */
static size_t slot_of(const tr_maker *mk, const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * 1099511628211u;
    size_t s = h & (mk->nslots - 1);
    while (mk->slots[s] && strcmp(mk->names[mk->slots[s] - 1].name, name) != 0)
        s = (s + 1) & (mk->nslots - 1);
    return s;
}

static int find(const tr_maker *mk, const char *name)
{
    return mk->nslots ? mk->slots[slot_of(mk, name)] - 1 : -1;
}

static tr_status grow_slots(tr_maker *mk)
{
    if (2 * (mk->nnames + 1) <= mk->nslots) return TR_OK;
    size_t n = mk->nslots ? 2 * mk->nslots : 64;
    int *slots = tr_alloc(TR_MEM_OTHER, n, sizeof *slots);
    if (!slots) return tr_last_status();
    tr_free(mk->slots);
    mk->slots = slots;
    mk->nslots = n;
    for (size_t i = 0; i < mk->nnames; i++) slots[slot_of(mk, mk->names[i].name)] = (int)i + 1;
    return TR_OK;
}

tr_status tr_name_add(tr_maker *mk, const char *where, const char *name, int value)
{
    tr_status st = TR_OK;
    if (find(mk, name) >= 0) return tr_maker_fail(NULL, where, "two layers are named \"%s\"", name);
    TR_TRY(tr_grow(&mk->names, &mk->cap_names, mk->nnames + 1, sizeof *mk->names));
    TR_TRY(grow_slots(mk));
    mk->slots[slot_of(mk, name)] = (int)mk->nnames + 1;
    tr_named *named = &mk->names[mk->nnames++];
    snprintf(named->name, sizeof named->name, "%s", name);
    named->value = value;
out:
    return st;
}

static const char *nearest(const tr_maker *mk, const char *word)
{
    const char **names = tr_alloc(TR_MEM_OTHER, mk->nnames, sizeof(*names));
    if (!names) return NULL;
    for (size_t i = 0; i < mk->nnames; i++) names[i] = mk->names[i].name;
    const char *near = tr_nearest(word, names, mk->nnames);
    tr_free(names);
    return near;
}

tr_status tr_scope_open(tr_maker *mk, tr_scope *s, const tr_layer *l, const char *path,
                        const char *suffix)
{
    const tr_scope *outer = mk->scope;
    int n, end = 0;
    *s = (tr_scope){.outer = mk->scope, .input = -1, .lengths = -1};
    if (path)
        n = snprintf(s->path, sizeof s->path, "%s.", path);
    else
        n = snprintf(s->path, sizeof s->path, "%s", outer->path);
    if (!path) end = snprintf(s->suffix, sizeof s->suffix, "%s%s", outer->suffix, suffix);
    if ((size_t)n >= sizeof s->path || (size_t)end >= sizeof s->suffix)
        return tr_layer_fail(l, TR_CONFIG,
                             "it stands too deep: names would be longer than %d characters",
                             TR_LAYER_NAME - 1);
    mk->scope = s;
    return TR_OK;
}

void tr_scope_close(tr_maker *mk)
{
    mk->scope = mk->scope->outer;
}

int tr_name_find(const tr_maker *mk, const char *name)
{
    char full[3 * TR_LAYER_NAME];
    for (const tr_scope *s = mk->scope; s; s = s->outer) {
        int n = snprintf(full, sizeof full, "%s%.*s%s", s->path, TR_LAYER_NAME, name, s->suffix);
        int i = n < TR_LAYER_NAME ? find(mk, full) : -1;
        if (i >= 0) return mk->names[i].value;
        if (s->input >= 0 && strcmp(name, "input") == 0) return s->input;
        if (s->lengths >= 0 && strcmp(name, TR_NAME_LENGTHS) == 0) return s->lengths;
    }
    return -1;
}

tr_status tr_name_unknown(const tr_maker *mk, const tr_node *at, const tr_layer *l,
                          const char *name)
{
    const char *near = nearest(mk, name);
    return tr_maker_fail(
        at, l->where, "layer \"%s\": no earlier layer or input is named \"%s\"%s%s%s", l->name,
        name, near ? ": did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}
