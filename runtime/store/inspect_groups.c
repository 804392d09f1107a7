/* `trainer inspect`: what the file's own config says of how its parameters are trained:
 * train.freeze, train.groups. The text is whoever's wrote the file: what is no config says
 * nothing. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

#include "runtime/config/config.h"
#include "runtime/config/patterns.h"
#include "runtime/store/internal.h"

static const char params[] = "/model/params/";

/* "LAYER.NAME" of an array, as patterns name it; false: it is no parameter. */
static bool pattern_name(const tr_entry *e, char out[TR_SHOWN_NAME])
{
    const size_t skip = sizeof params - 1;
    if (strncmp(e->where, params, skip) != 0) return false;
    snprintf(out, TR_SHOWN_NAME, "%s", e->where + skip);
    for (char *p = out; *p; p++)
        if (*p == '/') *p = '.';
    return true;
}

/* The first group that matches; SIZE_MAX: none. */
static size_t group_of(const tr_node *groups, const char *name)
{
    for (size_t k = 0; groups && k < groups->count; k++)
        if (tr_patterns_match(tr_node_get(groups->values[k], "match"), name)) return k;
    return SIZE_MAX;
}

/* NULL where one of them is none. */
static const tr_node *checked_groups(const tr_node *n)
{
    if (!n || n->kind != TR_NODE_LIST) return NULL;
    for (size_t k = 0; k < n->count; k++)
        if (n->values[k]->kind != TR_NODE_MAP ||
            tr_patterns_check(tr_node_get(n->values[k], "match"), "match") != TR_OK)
            return NULL;
    return n;
}

tr_status tr_trained_open(const tr_summary *s, tr_trained *t)
{
    tr_status st = TR_OK;
    const char *text = tr_summary_text(s, "config");
    char name[TR_SHOWN_NAME];
    *t = (tr_trained){0};
    TR_HAVE(t->of = tr_alloc(TR_MEM_OTHER, s->ix.count + 1, sizeof *t->of));
    for (size_t i = 0; i < s->ix.count; i++) t->of[i] = TR_TRAINED_USUAL;
    if (tr_document_parse("config", text, strlen(text), &t->doc) != TR_OK) goto out;
    const tr_node *train = tr_node_get(t->doc.root, "train");
    const tr_node *freeze = tr_node_get(train, "freeze");
    if (freeze && tr_patterns_check(freeze, "freeze") != TR_OK) freeze = NULL;
    t->groups = checked_groups(tr_node_get(train, "groups"));
    for (size_t i = 0; i < s->ix.count; i++) {
        if (!pattern_name(&s->ix.entries[i], name)) continue;
        const size_t k = group_of(t->groups, name);
        if (tr_patterns_match(freeze, name))
            t->of[i] = TR_TRAINED_FROZEN;
        else if (k < SIZE_MAX)
            t->of[i] = (int)k;
    }
    t->ngroups = t->groups ? t->groups->count : 0;
out:
    return st;
}

void tr_trained_close(tr_trained *t)
{
    tr_document_close(&t->doc);
    tr_free(t->of);
    *t = (tr_trained){0};
}

/* How many arrays and values there are of group `k`, or of TR_TRAINED_FROZEN. */
static size_t count(const tr_summary *s, const tr_trained *t, int k, size_t *values)
{
    size_t n = 0;
    *values = 0;
    for (size_t i = 0; i < s->ix.count; i++)
        if (t->of[i] == k) {
            *values += s->ix.entries[i].count;
            n++;
        }
    return n;
}

void tr_trained_text(const tr_summary *s, const tr_trained *t, FILE *to)
{
    char text[32];
    size_t values, n = count(s, t, TR_TRAINED_FROZEN, &values);
    if (n > 0 || t->ngroups > 0) fputs("  by the config's train.freeze and train.groups:\n", to);
    if (n > 0)
        fprintf(to, "  frozen: %zu array%s, %s values\n", n, tr_plural(n),
                tr_format_count((double)values, text, sizeof text));
    for (size_t k = 0; k < t->ngroups; k++) {
        char *line = NULL;
        n = count(s, t, (int)k, &values);
        fprintf(to, "  group %zu: %zu array%s, %s values: ", k, n, tr_plural(n),
                tr_format_count((double)values, text, sizeof text));
        if (tr_node_line(t->groups->values[k], &line) == TR_OK) tr_plain_text(line, 200, to);
        fputc('\n', to);
        tr_free(line);
    }
}

static void paths(const tr_summary *s, const tr_trained *t, int k, FILE *to)
{
    const char *before = "[";
    for (size_t i = 0; i < s->ix.count; i++) {
        if (t->of[i] != k) continue;
        fputs(before, to);
        tr_json_text(s->ix.entries[i].where, to);
        before = ", ";
    }
    fputs(*before == '[' ? "[]" : "]", to);
}

void tr_trained_json(const tr_summary *s, const tr_trained *t, FILE *to)
{
    fputs("{\"frozen\": ", to);
    paths(s, t, TR_TRAINED_FROZEN, to);
    fputs(", \"groups\": [", to);
    for (size_t k = 0; k < t->ngroups; k++) {
        const tr_node *g = t->groups->values[k];
        fputs(k ? ", {\"options\": {" : "{\"options\": {", to);
        for (size_t i = 0; i < g->count; i++) {
            char *line = NULL;
            fputs(i ? ", " : "", to);
            tr_json_text(g->keys[i]->text, to);
            fputs(": ", to);
            if (tr_node_line(g->values[i], &line) != TR_OK) line = NULL;
            tr_json_text(g->values[i]->kind == TR_NODE_SCALAR ? g->values[i]->text
                         : line                               ? line
                                                              : "",
                         to);
            tr_free(line);
        }
        fputs("}, \"arrays\": ", to);
        paths(s, t, (int)k, to);
        fputc('}', to);
    }
    fputs("]}", to);
}
