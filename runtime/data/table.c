/* Columns of a CSV file as arrays: numbers as float32; categories as the place in their list, or for an input of
 * values as a 1 among 0s. All of it is read at once. */
#include "runtime/data/csv.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct {
    size_t at;           /* in a line */
    const tr_node *list; /* categories; NULL: numbers */
    bool spread;         /* a value for each category */
    bool whole;          /* a label or an id: none can stand for a missing one */
} column;

typedef struct {
    const tr_opening *o;
    const char *path;
    tr_csv csv;
    tr_csv
        order; /* the names of data.train, which those of another table are taken by; columns 0: its own */
    bool *dropped; /* [rows] */
    uint64_t rows; /* that are not */
} table;

static bool is_missing(const char *s)
{
    static const char *const words[] = {"", "na", "n/a", "nan", "null"};
    for (size_t i = 0; i < TR_COUNT(words); i++)
        if (strcasecmp(s, words[i]) == 0) return true;
    return false;
}

bool tr_csv_missing(const char *s)
{
    return is_missing(s);
}

static size_t width(const column *c)
{
    return c->spread ? c->list->count : 1;
}

/* ---- Which columns ---------------------------------------------------------------------------------- */

static tr_status find_column(const table *t, const char *name, bool spread, column *out)
{
    const tr_node *n = tr_node_get(t->o->c->data.table.categories, name);
    size_t i = 0;
    while (i < t->csv.columns && strcmp(t->csv.names[i], name) != 0) i++;
    if (i == t->csv.columns) {
        const char *near = tr_nearest(name, (const char *const *)t->csv.names, t->csv.columns);
        return TR_FAIL(TR_DATA, "%s: there is no column \"%.100s\" (%s)%s%s%s", t->path, name,
                       t->o->block, near ? "; did you mean \"" : "", near ? near : "",
                       near ? "\"?" : "");
    }
    if (n && n->kind == TR_NODE_SCALAR)
        return TR_FAIL(TR_CONFIG,
                       "data.table.categories.%s: auto: training finds them and keeps them in its "
                       "run files; here they must be named",
                       name);
    *out = (column){.at = i, .list = n, .spread = n && spread, .whole = !spread};
    return TR_OK;
}

/* Whether data.train is a table, and so has names for the columns of others that are read without `inputs`. */
static bool train_names(const tr_opening *o)
{
    const tr_source_config *s = &o->c->data.train;
    return o->s != s && !o->s->inputs && s->path && tr_source_kind(o->c, s) == TR_FORMAT_CSV;
}

/* Bytes up to the end of the first line that is not blank; 0: it does not end there. */
static size_t first_line(const char *text, size_t n)
{
    bool in_quotes = false, any = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') in_quotes = !in_quotes;
        if (text[i] == '\n' && any && !in_quotes) return i + 1;
        any |= text[i] != '\n' && text[i] != '\r';
    }
    return 0;
}

/* The first line of a table alone. */
static tr_status read_names(const char *path, char delimiter, tr_csv *out)
{
    tr_status st;
    tr_data_file f = {.fd = -1};
    char *text = NULL;
    size_t n = 0, line = 0;
    TR_TRY(tr_data_file_open(path, &f));
    while (line == 0 && n < f.size) {
        n = n ? 4 * n : 16384;
        if (n > f.size) n = (size_t)f.size;
        tr_free(text);
        TR_HAVE(text = tr_alloc(TR_MEM_OTHER, n + 1, 1));
        TR_TRY(tr_data_file_read(&f, 0, text, n));
        line = first_line(text, n);
    }
    TR_NEED(line > 0, TR_DATA, "%s: expected a line with the columns' names", path);
    char *own = text;
    text = NULL;
    st = tr_csv_parse_names(path, own, line, delimiter, out);
out:
    tr_free(text);
    tr_data_file_close(&f);
    return st;
}

/* What columns another table than data.train has for inputs: by name, in data.train's order. */
static tr_status take_order(table *t)
{
    const tr_config *c = t->o->c;
    if (!train_names(t->o) || c->data.train.inputs) return TR_OK;
    char *path = tr_config_path(c, c->data.train.path);
    if (!path) return tr_last_status();
    tr_status st = read_names(path, *c->data.table.delimiter, &t->order);
    if (st == TR_DATA) {
        const tr_error why = *tr_last_error();
        st = TR_FAIL(TR_CONFIG,
                     "%s.inputs: expected the names of the columns: they go by data.train's, "
                     "which cannot be read (%.300s)",
                     t->o->block, why.text);
    }
    tr_free(path);
    return st;
}

static bool is(const char *name, const char *own)
{
    return own && strcmp(name, own) == 0;
}

static bool is_answer(const char *name, const tr_source_config *s)
{
    for (size_t i = 0; s->targets && i < s->targets->count; i++)
        if (is(name, s->targets->values[i]->text)) return true;
    return is(name, s->labels) || is(name, s->weights);
}

/* A label, a target or a weight. */
static bool is_label(const table *t, const char *name)
{
    return is_answer(name, t->o->s) ||
           (t->order.columns > 0 && is_answer(name, &t->o->c->data.train));
}

/* One of labels, or those of targets: *out, allocated. */
static tr_status target_columns(const table *t, column **out, size_t *count)
{
    tr_status st = TR_OK;
    const tr_source_config *s = t->o->s;
    const tr_node *n = s->targets;
    *count = n ? n->count : 1;
    TR_HAVE(*out = tr_alloc(TR_MEM_OTHER, *count, sizeof **out));
    for (size_t i = 0; i < *count; i++)
        TR_TRY(find_column(t, n ? n->values[i]->text : s->labels, false, &(*out)[i]));
out:
    return st;
}

/* Of input k: *out, allocated. */
static tr_status input_columns(const table *t, size_t k, column **out, size_t *count)
{
    tr_status st = TR_OK;
    const tr_input *in = &t->o->m->inputs[k];
    const tr_node *n = train_names(t->o) ? t->o->c->data.train.inputs : t->o->s->inputs;
    const tr_csv *order = t->order.columns > 0 ? &t->order : &t->csv;
    const bool spread = in->ids == 0;
    if (n && n->kind == TR_NODE_MAP) n = tr_node_get(n, in->name);
    column *all = tr_alloc(TR_MEM_OTHER, n ? n->count + 1 : order->columns, sizeof *all);
    TR_HAVE(all);
    *count = 0;
    if (!n)
        for (size_t i = 0; i < order->columns; i++) {
            if (is_label(t, order->names[i])) continue;
            TR_TRY(find_column(t, order->names[i], spread, &all[(*count)++]));
        }
    else if (n->kind == TR_NODE_SCALAR)
        TR_TRY(find_column(t, n->text, spread, &all[(*count)++]));
    else
        for (size_t i = 0; i < n->count; i++)
            TR_TRY(find_column(t, n->values[i]->text, spread, &all[(*count)++]));
    TR_NEED(*count > 0, TR_CONFIG, "%s: %s.inputs: there is no column for the input \"%s\"",
            t->path, t->o->block, in->name);
    *out = all;
    all = NULL;
out:
    tr_free(all);
    return st;
}

/* ---- Values ------------------------------------------------------------------------------------------ */

static tr_status field_fail(const table *t, uint64_t row, const column *c, const char *text,
                            const char *expected)
{
    return TR_FAIL(TR_DATA, "%s:%" PRIu64 ": column \"%.60s\": found \"%.60s\", expected %s",
                   t->path, t->csv.lines[row], t->csv.names[c->at], text, expected);
}

static tr_status number(const table *t, uint64_t row, const column *c, const char *s, float *out)
{
    char *end;
    errno = 0;
    const double v = strtod(s, &end);
    const bool plain = strspn(s, "+-0123456789.eE") == strlen(s);
    if (!plain || *end || end == s || !isfinite((float)v))
        return field_fail(t, row, c, s,
                          "a number (texts are named by data.table.categories, empty fields by "
                          "data.table.missing)");
    *out = (float)v;
    return TR_OK;
}

static tr_status category(const table *t, uint64_t row, const column *c, const char *s, float *out)
{
    size_t k = 0;
    while (k < c->list->count && strcmp(c->list->values[k]->text, s) != 0) k++;
    if (k == c->list->count) return field_fail(t, row, c, s, "one of data.table.categories");
    if (c->spread)
        out[k] = 1;
    else
        *out = (float)k;
    return TR_OK;
}

/* out: zeros, width(c) of them. */
static tr_status value(const table *t, uint64_t row, const column *c, float *out)
{
    const char *s = tr_csv_trim(t->csv.fields[row * t->csv.columns + c->at]);
    if (is_missing(s)) {
        if (t->o->c->data.table.missing == TR_MISSING_ZERO && !c->whole) return TR_OK;
        return field_fail(t, row, c, s,
                          t->o->unlabeled ? c->whole ? "an id"
                                                     : "a value (data.table.missing: zero; drop "
                                                       "leaves no line of data.predict out)"
                          : c->whole      ? "a value (data.table.missing: drop)"
                                          : "a value (data.table.missing: drop or zero)");
    }
    return c->list ? category(t, row, c, s, out) : number(t, row, c, s, out);
}

/* Lines that lack a value in one of the columns. */
static void drop(table *t, const column *c, size_t count)
{
    for (uint64_t i = 0; i < t->csv.rows; i++)
        for (size_t k = 0; k < count && !t->dropped[i]; k++) {
            t->dropped[i] = is_missing(tr_csv_trim(t->csv.fields[i * t->csv.columns + c[k].at]));
            t->rows -= t->dropped[i];
        }
}

/* ---- The arrays -------------------------------------------------------------------------------------- */

typedef struct {
    tr_array base;
    uint64_t *lines; /* of samples */
} held_table;

static tr_status no_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    memcpy(to, (const char *)a->held + first * a->nbytes, (size_t)n * a->nbytes);
    return TR_OK;
}

static void nothing(tr_array *a)
{
    (void)a;
}

static void table_where(const tr_array *a, uint64_t i, char *buf, size_t size)
{
    snprintf(buf, size, "%s:%" PRIu64, a->name, ((const held_table *)a)->lines[i]);
}

static void table_fini(tr_array *a)
{
    tr_free(((held_table *)a)->lines);
}

/* one: a sample is one value, not a list of one. */
static tr_status make_array(const table *t, const column *c, size_t count, bool one, tr_array **out)
{
    tr_status st = TR_OK;
    uint64_t dims[2] = {t->rows, 0}, n = 0;
    held_table *a = TR_NEW(TR_MEM_OTHER, held_table);
    if (!a) return tr_last_status();
    for (size_t k = 0; k < count; k++) dims[1] += width(&c[k]);
    TR_HAVE(a->base.name = tr_strdup(t->path));
    TR_TRY(tr_array_shape(&a->base, TR_ELEM_F32, one ? 1 : 2, dims));
    a->base.read = no_read;
    a->base.where = table_where;
    a->base.release = nothing;
    a->base.fini = table_fini;
    TR_HAVE(a->lines = tr_alloc(TR_MEM_DATA, (size_t)t->rows, sizeof *a->lines));
    TR_HAVE(a->base.held = tr_alloc(TR_MEM_DATA, (size_t)t->rows, a->base.nbytes));
    float *to = a->base.held;
    for (uint64_t i = 0; i < t->csv.rows; i++) {
        if (t->dropped[i]) continue;
        a->lines[n++] = t->csv.lines[i];
        for (size_t k = 0; k < count; to += width(&c[k]), k++) TR_TRY(value(t, i, &c[k], to));
    }
    *out = &a->base;
    a = NULL;
out:
    if (a) tr_array_close(&a->base);
    return st;
}

static tr_status read_file(table *t, uint64_t limit)
{
    tr_status st;
    tr_data_file f = {.fd = -1};
    char *text = NULL;
    TR_TRY(tr_data_file_open(t->path, &f));
    TR_NEED(f.size <= limit, TR_DATA,
            "%s: %" PRIu64 " bytes, more than data.cache_mb leaves for it (%" PRIu64
            "), and tables are read whole: raise data.cache_mb, or store it as HDF5",
            t->path, f.size, limit);
    TR_HAVE(text = tr_alloc(TR_MEM_OTHER, (size_t)f.size + 1, 1));
    TR_TRY(tr_data_file_read(&f, 0, text, (size_t)f.size));
    char *own = text;
    text = NULL;
    TR_TRY(tr_csv_parse(t->path, own, (size_t)f.size, *t->o->c->data.table.delimiter, &t->csv));
    t->rows = t->csv.rows;
    TR_HAVE(t->dropped = tr_alloc(TR_MEM_OTHER, (size_t)t->rows, sizeof *t->dropped));
out:
    tr_free(text);
    tr_data_file_close(&f);
    return st;
}

tr_status tr_table_open(const tr_opening *o, uint64_t limit, tr_array **inputs, tr_array **targets,
                        tr_array **weights)
{
    tr_status st;
    column *of[TR_MAX_IN] = {0}, *label = NULL, weight = {0};
    size_t counts[TR_MAX_IN], nlabel = 0;
    const bool labeled = !o->unlabeled, weighted = labeled && o->s->weights;
    table t = {.o = o};
    TR_HAVE(t.path = tr_config_path(o->c, o->s->path));
    TR_TRY(read_file(&t, limit));
    TR_TRY(take_order(&t));
    if (labeled) TR_TRY(target_columns(&t, &label, &nlabel));
    if (weighted) TR_TRY(find_column(&t, o->s->weights, false, &weight));
    for (size_t k = 0; k < o->m->ninputs; k++) TR_TRY(input_columns(&t, k, &of[k], &counts[k]));
    /* answers must stand in the lines of what they answer */
    if (o->c->data.table.missing == TR_MISSING_DROP && labeled) {
        drop(&t, label, nlabel);
        if (weighted) drop(&t, &weight, 1);
        for (size_t k = 0; k < o->m->ninputs; k++) drop(&t, of[k], counts[k]);
        TR_NEED(t.rows > 0, TR_DATA, "%s: every line lacks a value", t.path);
        if (t.rows < t.csv.rows)
            tr_log(TR_LOG_INFO, "%s: %" PRIu64 " of %" PRIu64 " lines dropped: they lack a value",
                   t.path, t.csv.rows - t.rows, t.csv.rows);
    }
    for (size_t k = 0; k < o->m->ninputs; k++)
        TR_TRY(make_array(&t, of[k], counts[k], false, &inputs[k]));
    if (labeled) TR_TRY(make_array(&t, label, nlabel, !o->s->targets, targets));
    if (weighted) st = make_array(&t, &weight, 1, true, weights);
out:
    for (size_t k = 0; k < TR_MAX_IN; k++) tr_free(of[k]);
    tr_free(label);
    tr_csv_free(&t.csv);
    tr_csv_free(&t.order);
    tr_free(t.dropped);
    tr_free((char *)t.path);
    return st;
}

/* ---- Categories -------------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

tr_status tr_table_categories(const tr_config *c, const char *name, FILE *to)
{
    tr_status st;
    const tr_opening o = {.c = c, .s = &c->data.train, .block = "data.train"};
    table t = {.o = &o};
    char **all = NULL;
    size_t at = 0, n = 0, written = 0;
    TR_NEED(c->data.train.path, TR_CONFIG, "data.table.categories: data.train is no table");
    TR_HAVE(t.path = tr_config_path(c, c->data.train.path));
    TR_TRY(read_file(&t, UINT64_MAX));
    while (at < t.csv.columns && strcmp(t.csv.names[at], name) != 0) at++;
    TR_NEED(at < t.csv.columns, TR_DATA,
            "%s: there is no column \"%.100s\" (data.table.categories)", t.path, name);
    TR_HAVE(all = tr_alloc(TR_MEM_OTHER, (size_t)t.rows, sizeof *all));
    for (uint64_t i = 0; i < t.rows; i++) {
        all[n] = tr_csv_trim(t.csv.fields[i * t.csv.columns + at]);
        n += !is_missing(all[n]);
    }
    qsort(all, n, sizeof *all, by_text);
    TR_NEED(n > 0, TR_DATA, "%s: column \"%.100s\" is empty", t.path, name);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(all[i], all[i - 1]) == 0) continue;
        char *quoted = tr_yaml_quoted(all[i]);
        TR_HAVE(quoted);
        fprintf(to, "%s%s", written++ ? ", " : "[", quoted);
        tr_free(quoted);
    }
    fputc(']', to);
out:
    tr_free(all);
    tr_csv_free(&t.csv);
    tr_free(t.dropped);
    tr_free((char *)t.path);
    return st;
}
