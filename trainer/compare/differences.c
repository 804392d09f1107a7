/* In what resolved configs differ: both as flat lists of paths and values, a key of one that the other lacks included. */
#include "trainer/compare/compare.h"

#include <stdlib.h>
#include <string.h>

static bool is_leaf(const tr_node *n)
{
    if (n->kind == TR_NODE_SCALAR || n->count == 0) return true;
    if (n->kind == TR_NODE_MAP) return false;
    for (size_t i = 0; i < n->count; i++)
        if (n->values[i]->kind != TR_NODE_SCALAR) return false;
    return true; /* a list of numbers is one value */
}

static tr_difference *find(tr_differences *d, const char *key)
{
    for (size_t i = 0; i < d->count; i++)
        if (strcmp(d->v[i].key, key) == 0) return &d->v[i];
    return NULL;
}

static tr_status set(tr_differences *d, const char *key, const tr_node *n, size_t run)
{
    tr_status st = TR_OK;
    tr_difference *at = find(d, key);
    if (!at) {
        tr_difference *grown = tr_realloc(TR_MEM_OTHER, d->v, d->count + 1, sizeof *grown);
        TR_HAVE(grown);
        d->v = grown;
        at = &grown[d->count++];
        *at = (tr_difference){.key = tr_strdup(key),
                              .values = tr_alloc(TR_MEM_OTHER, d->nruns, sizeof *at->values)};
        TR_HAVE(at->key && at->values);
    }
    tr_free(at->values[run]);
    at->values[run] = NULL;
    if (n->kind == TR_NODE_SCALAR)
        TR_HAVE(at->values[run] = tr_strdup(n->text));
    else
        TR_TRY(tr_node_line(n, &at->values[run]));
out:
    return st;
}

static tr_status flatten(tr_differences *d, const char *path, const tr_node *n, size_t run)
{
    tr_status st = TR_OK;
    char *below = NULL;
    if (is_leaf(n)) return set(d, path, n, run);
    for (size_t i = 0; i < n->count; i++) {
        tr_free(below);
        below = n->kind == TR_NODE_LIST
                    ? tr_sprintf("%s.%zu", path, i)
                    : tr_sprintf("%s%s%s", path, *path ? "." : "", n->keys[i]->text);
        TR_HAVE(below);
        TR_TRY(flatten(d, below, n->values[i], run));
    }
out:
    tr_free(below);
    return st;
}

static void drop(tr_difference *v, size_t nruns)
{
    for (size_t k = 0; v->values && k < nruns; k++) tr_free(v->values[k]);
    tr_free(v->values);
    tr_free(v->key);
}

static bool same(const tr_difference *v, size_t nruns)
{
    for (size_t k = 1; k < nruns; k++) {
        const char *a = v->values[0], *b = v->values[k];
        if (!a != !b || (a && strcmp(a, b) != 0)) return false;
    }
    return true;
}

tr_status tr_differences_find(const tr_comparison *c, tr_differences *out)
{
    tr_status st = TR_OK;
    tr_differences d = {.nruns = c->count};
    size_t kept = 0;
    for (size_t k = 0; k < c->count; k++)
        if (c->runs[k].config.root) TR_TRY(flatten(&d, "", c->runs[k].config.root, k));
    for (size_t i = 0; i < d.count; i++) {
        if (same(&d.v[i], d.nruns) || strcmp(d.v[i].key, "output") == 0)
            drop(&d.v[i], d.nruns);
        else
            d.v[kept++] = d.v[i];
    }
    d.count = kept;
    *out = d;
    return TR_OK;
out:
    tr_differences_free(&d);
    return st;
}

void tr_differences_free(tr_differences *d)
{
    for (size_t i = 0; i < d->count; i++) drop(&d->v[i], d->nruns);
    tr_free(d->v);
    *d = (tr_differences){0};
}
