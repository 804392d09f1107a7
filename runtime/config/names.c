/* Names out of a fixed list, one or several. */
#include "runtime/config/internal.h"

#include <string.h>

/* "; there are: a, b, ...": the first few. */
static const char *some_of(const char *const *names, size_t count, char text[TR_PATH])
{
    enum { FEW = 5 };
    size_t used = (size_t)snprintf(text, TR_PATH, "; there are: ");
    for (size_t i = 0; i < count && i < FEW && used < TR_PATH; i++)
        used += (size_t)snprintf(text + used, TR_PATH - used, "%s%s", i ? ", " : "", names[i]);
    if (count > FEW && used < TR_PATH) snprintf(text + used, TR_PATH - used, ", ...");
    return count ? text : "";
}

tr_status tr_name_missing(const tr_node *n, const char *key, const char *what, const char *near,
                          const char *const *names, size_t count)
{
    char some[TR_PATH];
    return tr_node_fail(n, "%s: there is no %s \"%s\"%s%s%s", key, what, n->text,
                        near ? ": did you mean \"" : "", near ? near : some_of(names, count, some),
                        near ? "\"?" : "");
}

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
    return tr_name_missing(n, key, what, tr_nearest(n->text, names, count), names, count);
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
