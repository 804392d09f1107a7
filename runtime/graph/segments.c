/* train.recompute.segments: which layers are recomputed together, by their names in a config, by
 * their places in a model. */
#include "runtime/graph/graph.h"

#include <stdlib.h>
#include <string.h>

static tr_status find_layer(const tr_model *m, const tr_node *n, size_t *layer)
{
    const char *names[1];
    if (n->kind != TR_NODE_SCALAR)
        return tr_node_fail(n, "train.recompute.segments: expected the name of a layer");
    for (size_t i = 0; i < m->nlayers; i++)
        if (strcmp(m->layers[i].name, n->text) == 0) {
            *layer = i;
            return TR_OK;
        }
    const char *near = NULL;
    for (size_t i = 0; i < m->nlayers && !near; i++) {
        names[0] = m->layers[i].name;
        near = tr_nearest(n->text, names, 1);
    }
    return tr_node_fail(n, "train.recompute.segments: the model has no layer \"%s\"%s%s%s", n->text,
                        near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static tr_status read_one(const tr_model *m, const tr_node *n, int number, int *segments)
{
    tr_status st = TR_OK;
    size_t first, last;
    if (n->kind != TR_NODE_LIST || n->count != 2)
        return tr_node_fail(n, "train.recompute.segments: expected [first layer, last layer]");
    TR_TRY(find_layer(m, n->values[0], &first));
    TR_TRY(find_layer(m, n->values[1], &last));
    if (first > last)
        return tr_node_fail(n, "train.recompute.segments: \"%s\" comes after \"%s\"",
                            m->layers[first].name, m->layers[last].name);
    for (size_t l = first; l <= last; l++) {
        if (segments[l] >= 0)
            return tr_node_fail(n, "train.recompute.segments: \"%s\" stands in two segments",
                                m->layers[l].name);
        segments[l] = number;
    }
out:
    return st;
}

tr_status tr_segments_read(const tr_config *c, const tr_model *m, int **out)
{
    tr_status st = TR_OK;
    const tr_node *list = c->train.recompute.segments;
    int *segments = NULL;
    *out = NULL;
    if (c->train.recompute.kind.which != TR_RECOMPUTE_SEGMENTS) return TR_OK;
    if (list->kind != TR_NODE_LIST || list->count == 0)
        return tr_node_fail(list, "train.recompute.segments: expected a list of "
                                  "[first layer, last layer]");
    TR_HAVE(segments = tr_alloc(TR_MEM_OTHER, m->nlayers + 1, sizeof *segments));
    for (size_t l = 0; l <= m->nlayers; l++) segments[l] = -1;
    for (size_t i = 0; i < list->count; i++) TR_TRY(read_one(m, list->values[i], (int)i, segments));
    *out = segments;
    return TR_OK;
out:
    tr_free(segments);
    return st;
}

tr_status tr_segments_text(const tr_model *m, const int *segments, char **out)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t size, n = 0;
    FILE *to = open_memstream(&text, &size);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory for segments");
    fputc('[', to);
    for (size_t l = 0, end; l < m->nlayers; l = end) {
        for (end = l + 1; end < m->nlayers && segments[end] == segments[l];) end++;
        if (segments[l] < 0) continue;
        char *first = tr_yaml_quoted(m->layers[l].name),
             *last = tr_yaml_quoted(m->layers[end - 1].name);
        if (!first || !last) st = tr_last_status();
        if (st == TR_OK) fprintf(to, "%s[%s, %s]", n++ ? ", " : "", first, last);
        tr_free(first);
        tr_free(last);
    }
    fputc(']', to);
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "no memory for segments");
    if (st == TR_OK && !(*out = tr_strdup(text))) st = tr_last_status();
    free(text);
    return st;
}
