/* Columns of a CSV file as arrays: numbers as float32; categories as the place in their list, or for an input of
 * values as a 1 among 0s. The file is gone through twice, line by line: how many lines there are, then their values, of
 * which those of columns that are used are held. */
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
    tr_csv_lines csv;
    tr_csv_lines
        order; /* the names of data.train, which those of another table are taken by; columns 0: its own */
    uint64_t lines, rows; /* rows: that are not dropped */
} table;

typedef struct {
    tr_array base;
    uint64_t *lines; /* of samples */
} held_table;

/* An array in the making: its columns. */
typedef struct {
    column *columns;
    size_t count;
    bool one; /* a sample is one value, not a list of one */
    tr_array **out;
    held_table *a;
    float *to;
} part;
enum { PARTS = TR_MAX_IN + 2 }; /* inputs, targets, weights */

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

/* What columns another table than data.train has for inputs: by name, in data.train's order. */
static tr_status take_order(table *t)
{
    const tr_config *c = t->o->c;
    if (!train_names(t->o) || c->data.train.inputs) return TR_OK;
    char *path = tr_config_path(c, c->data.train.path);
    if (!path) return tr_last_status();
    tr_status st = tr_csv_lines_open(path, *c->data.table.delimiter, 0, &t->order);
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
    const tr_csv_lines *order = t->order.columns > 0 ? &t->order : &t->csv;
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

static tr_status field_fail(const table *t, const column *c, const char *text, const char *expected)
{
    return TR_FAIL(TR_DATA, "%s:%" PRIu64 ": column \"%.60s\": found \"%.60s\", expected %s",
                   t->path, t->csv.row, t->csv.names[c->at], text, expected);
}

static tr_status number(const table *t, const column *c, const char *s, float *out)
{
    char *end;
    errno = 0;
    const double v = strtod(s, &end);
    const bool plain = strspn(s, "+-0123456789.eE") == strlen(s);
    if (!plain || *end || end == s || !isfinite((float)v))
        return field_fail(t, c, s,
                          "a number (texts are named by data.table.categories, empty fields by "
                          "data.table.missing)");
    *out = (float)v;
    return TR_OK;
}

static tr_status category(const table *t, const column *c, const char *s, float *out)
{
    size_t k = 0;
    while (k < c->list->count && strcmp(c->list->values[k]->text, s) != 0) k++;
    if (k == c->list->count) return field_fail(t, c, s, "one of data.table.categories");
    if (c->spread)
        out[k] = 1;
    else
        *out = (float)k;
    return TR_OK;
}

/* Of the line that was read last. out: zeros, width(c) of them. */
static tr_status value(const table *t, const column *c, float *out)
{
    const char *s = tr_csv_trim(t->csv.fields[c->at]);
    if (is_missing(s)) {
        if (t->o->c->data.table.missing == TR_MISSING_ZERO && !c->whole) return TR_OK;
        return field_fail(t, c, s,
                          t->o->unlabeled ? c->whole ? "an id"
                                                     : "a value (data.table.missing: zero; drop "
                                                       "leaves no line of data.predict out)"
                          : c->whole      ? "a value (data.table.missing: drop)"
                                          : "a value (data.table.missing: drop or zero)");
    }
    return c->list ? category(t, c, s, out) : number(t, c, s, out);
}

/* Answers must stand in the lines of what they answer: no line is left out of what has no labels. */
static bool drops(const table *t)
{
    return t->o->c->data.table.missing == TR_MISSING_DROP && !t->o->unlabeled;
}

/* Whether the line that was read last lacks a value in one of the columns that are used. */
static bool lacks(const table *t, const part *p, size_t nparts)
{
    for (size_t i = 0; i < nparts; i++)
        for (size_t k = 0; k < p[i].count; k++)
            if (is_missing(tr_csv_trim(t->csv.fields[p[i].columns[k].at]))) return true;
    return false;
}

/* ---- The arrays -------------------------------------------------------------------------------------- */

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

static tr_status open_array(const table *t, part *p)
{
    tr_status st = TR_OK;
    uint64_t dims[2] = {t->rows, 0};
    held_table *a = TR_NEW(TR_MEM_OTHER, held_table);
    if (!a) return tr_last_status();
    for (size_t k = 0; k < p->count; k++) dims[1] += width(&p->columns[k]);
    TR_HAVE(a->base.name = tr_strdup(t->path));
    TR_TRY(tr_array_shape(&a->base, TR_ELEM_F32, p->one ? 1 : 2, dims));
    a->base.read = no_read;
    a->base.where = table_where;
    a->base.release = nothing;
    a->base.fini = table_fini;
    a->base.cache = (size_t)t->rows * sizeof *a->lines;
    TR_HAVE(a->lines = tr_alloc(TR_MEM_DATA, (size_t)t->rows, sizeof *a->lines));
    TR_HAVE(a->base.held = tr_alloc(TR_MEM_DATA, (size_t)t->rows, a->base.nbytes));
    p->to = a->base.held;
    p->a = a;
    *p->out = &a->base;
    a = NULL;
out:
    if (a) tr_array_close(&a->base);
    return st;
}

/* How many lines count, and whether what they will hold may be held. */
static tr_status count_rows(table *t, const part *p, size_t nparts, uint64_t limit)
{
    tr_status st = TR_OK;
    uint64_t each = 0;
    bool there;
    for (size_t i = 0; i < nparts; i++) {
        each += sizeof(uint64_t);
        for (size_t k = 0; k < p[i].count; k++) each += width(&p[i].columns[k]) * sizeof(float);
    }
    for (;;) {
        TR_TRY(tr_csv_lines_next(&t->csv, &there));
        if (!there) break;
        t->lines++;
        t->rows += !drops(t) || !lacks(t, p, nparts);
    }
    TR_NEED(t->lines > 0, TR_DATA,
            "%s: expected a line with the columns' names and one at least below", t->path);
    TR_NEED(t->rows > 0, TR_DATA, "%s: every line lacks a value", t->path);
    TR_NEED(t->rows <= limit / each, TR_DATA,
            "%s: %" PRIu64 " lines of %" PRIu64
            " bytes in memory each, more than data.cache_mb leaves for them (%" PRIu64
            "), and tables do not stream: raise data.cache_mb, or store it as HDF5 or NPY",
            t->path, t->rows, each, limit);
    if (t->rows < t->lines)
        tr_log(TR_LOG_INFO, "%s: %" PRIu64 " of %" PRIu64 " lines dropped: they lack a value",
               t->path, t->lines - t->rows, t->lines);
out:
    return st;
}

static tr_status fill(table *t, part *p, size_t nparts)
{
    tr_status st;
    bool there;
    uint64_t n = 0;
    TR_TRY(tr_csv_lines_rewind(&t->csv));
    for (;;) {
        TR_TRY(tr_csv_lines_next(&t->csv, &there));
        if (!there) break;
        if (drops(t) && lacks(t, p, nparts)) continue;
        TR_NEED(n < t->rows, TR_DATA, "%s: it changed while it was read", t->path);
        for (size_t i = 0; i < nparts; i++) {
            p[i].a->lines[n] = t->csv.row;
            for (size_t k = 0; k < p[i].count; p[i].to += width(&p[i].columns[k]), k++)
                TR_TRY(value(t, &p[i].columns[k], p[i].to));
        }
        n++;
    }
    TR_NEED(n == t->rows, TR_DATA, "%s: it changed while it was read", t->path);
    st = tr_data_file_unchanged(&t->csv.file);
out:
    return st;
}

static tr_status open_table(table *t)
{
    tr_status st;
    TR_TRY(tr_csv_lines_open(t->path, *t->o->c->data.table.delimiter, 0, &t->csv));
    st = take_order(t);
out:
    return st;
}

tr_status tr_table_open(const tr_opening *o, uint64_t limit, tr_array **inputs, tr_array **targets,
                        tr_array **weights)
{
    tr_status st;
    part parts[PARTS] = {{0}};
    size_t n = 0;
    table t = {.o = o, .csv.file.fd = -1, .order.file.fd = -1};
    TR_HAVE(t.path = tr_config_path(o->c, o->s->path));
    TR_TRY(open_table(&t));
    if (!o->unlabeled) {
        part *p = &parts[n++];
        p->one = !o->s->targets;
        p->out = targets;
        TR_TRY(target_columns(&t, &p->columns, &p->count));
    }
    if (!o->unlabeled && o->s->weights) {
        part *p = &parts[n++];
        p->one = true;
        p->out = weights;
        p->count = 1;
        TR_HAVE(p->columns = tr_alloc(TR_MEM_OTHER, 1, sizeof *p->columns));
        TR_TRY(find_column(&t, o->s->weights, false, p->columns));
    }
    for (size_t k = 0; k < o->m->ninputs; k++, n++) {
        parts[n].out = &inputs[k];
        TR_TRY(input_columns(&t, k, &parts[n].columns, &parts[n].count));
    }
    TR_TRY(count_rows(&t, parts, n, limit));
    for (size_t i = 0; i < n; i++) TR_TRY(open_array(&t, &parts[i]));
    st = fill(&t, parts, n);
out:
    for (size_t i = 0; i < PARTS; i++) tr_free(parts[i].columns);
    tr_csv_lines_close(&t.csv);
    tr_csv_lines_close(&t.order);
    tr_free((char *)t.path);
    return st;
}

/* ---- Categories -------------------------------------------------------------------------------------- */

/* Different texts, in order. */
typedef struct {
    char **v;
    size_t count, room;
} text_set;

static tr_status add_text(text_set *s, const char *text)
{
    tr_status st = TR_OK;
    size_t low = 0, high = s->count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strcmp(s->v[mid], text);
        if (order == 0) return TR_OK;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (s->count == s->room) {
        const size_t room = s->room ? 2 * s->room : 64;
        char **v = tr_realloc(TR_MEM_OTHER, s->v, room, sizeof *v);
        TR_HAVE(v);
        s->v = v;
        s->room = room;
    }
    char *copy = tr_strdup(text);
    TR_HAVE(copy);
    memmove(s->v + low + 1, s->v + low, (s->count - low) * sizeof *s->v);
    s->v[low] = copy;
    s->count++;
out:
    return st;
}

static tr_status find_texts(const tr_config *c, const char *path, const char *name, text_set *out)
{
    tr_status st;
    tr_csv_lines l = {.file = {.fd = -1}};
    size_t at = 0;
    bool there;
    TR_TRY(tr_csv_lines_open(path, *c->data.table.delimiter, 0, &l));
    while (at < l.columns && strcmp(l.names[at], name) != 0) at++;
    TR_NEED(at < l.columns, TR_DATA, "%s: there is no column \"%.100s\" (data.table.categories)",
            path, name);
    for (;;) {
        TR_TRY(tr_csv_lines_next(&l, &there));
        if (!there) break;
        const char *text = tr_csv_trim(l.fields[at]);
        const char *odd = tr_csv_odd_byte(text);
        TR_NEED(!odd, TR_DATA,
                "%s:%" PRIu64 ": column \"%.60s\": byte 0x%02x is not UTF-8 text, as categories "
                "must be: store the table in that encoding",
                path, l.row, name, (unsigned char)*odd);
        if (!is_missing(text)) TR_TRY(add_text(out, text));
    }
    TR_NEED(out->count > 0, TR_DATA, "%s: column \"%.100s\" is empty", path, name);
out:
    tr_csv_lines_close(&l);
    return st;
}

tr_status tr_table_categories(const tr_config *c, const char *name, FILE *to)
{
    tr_status st;
    text_set all = {0};
    char *path = NULL;
    TR_NEED(c->data.train.path, TR_CONFIG, "data.table.categories: data.train is no table");
    TR_HAVE(path = tr_config_path(c, c->data.train.path));
    TR_TRY(find_texts(c, path, name, &all));
    for (size_t i = 0; i < all.count; i++) {
        char *quoted = tr_yaml_quoted(all.v[i]);
        TR_HAVE(quoted);
        fprintf(to, "%s%s", i ? ", " : "[", quoted);
        tr_free(quoted);
    }
    fputc(']', to);
out:
    for (size_t i = 0; i < all.count; i++) tr_free(all.v[i]);
    tr_free(all.v);
    tr_free(path);
    return st;
}
