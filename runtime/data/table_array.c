/* A table's arrays: numbers as float64, or float32 where that holds all of them as they are;
 * categories as the place in their list, or for an input of values as a 1 among 0s. The file is
 * gone through twice, line by line: how many lines there are, then their values, of which those of
 * columns that are used are held. */
#include "runtime/data/table.h"

#include <inttypes.h>
#include <string.h>

static size_t width(const tr_csv_column *c)
{
    return c->spread ? c->list->count : 1;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static tr_status field_fail(const tr_csv_table *t, const tr_csv_column *c, const char *text,
                            const char *expected)
{
    return TR_FAIL(TR_DATA, "%s:%" PRIu64 ": column \"%.60s\": found \"%.60s\", expected %s",
                   t->path, t->csv.row, t->csv.names[c->at], text, expected);
}

static tr_status number(const tr_csv_table *t, const tr_csv_column *c, const char *s, double *out)
{
    if (!tr_csv_number(s, out))
        return field_fail(t, c, s,
                          tr_csv_decimal_comma(s)
                              ? "a point in the place of its comma: a number as 1.5"
                              : "a number (texts are named by data.table.categories, empty fields "
                                "by data.table.missing)");
    return TR_OK;
}

static tr_status category(const tr_csv_table *t, const tr_csv_column *c, const char *s, double *out)
{
    const tr_text_place *p = tr_text_places_find(c->places, c->list->count, s);
    if (!p) return field_fail(t, c, s, "one of data.table.categories");
    if (c->spread)
        out[p->place] = 1;
    else
        *out = (double)p->place;
    return TR_OK;
}

/* Of the line that was read last. out: zeros, width(c) of them. */
static tr_status value(const tr_csv_table *t, const tr_csv_column *c, double *out)
{
    const char *s = tr_csv_trim(t->csv.fields[c->at]);
    if (tr_csv_missing(s)) {
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

/* Answers must stand in the lines of what they answer: no line is left out of what has no
 * labels. */
static bool drops(const tr_csv_table *t)
{
    return t->o->c->data.table.missing == TR_MISSING_DROP && !t->o->unlabeled;
}

/* Whether the line that was read last lacks a value in one of the columns that are used. */
static bool lacks(const tr_csv_table *t, const tr_csv_part *p, size_t nparts)
{
    for (size_t i = 0; i < nparts; i++)
        for (size_t k = 0; k < p[i].count; k++)
            if (tr_csv_missing(tr_csv_trim(t->csv.fields[p[i].columns[k].at]))) return true;
    return false;
}

/* ---- The arrays ------------------------------------------------------------------------------ */

typedef struct {
    tr_array base;
    uint64_t *lines; /* of samples */
    char **columns;  /* [base.count] that the values are of */
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

static const char *table_column(const tr_array *a, size_t place)
{
    return ((const held_table *)a)->columns[place];
}

static void table_fini(tr_array *a)
{
    held_table *t = (held_table *)a;
    for (size_t k = 0; t->columns && k < a->count; k++) tr_free(t->columns[k]);
    tr_free(t->columns);
    tr_free(t->lines);
}

static size_t values(const tr_csv_part *p)
{
    size_t n = 0;
    for (size_t k = 0; k < p->count; k++) n += width(&p->columns[k]);
    return n;
}

static tr_status name_columns(const tr_csv_table *t, const tr_csv_part *p, held_table *a)
{
    tr_status st = TR_OK;
    size_t n = 0;
    TR_HAVE(a->columns = tr_alloc(TR_MEM_OTHER, a->base.count, sizeof *a->columns));
    for (size_t k = 0; k < p->count; k++)
        for (const size_t end = n + width(&p->columns[k]); n < end; n++)
            TR_HAVE(a->columns[n] = tr_strdup(t->csv.names[p->columns[k].at]));
out:
    return st;
}

static tr_status open_array(const tr_csv_table *t, tr_csv_part *p)
{
    tr_status st = TR_OK;
    const uint64_t dims[2] = {t->rows, values(p)};
    held_table *a = TR_NEW(TR_MEM_OTHER, held_table);
    if (!a) return tr_last_status();
    TR_HAVE(a->base.name = tr_strdup(t->path));
    TR_TRY(tr_array_shape(&a->base, TR_ELEM_F64, p->one ? 1 : 2, dims));
    a->base.read = no_read;
    a->base.where = table_where;
    a->base.column = table_column;
    a->base.release = nothing;
    a->base.fini = table_fini;
    TR_TRY(name_columns(t, p, a));
    a->base.cache = (size_t)t->rows * sizeof *a->lines;
    TR_HAVE(a->lines = tr_alloc(TR_MEM_DATA, (size_t)t->rows, sizeof *a->lines));
    TR_HAVE(a->base.held = tr_alloc(TR_MEM_DATA, (size_t)t->rows, a->base.nbytes));
    p->to = a->base.held;
    p->lines = a->lines;
    *p->out = &a->base;
    a = NULL;
out:
    if (a) tr_array_close(&a->base);
    return st;
}

/* Once, however often a program reads the file, and by which path. */
static void say_dropped(const tr_csv_table *t)
{
    char once[64];
    snprintf(once, sizeof once, "dropped %" PRIx64 ":%" PRIx64, t->csv.file.device,
             t->csv.file.inode);
    tr_log_once(TR_LOG_INFO, once,
                "%s: %" PRIu64 " of %" PRIu64 " lines dropped: they lack a value", t->path,
                t->lines - t->rows, t->lines);
}

/* How many lines count, and whether what they will hold may be held. */
static tr_status count_rows(tr_csv_table *t, const tr_csv_part *p, size_t nparts, uint64_t limit)
{
    tr_status st = TR_OK;
    uint64_t each = 0;
    bool there;
    for (size_t i = 0; i < nparts; i++) each += sizeof(uint64_t) + values(&p[i]) * sizeof(double);
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
    if (t->rows < t->lines) say_dropped(t);
out:
    return st;
}

/* As float32 where that holds every number as it is. */
static tr_status narrow(tr_array *a)
{
    const size_t n = (size_t)a->samples * a->count;
    const double *from = a->held;
    float *to = a->held;
    for (size_t i = 0; i < n; i++)
        if ((double)(float)from[i] != from[i]) return TR_OK;
    for (size_t i = 0; i < n; i++) to[i] = (float)from[i];
    a->elem = TR_ELEM_F32;
    a->nbytes = a->count * sizeof(float);
    to = tr_realloc(TR_MEM_DATA, to, (size_t)a->samples, a->nbytes);
    if (!to) return tr_last_status();
    a->held = to;
    return TR_OK;
}

static tr_status fill(tr_csv_table *t, tr_csv_part *p, size_t nparts)
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
            p[i].lines[n] = t->csv.row;
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

tr_status tr_csv_fill(tr_csv_table *t, tr_csv_part *parts, size_t nparts, uint64_t limit)
{
    tr_status st;
    TR_TRY(count_rows(t, parts, nparts, limit));
    for (size_t i = 0; i < nparts; i++) TR_TRY(open_array(t, &parts[i]));
    TR_TRY(fill(t, parts, nparts));
    for (size_t i = 0; i < nparts; i++) TR_TRY(narrow(*parts[i].out));
out:
    return st;
}
