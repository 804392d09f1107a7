/* Trees beside each other, key by key. */
#include "runtime/config/tree.h"

#include <string.h>

typedef struct {
    tr_node_differs *differs;
    void *ctx;
} comparison;

static tr_status compare(const comparison *c, const char *path, const tr_node *was,
                         const tr_node *now);

static tr_status below(const comparison *c, const char *path, const char *key, const tr_node *was,
                       const tr_node *now)
{
    char *sub = *path ? tr_sprintf("%s.%s", path, key) : tr_strdup(key);
    if (!sub) return tr_last_status();
    const tr_status st = compare(c, sub, was, now);
    tr_free(sub);
    return st;
}

static tr_status compare_maps(const comparison *c, const char *path, const tr_node *was,
                              const tr_node *now)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < was->count; i++)
        TR_TRY(below(c, path, was->keys[i]->text, was->values[i],
                     tr_node_get(now, was->keys[i]->text)));
    for (size_t i = 0; i < now->count; i++)
        if (!tr_node_get(was, now->keys[i]->text))
            TR_TRY(below(c, path, now->keys[i]->text, NULL, now->values[i]));
out:
    return st;
}

static tr_status compare(const comparison *c, const char *path, const tr_node *was,
                         const tr_node *now)
{
    tr_status st = TR_OK;
    if (!was || !now || was->kind != now->kind) return c->differs(c->ctx, path, was, now);
    if (was->kind == TR_NODE_MAP) return compare_maps(c, path, was, now);
    if (was->kind == TR_NODE_SCALAR)
        return strcmp(was->text, now->text) == 0 ? TR_OK : c->differs(c->ctx, path, was, now);
    if (was->count != now->count) return c->differs(c->ctx, path, was, now);
    for (size_t i = 0; i < was->count; i++) {
        char index[32];
        snprintf(index, sizeof index, "%zu", i);
        TR_TRY(below(c, path, index, was->values[i], now->values[i]));
    }
out:
    return st;
}

tr_status tr_node_compare(const char *path, const tr_node *was, const tr_node *now,
                          tr_node_differs *differs, void *ctx)
{
    const comparison c = {differs, ctx};
    return compare(&c, path, was, now);
}

void tr_node_brief(const tr_node *n, char *text, size_t size)
{
    char *line = NULL;
    snprintf(text, size, "not given");
    if (!n || tr_node_line(n, &line) != TR_OK) return;
    snprintf(text, size, strlen(line) < size ? "%s" : "%.60s...", line);
    tr_free(line);
}
