/* /stages of a run file: a group for each stage that led to it, with values as attributes and
 * tables as groups of columns. The order of stages is that of their numbered names, the order of
 * columns that in which they were written. */
#include "runtime/store/internal.h"

#include <stdlib.h>
#include <string.h>

static tr_status write_table(tr_image *im, const char *stage, const tr_table *t)
{
    tr_status st = TR_OK;
    tr_attrs attrs = {0};
    const int64_t n = (int64_t)t->nrows;
    char *column = NULL, *group = tr_sprintf("/stages/%s/%s", stage, t->name);
    TR_HAVE(group);
    size_t names = 0;
    for (size_t i = 0; i < t->ncolumns; i++) names += strlen(t->columns[i].name);
    TR_TRY(tr_attrs_add_text(&attrs, "rows", t->rows));
    TR_TRY(tr_image_group_of(im, group, t->ncolumns, names));
    TR_TRY(tr_image_attrs(im, group, &attrs));
    for (size_t i = 0; i < t->ncolumns; i++) {
        tr_free(column);
        column = tr_sprintf("%s/%s", group, t->columns[i].name);
        TR_HAVE(column);
        TR_TRY(tr_image_array(im, column, TR_F64, 1, &n, t->columns[i].v));
    }
out:
    tr_free(column);
    tr_free(group);
    tr_attrs_free(&attrs);
    return st;
}

static tr_status write_stage(tr_image *im, const tr_findings *f)
{
    tr_status st = TR_OK;
    char *group = tr_sprintf("/stages/%s", f->stage);
    TR_HAVE(group);
    TR_TRY(tr_image_group(im, group));
    TR_TRY(tr_image_attrs(im, group, &f->values));
    for (size_t i = 0; i < f->ntables; i++) TR_TRY(write_table(im, f->stage, &f->tables[i]));
out:
    tr_free(group);
    return st;
}

tr_status tr_lineage_write(tr_image *im, const tr_lineage *l)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < l->count; i++) TR_TRY(write_stage(im, &l->v[i]));
out:
    return st;
}

static tr_status copy_values(const tr_attrs *from, tr_attrs *to)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < from->count; i++) {
        const tr_attr *a = &from->v[i];
        if (a->kind == TR_ATTR_COUNT) TR_TRY(tr_attrs_add_count(to, a->name, a->u));
        if (a->kind == TR_ATTR_REAL) TR_TRY(tr_attrs_add_real(to, a->name, a->f));
        if (a->kind == TR_ATTR_TEXT) TR_TRY(tr_attrs_add_text(to, a->name, a->text));
    }
out:
    return st;
}

/* Names of rows, in place: newlines become ends of texts. *names points into `text`. */
static tr_status split_rows(char *text, const char ***names, size_t *count)
{
    *count = 0;
    for (const char *p = text; *p; p++) *count += *p == '\n';
    *names = tr_alloc(TR_MEM_OTHER, *count, sizeof **names);
    if (!*names) return tr_last_status();
    size_t n = 0;
    for (char *p = text, *end; n < *count && (end = strchr(p, '\n')); p = end + 1) {
        *end = 0;
        (*names)[n++] = p;
    }
    return TR_OK;
}

static int by_place(const void *a, const void *b)
{
    const tr_entry *x = *(const tr_entry *const *)a, *y = *(const tr_entry *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The table's columns in the order of their places. *out is allocated. */
static tr_status columns_of(const tr_index *ix, const char *group, const tr_entry ***out, size_t *n)
{
    const size_t length = strlen(group);
    *n = 0;
    *out = tr_alloc(TR_MEM_OTHER, ix->count, sizeof **out);
    if (!*out) return tr_last_status();
    for (size_t i = 0; i < ix->count; i++) {
        const tr_entry *e = &ix->entries[i];
        if (strncmp(e->where, group, length) == 0 && e->where[length] == '/') (*out)[(*n)++] = e;
    }
    if (*n > 0) qsort(*out, *n, sizeof **out, by_place);
    return TR_OK;
}

static tr_status read_column(const tr_index *ix, const tr_entry *e, const char *name, size_t nrows,
                             tr_findings *f)
{
    tr_status st = TR_OK;
    double *v = NULL;
    TR_NEED(!e->fault[0], TR_FILE, "%s%s: %s", ix->of, e->where, e->fault);
    TR_NEED(e->type == TR_F64 && e->ndim == 1 && e->count == nrows && strlen(name) < TR_NAME,
            TR_FILE, "%s%s: expected float64[%zu], one value a row", ix->of, e->where, nrows);
    v = tr_alloc(TR_MEM_OTHER, nrows, sizeof *v);
    TR_HAVE(v);
    TR_TRY(tr_entry_read(ix, e, v, NULL, NULL));
    TR_TRY(tr_findings_column(f, name, v));
out:
    tr_free(v);
    return st;
}

static tr_status read_table(const tr_index *ix, const tr_attr_set *set, const char *name,
                            tr_findings *f)
{
    tr_status st = TR_OK;
    const tr_attr *rows = tr_attrs_get(&set->attrs, "rows");
    const tr_entry **columns = NULL;
    const char **names = NULL;
    size_t ncolumns, nrows;
    char *text = NULL;
    TR_NEED(!set->fault[0], TR_FILE, "%s%s", ix->of, set->fault);
    TR_NEED(rows && rows->kind == TR_ATTR_TEXT && strlen(name) < TR_NAME, TR_FILE,
            "%s%s: expected a table, with the attribute rows", ix->of, set->where);
    text = tr_strdup(rows->text);
    TR_HAVE(text);
    TR_TRY(split_rows(text, &names, &nrows));
    TR_TRY(tr_findings_table(f, name, nrows, names));
    TR_TRY(columns_of(ix, set->where, &columns, &ncolumns));
    for (size_t i = 0; i < ncolumns; i++)
        TR_TRY(read_column(ix, columns[i], columns[i]->where + strlen(set->where) + 1, nrows, f));
out:
    tr_free(columns);
    tr_free(names);
    tr_free(text);
    return st;
}

/* What cannot be read may have been a stage. */
static tr_status nothing_lost(const tr_index *ix)
{
    for (size_t i = 0; i < ix->count; i++) {
        const tr_entry *e = &ix->entries[i];
        if (e->fault[0] && (strcmp(e->where, "/") == 0 || strncmp(e->where, "/stages", 7) == 0))
            return TR_FAIL(TR_FILE, "%s%s: %s", ix->of, e->where, e->fault);
    }
    return TR_OK;
}

tr_status tr_lineage_of(const tr_index *ix, tr_lineage *l)
{
    tr_status st = TR_OK;
    tr_findings *f = NULL;
    *l = (tr_lineage){0};
    TR_TRY(nothing_lost(ix));
    /* sorted: a stage stands before its tables */
    for (size_t i = 0; i < ix->nsets; i++) {
        const tr_attr_set *set = &ix->sets[i];
        const char *name = set->where + strlen("/stages/"), *slash = strchr(name, '/');
        if (!slash) {
            TR_NEED(!set->fault[0], TR_FILE, "%s%s", ix->of, set->fault);
            TR_NEED(strlen(name) < TR_NAME, TR_FILE, "%s%s: the name is too long", ix->of,
                    set->where);
            TR_TRY(tr_lineage_add(l, name, &f));
            TR_TRY(copy_values(&set->attrs, &f->values));
        } else {
            const size_t length = (size_t)(slash - name);
            TR_NEED(!strchr(slash + 1, '/'), TR_FILE, "%s%s: a group within a table", ix->of,
                    set->where);
            TR_NEED(f && strlen(f->stage) == length && memcmp(f->stage, name, length) == 0, TR_FILE,
                    "%s%s: a table of no stage", ix->of, set->where);
            TR_TRY(read_table(ix, set, slash + 1, f));
        }
    }
out:
    if (st != TR_OK) tr_lineage_free(l);
    return st;
}

tr_status tr_lineage_read(const char *path, tr_lineage *out)
{
    tr_index ix;
    tr_status st = tr_index_open(path, &ix);
    if (st == TR_OK) st = tr_lineage_of(&ix, out);
    tr_index_close(&ix);
    return st;
}
