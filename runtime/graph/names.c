/* Names of layers: given or made, unique, and found again by `from:`. */
#include "runtime/graph/maker.h"

#include <string.h>

bool tr_name_valid(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return name[0] && name[0] != '.' && name[strspn(name, good)] == '\0';
}

static int *counter(tr_maker *mk, const char *type)
{
    size_t i = 0;
    while (mk->counters[i].type && strcmp(mk->counters[i].type, type) != 0) i++;
    mk->counters[i].type = type;
    return &mk->counters[i].count;
}

tr_status tr_name_layer(tr_maker *mk, tr_layer *l, const tr_node *options)
{
    /* Counted whether named or not, so that naming one layer renames no other. */
    int number = ++*counter(mk, l->def->name);
    const tr_node *given = options ? tr_node_get(options, "name") : NULL;
    int n;
    if (given) {
        if (given->kind != TR_NODE_SCALAR || !tr_name_valid(given->text))
            return tr_node_fail(given,
                                "a layer's name has letters, digits and _.- only, not \"%s\"",
                                given->kind == TR_NODE_SCALAR ? given->text : "a list or map");
        n = snprintf(l->name, TR_LAYER_NAME, "%s%s", given->text, mk->suffix);
    } else {
        n = snprintf(l->name, TR_LAYER_NAME, "%s%d%s", l->def->name, number, mk->suffix);
    }
    if (n >= TR_LAYER_NAME)
        return tr_node_fail(given ? given : l->at, "the layer's name is longer than %d characters",
                            TR_LAYER_NAME - 1);
    return TR_OK;
}

static int find(const tr_maker *mk, const char *name)
{
    for (size_t i = mk->nnames; i-- > 0;)
        if (strcmp(mk->names[i].name, name) == 0) return (int)i;
    return -1;
}

tr_status tr_name_add(tr_maker *mk, const tr_node *at, const char *name, int value)
{
    tr_status st = TR_OK;
    if (find(mk, name) >= 0) return tr_node_fail(at, "two layers are named \"%s\"", name);
    TR_TRY(tr_grow(&mk->names, &mk->cap_names, mk->nnames + 1, sizeof(*mk->names)));
    tr_named *slot = &mk->names[mk->nnames++];
    snprintf(slot->name, sizeof(slot->name), "%s", name);
    slot->value = value;
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

tr_status tr_name_find(tr_maker *mk, const tr_node *at, const char *layer, int *value)
{
    if (at->kind != TR_NODE_SCALAR)
        return tr_node_fail(at, "layer \"%s\": from names layers or inputs", layer);
    char suffix[TR_LAYER_NAME], name[2 * TR_LAYER_NAME];
    snprintf(suffix, sizeof(suffix), "%s", mk->suffix);
    for (;;) {
        int n = snprintf(name, sizeof(name), "%.*s%s", TR_LAYER_NAME, at->text, suffix);
        int i = n < TR_LAYER_NAME ? find(mk, name) : -1;
        if (i >= 0) {
            *value = mk->names[i].value;
            return TR_OK;
        }
        char *dot = strrchr(suffix, '.');
        if (!dot) break;
        *dot = '\0';
    }
    const char *near = nearest(mk, at->text);
    if (near)
        return tr_node_fail(at,
                            "layer \"%s\": no earlier layer or input is named \"%s\": did you "
                            "mean \"%s\"?",
                            layer, at->text, near);
    return tr_node_fail(at, "layer \"%s\": no earlier layer or input is named \"%s\"", layer,
                        at->text);
}
