/* A CSV file as arrays: which of its columns become which array. */
#include "runtime/data/table.h"

#include <string.h>

enum { PARTS = TR_MAX_IN + 2 }; /* inputs, targets, weights */

static tr_status sort_categories(tr_csv_column *c)
{
    c->places = tr_alloc(TR_MEM_OTHER, c->list->count, sizeof *c->places);
    if (!c->places) return tr_last_status();
    for (size_t k = 0; k < c->list->count; k++)
        c->places[k] = (tr_text_place){c->list->values[k]->text, k};
    tr_text_places_sort(c->places, c->list->count);
    return TR_OK;
}

static tr_status find_column(const tr_csv_table *t, const char *name, bool spread,
                             tr_csv_column *out)
{
    const tr_node *n = tr_node_get(t->o->c->data.table.categories, name);
    size_t i = 0;
    while (i < t->csv.columns && strcmp(t->csv.names[i], name) != 0) i++;
    if (i == t->csv.columns) {
        const char *near = tr_nearest(name, (const char *const *)t->csv.names, t->csv.columns);
        return TR_FAIL(TR_DATA, "%s: there is no column \"%.100s\" (%s)%s%s%s", t->path, name,
                       t->o->block, near ? "; did you mean \"" : "", near ? near : "",
                       near                  ? "\"?"
                       : t->csv.columns == 1 ? TR_CSV_OTHER_DELIMITER
                                             : "");
    }
    if (n && n->kind == TR_NODE_SCALAR)
        return tr_node_fail(n,
                            "data.table.categories.%s: auto: training finds them and keeps them in "
                            "its run files; here they must be named",
                            name);
    *out = (tr_csv_column){.at = i, .list = n, .spread = n && spread, .whole = !spread};
    return n ? sort_categories(out) : TR_OK;
}

/* Whether data.train is a table, and so has names for the columns of others that are read without
 * `inputs`. */
static bool train_names(const tr_opening *o)
{
    const tr_source_config *s = &o->c->data.train;
    return o->s != s && !o->s->inputs && s->path && tr_source_kind(o->c, s) == TR_FORMAT_CSV;
}

/* What columns another table than data.train has for inputs: by name, in data.train's order. */
static tr_status take_order(tr_csv_table *t)
{
    const tr_config *c = t->o->c;
    if (!train_names(t->o) || c->data.train.inputs) return TR_OK;
    char *path = tr_config_path(c, c->data.train.path);
    if (!path) return tr_last_status();
    tr_status st =
        tr_csv_lines_open(path, *c->data.table.delimiter, c->data.table.header, 0, &t->order);
    if (st == TR_DATA) {
        const tr_error why = *tr_last_error();
        st = tr_opening_fail(t->o, "inputs",
                             "expected the names of the columns: they go by data.train's, which "
                             "cannot be read (%.300s)",
                             why.text);
    }
    tr_free(path);
    return st;
}

static bool is(const char *name, const char *own)
{
    return own && strcmp(name, own) == 0;
}

static bool is_target(const char *name, const tr_source_config *s)
{
    for (size_t i = 0; s->targets && i < s->targets->count; i++)
        if (is(name, s->targets->values[i]->text)) return true;
    return is(name, s->labels);
}

static bool is_answer(const char *name, const tr_source_config *s)
{
    return is_target(name, s) || is(name, s->weights);
}

/* A label, a target or a weight. */
static bool is_label(const tr_csv_table *t, const char *name)
{
    return is_answer(name, t->o->s) ||
           (t->order.columns > 0 && is_answer(name, &t->o->c->data.train));
}

/* One column more of a part, which has room for it. */
static tr_status add_column(const tr_csv_table *t, const char *name, bool spread, tr_csv_part *p)
{
    return find_column(t, name, spread, &p->columns[p->count++]);
}

/* The same of numbers: places in a list of texts are no amounts. */
static tr_status add_number(const tr_csv_table *t, const char *key, const char *name,
                            tr_csv_part *p)
{
    tr_status st;
    TR_TRY(add_column(t, name, false, p));
    if (p->columns[p->count - 1].list)
        st = tr_opening_fail(t->o, key,
                             "\"%s\" is a column of texts (data.table.categories), expected one of "
                             "numbers",
                             name);
out:
    return st;
}

/* One of labels, or those of targets. */
static tr_status target_columns(const tr_csv_table *t, tr_csv_part *p)
{
    tr_status st = TR_OK;
    const tr_source_config *s = t->o->s;
    const tr_node *n = s->targets;
    p->one = !n;
    TR_HAVE(p->columns = tr_alloc(TR_MEM_OTHER, n ? n->count : 1, sizeof *p->columns));
    if (!n) TR_TRY(add_column(t, s->labels, false, p));
    for (size_t i = 0; n && i < n->count; i++)
        TR_TRY(add_number(t, "targets", n->values[i]->text, p));
out:
    return st;
}

static tr_status weight_column(const tr_csv_table *t, tr_csv_part *p)
{
    p->one = true;
    p->columns = tr_alloc(TR_MEM_OTHER, 1, sizeof *p->columns);
    if (!p->columns) return tr_last_status();
    return add_number(t, "weights", t->o->s->weights, p);
}

/* What `inputs` says of this table's columns; NULL: nothing. */
static const tr_node *inputs_of(const tr_opening *o)
{
    return train_names(o) ? o->c->data.train.inputs : o->s->inputs;
}

/* What is to be learned is no input. Where all inputs are targets, as an autoencoder's are, that is
 * meant. */
static tr_status check_leaks(const tr_opening *o)
{
    const tr_node *n = inputs_of(o), *leak = NULL;
    const bool map = n && n->kind == TR_NODE_MAP;
    size_t others = 0;
    for (size_t i = 0; n && i < (map ? n->count : 1); i++) {
        const tr_node *v = map ? n->values[i] : n;
        const bool list = v->kind == TR_NODE_LIST;
        for (size_t k = 0; k < (list ? v->count : 1); k++) {
            const tr_node *column = list ? v->values[k] : v;
            if (!is_target(column->text, o->s))
                others++;
            else if (!leak)
                leak = column;
        }
    }
    if (!leak || (o->s->targets && others == 0)) return TR_OK;
    return tr_node_fail(
        leak,
        "%s.inputs: column \"%.100s\" is of the %s, too: a model that is given the answer learns "
        "to copy it",
        train_names(o) ? "data.train" : o->block, leak->text, o->s->targets ? "targets" : "labels");
}

/* Of input k. */
static tr_status input_columns(const tr_csv_table *t, size_t k, tr_csv_part *p)
{
    tr_status st = TR_OK;
    const tr_input *in = &t->o->m->inputs[k];
    const tr_node *n = inputs_of(t->o);
    const tr_csv_lines *order = t->order.columns > 0 ? &t->order : &t->csv;
    const bool spread = in->ids == 0;
    if (n && n->kind == TR_NODE_MAP) n = tr_node_get(n, in->name);
    p->columns = tr_alloc(TR_MEM_OTHER, n ? n->count + 1 : order->columns, sizeof *p->columns);
    TR_HAVE(p->columns);
    for (size_t i = 0; !n && i < order->columns; i++)
        if (!is_label(t, order->names[i])) TR_TRY(add_column(t, order->names[i], spread, p));
    if (n && n->kind == TR_NODE_SCALAR) TR_TRY(add_column(t, n->text, spread, p));
    for (size_t i = 0; n && n->kind == TR_NODE_LIST && i < n->count; i++)
        TR_TRY(add_column(t, n->values[i]->text, spread, p));
    if (p->count == 0)
        st = tr_opening_fail(t->o, "inputs", "there is no column of %s for the input \"%s\"",
                             t->path, in->name);
out:
    return st;
}

static void free_part(tr_csv_part *p)
{
    for (size_t k = 0; k < p->count; k++) tr_free(p->columns[k].places);
    tr_free(p->columns);
}

static tr_status open_table(tr_csv_table *t)
{
    tr_status st;
    const tr_config *c = t->o->c;
    TR_TRY(tr_csv_lines_open(t->path, *c->data.table.delimiter, c->data.table.header, 0, &t->csv));
    st = take_order(t);
out:
    return st;
}

tr_status tr_table_open(const tr_opening *o, uint64_t limit, tr_array **inputs, tr_array **targets,
                        tr_array **weights)
{
    tr_status st;
    tr_csv_part parts[PARTS] = {{0}};
    size_t n = 0;
    tr_csv_table t = {.o = o, .csv.file.fd = -1, .order.file.fd = -1};
    TR_HAVE(t.path = tr_config_path(o->c, o->s->path));
    TR_TRY(open_table(&t));
    if (!o->unlabeled) {
        TR_TRY(check_leaks(o));
        parts[n].out = targets;
        TR_TRY(target_columns(&t, &parts[n++]));
    }
    if (!o->unlabeled && o->s->weights) {
        parts[n].out = weights;
        TR_TRY(weight_column(&t, &parts[n++]));
    }
    for (size_t k = 0; k < o->m->ninputs; k++) {
        parts[n].out = &inputs[k];
        TR_TRY(input_columns(&t, k, &parts[n++]));
    }
    st = tr_csv_fill(&t, parts, n, limit);
out:
    for (size_t i = 0; i < PARTS; i++) free_part(&parts[i]);
    tr_csv_lines_close(&t.csv);
    tr_csv_lines_close(&t.order);
    tr_free((char *)t.path);
    return st;
}
