/* What stages found, in memory: values, tables, and the stages one after the other. */
#include "runtime/store/internal.h"

#include <string.h>

tr_status tr_findings_table(tr_findings *f, const char *name, size_t nrows, const char *const *rows)
{
    size_t nbytes = 1;
    tr_table *grown = tr_room_for_one(TR_MEM_OTHER, f->tables, f->ntables, sizeof *grown);
    if (!grown) return tr_last_status();
    f->tables = grown;
    tr_table *t = &grown[f->ntables];
    *t = (tr_table){.nrows = nrows};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (size_t i = 0; i < nrows; i++) nbytes += strlen(rows[i]) + 1;
    t->rows = tr_alloc(TR_MEM_OTHER, nbytes, 1);
    if (!t->rows) return tr_last_status();
    char *p = t->rows;
    for (size_t i = 0; i < nrows; i++) p = stpcpy(stpcpy(p, rows[i]), "\n");
    f->ntables++;
    return TR_OK;
}

tr_status tr_findings_column(tr_findings *f, const char *name, const double *v)
{
    tr_table *t = &f->tables[f->ntables - 1];
    struct tr_table_column *grown =
        tr_room_for_one(TR_MEM_OTHER, t->columns, t->ncolumns, sizeof *grown);
    if (!grown) return tr_last_status();
    t->columns = grown;
    struct tr_table_column *c = &grown[t->ncolumns];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->v = tr_alloc(TR_MEM_OTHER, t->nrows, sizeof *v);
    if (!c->v) return tr_last_status();
    if (t->nrows) memcpy(c->v, v, t->nrows * sizeof *v);
    t->ncolumns++;
    return TR_OK;
}

const tr_table *tr_findings_get(const tr_findings *f, const char *table)
{
    for (size_t i = 0; i < f->ntables; i++)
        if (strcmp(f->tables[i].name, table) == 0) return &f->tables[i];
    return NULL;
}

static void free_table(tr_table *t)
{
    for (size_t i = 0; i < t->ncolumns; i++) tr_free(t->columns[i].v);
    tr_free(t->columns);
    tr_free(t->rows);
}

void tr_findings_free(tr_findings *f)
{
    for (size_t i = 0; i < f->ntables; i++) free_table(&f->tables[i]);
    tr_free(f->tables);
    tr_attrs_free(&f->values);
    *f = (tr_findings){0};
}

tr_status tr_lineage_add(tr_lineage *l, const char *stage, tr_findings **out)
{
    tr_findings *grown = tr_room_for_one(TR_MEM_OTHER, l->v, l->count, sizeof *grown);
    if (!grown) return tr_last_status();
    l->v = grown;
    *out = &grown[l->count++];
    **out = (tr_findings){0};
    snprintf((*out)->stage, sizeof(*out)->stage, "%s", stage);
    return TR_OK;
}

void tr_lineage_free(tr_lineage *l)
{
    for (size_t i = 0; i < l->count; i++) tr_findings_free(&l->v[i]);
    tr_free(l->v);
    *l = (tr_lineage){0};
}
