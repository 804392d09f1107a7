/* Keys with the values that they may have, as written: lists, and ranges of numbers. */
#include "optimize/sweep/sweep.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double from, to, step;
    int scale;
} range;

static const char *const scales[] = {"linear", "log", NULL};
const tr_field tr_sweep_range_fields[] = {
    TR_REAL("from", offsetof(range, from), NULL, -DBL_MAX, DBL_MAX, NULL,
            "least value; where both ends are written as integers, so are all values"),
    TR_REAL("to", offsetof(range, to), NULL, -DBL_MAX, DBL_MAX, NULL, "greatest value"),
    TR_REAL(
        "step", offsetof(range, step), "none", 0, DBL_MAX, NULL,
        "between values, from the least on; none: 1 between integers, else any value, with four "
        "digits",
        .auto_text = "none", .auto_value = 0),
    TR_CHOICE("scale", offsetof(range, scale), scales, "linear",
              "log: ratios count, not differences; without step"),
    TR_END,
};

/* ---- Reading --------------------------------------------------------------------------------- */

static bool is_integer(const tr_node *map, const char *key)
{
    const char *text = tr_node_get(map, key)->text;
    text += *text == '-';
    return *text && !text[strspn(text, "0123456789")];
}

static tr_status read_range(const tr_node *n, const char *path, tr_sweep_axis *a)
{
    tr_status st;
    range r;
    TR_TRY(tr_fields_read(n, tr_sweep_range_fields, path, &r));
    a->from = r.from;
    a->to = r.to;
    a->log = r.scale == 1;
    a->integer = is_integer(n, "from") && is_integer(n, "to") && r.step == floor(r.step);
    a->step = r.step > 0 ? r.step : a->integer && !a->log ? 1 : 0;
    if (a->from >= a->to) return tr_node_fail(n, "%s: `from` must be less than `to`", path);
    if (a->log && a->from <= 0)
        return tr_node_fail(n, "%s: `scale: log` needs `from` above 0", path);
    if (a->log && r.step > 0) return tr_node_fail(n, "%s: `scale: log` goes without `step`", path);
    const double count = a->step > 0 ? floor((a->to - a->from) / a->step * (1 + 1e-12)) + 1 : 0;
    if (count > 1e9) return tr_node_fail(n, "%s: more than 1e9 values", path);
    a->count = (size_t)count;
out:
    return st;
}

static tr_status check_choices(const tr_node *list, const char *path)
{
    for (size_t i = 0; i < list->count; i++)
        for (size_t k = 0; k < i; k++) {
            const tr_node *a = list->values[i], *b = list->values[k];
            if (a->kind == TR_NODE_SCALAR && b->kind == TR_NODE_SCALAR && a->quoted == b->quoted &&
                strcmp(a->text, b->text) == 0)
                return tr_node_fail(a, "%s: %s stands twice; it is already at %d:%d", path, a->text,
                                    b->line, b->column);
        }
    return TR_OK;
}

static tr_status read_axis(const tr_node *key, const tr_node *n, const char *what, bool ranges,
                           tr_sweep_axis *a)
{
    tr_status st;
    char *path = tr_sprintf("%s.%s", what, key->text);
    TR_HAVE(path);
    *a = (tr_sweep_axis){.key = key, .at = n};
    if (n->kind == TR_NODE_LIST && n->count > 0) {
        a->choices = true;
        a->count = n->count;
        TR_TRY(check_choices(n, path));
    } else if (ranges && n->kind == TR_NODE_MAP) {
        TR_TRY(read_range(n, path, a));
    } else {
        st = tr_node_fail(n, "%s: expected a list of values%s", path,
                          ranges ? ", or a range {from: a, to: b}" : "");
    }
out:
    tr_free(path);
    return st;
}

tr_status tr_sweep_space_read(const tr_node *map, const char *what, bool ranges,
                              tr_sweep_space *out)
{
    tr_status st = TR_OK;
    tr_sweep_space s = {0};
    if (map->kind != TR_NODE_MAP || map->count == 0)
        return tr_node_fail(map, "%s: expected a map of keys to lists of values", what);
    s.axes = tr_alloc(TR_MEM_OTHER, map->count, sizeof *s.axes);
    TR_HAVE(s.axes);
    for (; s.count < map->count; s.count++)
        TR_TRY(read_axis(map->keys[s.count], map->values[s.count], what, ranges, &s.axes[s.count]));
out:
    if (st != TR_OK)
        tr_sweep_space_free(&s);
    else
        *out = s;
    return st;
}

void tr_sweep_space_free(tr_sweep_space *s)
{
    tr_free(s->axes);
    *s = (tr_sweep_space){0};
}

/* ---- Points ---------------------------------------------------------------------------------- */

size_t tr_sweep_space_size(const tr_sweep_space *s)
{
    size_t size = 1;
    for (size_t k = 0; k < s->count; k++)
        if (s->axes[k].count == 0 || !tr_mul_size(size, s->axes[k].count, &size)) return SIZE_MAX;
    return size;
}

void tr_sweep_space_at(const tr_sweep_space *s, size_t index, double *point)
{
    for (size_t k = s->count; k-- > 0;) {
        point[k] = (double)(index % s->axes[k].count);
        index /= s->axes[k].count;
    }
}

void tr_sweep_axis_value(const tr_sweep_axis *a, double setting, tr_sweep_value *v)
{
    if (a->choices) {
        v->node = *a->at->values[(size_t)setting];
        return;
    }
    const double value = a->count ? a->from + a->step * setting : setting;
    if (a->integer)
        snprintf(v->text, sizeof v->text, "%.0f", value);
    else /* twelve digits: 0.1 + 2 * 0.1 is 0.3 */
        snprintf(v->text, sizeof v->text, "%.12g", value);
    v->node = (tr_node){.kind = TR_NODE_SCALAR,
                        .source = a->at->source,
                        .line = a->at->line,
                        .column = a->at->column,
                        .text = v->text};
}
