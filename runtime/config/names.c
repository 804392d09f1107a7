/* Names out of a fixed list, one or several. */
#include "runtime/config/config.h"

#include <string.h>

static tr_status find(const tr_node *n, const char *key, const char *what, const char *const *names,
                      size_t count, bool *found)
{
    size_t i = 0;
    if (n->kind != TR_NODE_SCALAR) return tr_node_fail(n, "%s: expected names", key);
    while (i < count && strcmp(names[i], n->text) != 0) i++;
    if (i < count) {
        found[i] = true;
        return TR_OK;
    }
    const char *near = tr_nearest(n->text, names, count);
    return tr_node_fail(n, "%s: there is no %s \"%s\"%s%s%s", key, what, n->text,
                        near ? ": did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

tr_status tr_node_names(const tr_node *n, const char *key, const char *what,
                        const char *const *names, size_t count, bool *found)
{
    tr_status st = TR_OK;
    memset(found, 0, count * sizeof *found);
    if (!n || (n->kind == TR_NODE_SCALAR && !n->text[0])) return TR_OK;
    if (n->kind != TR_NODE_LIST) return find(n, key, what, names, count, found);
    for (size_t i = 0; i < n->count && st == TR_OK; i++)
        st = find(n->values[i], key, what, names, count, found);
    return st;
}
