/* The arrays of a network. */
#include "optimize/tensors/rows.h"

#include <string.h>

#include "optimize/tensors/names.h"

size_t tr_row_count(const tr_network *n)
{
    return n->model->nparams + n->model->nstates;
}

/* But for its values. */
static tr_row row_of(const tr_model *m, size_t i)
{
    tr_row r = {.state = i >= m->nparams};
    if (r.state) {
        const tr_state *s = &m->states[i - m->nparams];
        snprintf(r.name, sizeof r.name, "%s.%s", s->layer, s->name);
        r.ndim = s->ndim;
        memcpy(r.dims, s->dims, sizeof s->dims);
        r.count = s->count;
    } else {
        const tr_param *p = &m->params[i];
        snprintf(r.name, sizeof r.name, "%s.%s", p->layer, p->name);
        r.ndim = p->ndim;
        memcpy(r.dims, p->dims, sizeof p->dims);
        r.count = p->count;
        r.sketch = p->sketch;
    }
    return r;
}

tr_row tr_row_at(const tr_network *n, size_t i)
{
    tr_row r = row_of(n->model, i);
    r.v = (r.state ? n->states : n->params) + tr_row_offset(n, i);
    return r;
}

size_t tr_row_offset(const tr_network *n, size_t i)
{
    const tr_model *m = n->model;
    return i < m->nparams ? m->params[i].offset : m->states[i - m->nparams].offset;
}

/* ---- As a file has them ---------------------------------------------------------------------- */

/* From the network's name and shape. */
static tr_status rename_row(const tr_renames *names, tr_row *r)
{
    tr_status st;
    char row[TR_ARRAY_NAME];
    memcpy(row, r->name, sizeof row);
    TR_TRY(tr_name_in_file(names, row, r->name));
    const int ndim = tr_name_ndim(names, r->name, r->ndim), more = ndim - r->ndim;
    r->turned = tr_name_transposed(names, r->name, ndim);
    if (r->turned) {
        const int64_t rows = r->dims[0];
        r->dims[0] = r->dims[1];
        r->dims[1] = rows;
    }
    memmove(r->dims + more, r->dims, (size_t)r->ndim * sizeof *r->dims);
    for (int d = 0; d < more; d++) r->dims[d] = 1;
    r->ndim = ndim;
out:
    return st;
}

static const char *name_at(const void *rows, size_t i, int *ndim)
{
    const tr_row *r = (const tr_row *)rows + i;
    *ndim = r->ndim;
    return r->name;
}

static tr_status rename_rows(const tr_renames *names, tr_row *rows, size_t count)
{
    tr_status st = TR_OK;
    const tr_names all = {rows, count, name_at, "the model"};
    for (size_t i = 0; i < count; i++) TR_TRY(rename_row(names, &rows[i]));
    st = tr_names_check(names, &all);
out:
    return st;
}

tr_status tr_rows_of_file(const tr_network *n, const tr_renames *names, tr_row **out)
{
    tr_status st = TR_OK;
    const size_t count = tr_row_count(n);
    tr_row *rows = tr_alloc(TR_MEM_OTHER, count, sizeof *rows);
    TR_HAVE(rows);
    for (size_t i = 0; i < count; i++) rows[i] = tr_row_at(n, i);
    if (names) TR_TRY(rename_rows(names, rows, count));
    *out = rows;
    rows = NULL;
out:
    tr_free(rows);
    return st;
}

tr_status tr_tensors_check(const tr_model *m, const tr_renames *names, tr_tensors_format format)
{
    tr_status st = TR_OK;
    const size_t count = m->nparams + m->nstates;
    tr_row *rows = tr_alloc(TR_MEM_OTHER, count, sizeof *rows);
    TR_HAVE(rows);
    for (size_t i = 0; i < count; i++) rows[i] = row_of(m, i);
    TR_TRY(rename_rows(names, rows, count));
    for (size_t i = 0; i < count && format == TR_TENSORS_HDF5 && st == TR_OK; i++)
        if (strchr(rows[i].name, '/'))
            st = tr_map_fail(names,
                             "%s: a name with a slash would be a group in HDF5: expected none, or "
                             "safetensors or npz, which take it",
                             rows[i].name);
out:
    tr_free(rows);
    return st;
}

void tr_transpose(const float *v, size_t rows, size_t columns, float *to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) to[c * rows + r] = v[r * columns + c];
}

tr_status tr_row_values(const tr_row *r, const float **v, float **own)
{
    *own = NULL;
    *v = r->v;
    if (!r->turned) return TR_OK;
    *own = tr_alloc(TR_MEM_OTHER, r->count, sizeof **own);
    if (!*own) return tr_last_status();
    const size_t columns = (size_t)r->dims[r->ndim - 1];
    tr_transpose(r->v, columns, r->count / columns, *own);
    *v = *own;
    return TR_OK;
}
