/* In what resolved configs differ: both as flat lists of paths and values, a key of one that the
 * other lacks included. Stages of pipelines go by their names, and `pipeline` is the list of these;
 * of a stage that some run lacks, options that have their defaults tell nothing. */
#include "trainer/compare/compare.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/stages/stages.h"

#define PIPELINE "pipeline"

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

/* Takes `text`, which is no longer the caller's; NULL: no memory for it. */
static tr_status set(tr_differences *d, const char *key, char *text, size_t run)
{
    tr_status st = TR_OK;
    tr_difference *at = find(d, key);
    TR_HAVE(text);
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
    at->values[run] = text;
    text = NULL;
out:
    tr_free(text);
    return st;
}

static tr_status set_leaf(tr_differences *d, const char *key, const tr_node *n, size_t run)
{
    char *text = NULL;
    if (n->kind == TR_NODE_SCALAR) return set(d, key, tr_strdup(n->text), run);
    const tr_status st = tr_node_line(n, &text);
    return st == TR_OK ? set(d, key, text, run) : st;
}

static tr_status flatten(tr_differences *d, const char *path, const tr_node *n, size_t run)
{
    tr_status st = TR_OK;
    char *below = NULL;
    if (is_leaf(n)) return set_leaf(d, path, n, run);
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

/* ---- Pipelines ------------------------------------------------------------------------------- */

/* Of an item, which is a name, or a map of it to its options. */
static const char *name_of(const tr_node *item)
{
    return item->kind == TR_NODE_SCALAR ? item->text : item->count ? item->keys[0]->text : "";
}

/* "pipeline.prune", of a second one "pipeline.prune.2". */
static char *stage_path(const tr_node *items, size_t i)
{
    const char *name = name_of(items->values[i]);
    size_t nth = 1;
    for (size_t k = 0; k < i; k++) nth += strcmp(name_of(items->values[k]), name) == 0;
    return nth == 1 ? tr_sprintf(PIPELINE ".%s", name) : tr_sprintf(PIPELINE ".%s.%zu", name, nth);
}

static tr_status flatten_pipeline(tr_differences *d, const tr_node *items, size_t run)
{
    tr_status st = TR_OK;
    char *path = NULL, *names = tr_strdup(""), *longer;
    TR_HAVE(names);
    for (size_t i = 0; i < items->count; i++) {
        const tr_node *item = items->values[i];
        TR_HAVE(longer = tr_sprintf("%s%s%s", names, i ? ", " : "", name_of(item)));
        tr_free(names);
        names = longer;
    }
    longer = names;
    names = NULL;
    TR_TRY(set(d, PIPELINE, longer, run));
    for (size_t i = 0; i < items->count; i++) {
        const tr_node *item = items->values[i];
        if (item->kind != TR_NODE_MAP || item->count == 0) continue;
        tr_free(path);
        TR_HAVE(path = stage_path(items, i));
        TR_TRY(flatten(d, path, item->values[0], run));
    }
out:
    tr_free(names);
    tr_free(path);
    return st;
}

static tr_status flatten_all(tr_differences *d, const tr_node *root, size_t run)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < root->count && st == TR_OK; i++) {
        const char *key = root->keys[i]->text;
        const tr_node *n = root->values[i];
        st = strcmp(key, PIPELINE) == 0 && n->kind == TR_NODE_LIST ? flatten_pipeline(d, n, run)
                                                                   : flatten(d, key, n, run);
    }
    return st;
}

static const tr_field *field_of(const tr_field *f, const char *key, size_t n)
{
    while (f && f->key && (strncmp(f->key, key, n) != 0 || f->key[n])) f++;
    return f && f->key ? f : NULL;
}

/* The field at a path below a stage's options; NULL: none that has a default. */
static const tr_field *option_of(const char *key)
{
    const tr_field *f = NULL, *fields = NULL;
    const char *word = key + strlen(PIPELINE ".");
    size_t n = strcspn(word, ".");
    for (size_t i = 0; i < TR_STAGES && !fields; i++)
        if (strncmp(tr_stages[i]->name, word, n) == 0 && !tr_stages[i]->name[n])
            fields = tr_stages[i]->fields;
    for (bool first = true; word[n] == '.'; first = false) {
        word += n + 1;
        n = strcspn(word, ".");
        if (first && strspn(word, "0123456789") == n) continue; /* which one of this name */
        f = field_of(fields, word, n);
        fields = f ? f->fields : NULL;
        if (!f) return NULL;
    }
    return f;
}

static bool is_default(const char *key, const char *value)
{
    const tr_field *f = option_of(key);
    return f && f->dflt && strcmp(f->dflt, value) == 0;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void drop(tr_difference *v, size_t nruns)
{
    for (size_t k = 0; v->values && k < nruns; k++) tr_free(v->values[k]);
    tr_free(v->values);
    tr_free(v->key);
}

/* In all runs; or in those that have the stage, if it is what the stage does by itself. */
static bool same(const tr_difference *v, size_t nruns)
{
    const char *value = NULL;
    bool lacks = false;
    for (size_t k = 0; k < nruns; k++) {
        const char *a = v->values[k];
        lacks = lacks || !a;
        if (a && value && strcmp(a, value) != 0) return false;
        if (a) value = a;
    }
    return !lacks ||
           (strncmp(v->key, PIPELINE ".", strlen(PIPELINE ".")) == 0 && is_default(v->key, value));
}

tr_status tr_differences_find(const tr_comparison *c, tr_differences *out)
{
    tr_status st = TR_OK;
    tr_differences d = {.nruns = c->count};
    size_t kept = 0;
    for (size_t k = 0; k < c->count; k++)
        if (c->runs[k].config.root) TR_TRY(flatten_all(&d, c->runs[k].config.root, k));
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
