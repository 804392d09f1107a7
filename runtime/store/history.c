/* /history: the rows of tr_history as columns, one dataset each, and the last confusion matrix. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

#define STEP(f, real)                                                                              \
    {                                                                                              \
#f, false, real, offsetof(struct tr_history_step, f), false                                \
    }
#define EVAL(f, real, maybe)                                                                       \
    {                                                                                              \
        "eval_" #f, true, real, offsetof(struct tr_history_eval, f), maybe                         \
    }
const tr_column tr_history_columns[TR_HISTORY_COLUMNS] = {
    STEP(step, false),        STEP(epoch, false),      STEP(loss, true),
    STEP(lr, true),           STEP(grad_norm, true),   STEP(seconds, true),
    EVAL(step, false, false), EVAL(loss, true, false), EVAL(accuracy, true, false),
    EVAL(top5, true, false),  EVAL(f1, true, true),    EVAL(auc, true, true),
    EVAL(mae, true, true),    EVAL(r2, true, true),
};
_Static_assert(sizeof(struct tr_history_step) == 6 * 8 && sizeof(struct tr_history_eval) == 8 * 8,
               "a column is missing from the table");

static size_t row_size(const tr_column *c)
{
    return c->eval ? sizeof(struct tr_history_eval) : sizeof(struct tr_history_step);
}

bool tr_history_has(const tr_history *h, const tr_column *c)
{
    if (!c->maybe) return true;
    for (size_t i = 0; i < h->nevals; i++) {
        double v;
        memcpy(&v, (const char *)&h->evals[i] + c->offset, sizeof v);
        if (!isnan(v)) return true;
    }
    return false;
}

void *tr_history_column(const tr_history *h, const tr_column *c)
{
    size_t n = c->eval ? h->nevals : h->nsteps;
    const char *rows = c->eval ? (const char *)h->evals : (const char *)h->steps;
    char *column = tr_alloc(TR_MEM_SNAPSHOT, n, 8);
    for (size_t i = 0; column && i < n; i++)
        memcpy(column + 8 * i, rows + i * row_size(c) + c->offset, 8);
    return column;
}

static tr_status read_column(const tr_index *ix, tr_history *h, const tr_column *c)
{
    tr_status st = TR_OK;
    char where[64], shape[200];
    char *column = NULL;
    size_t *n = c->eval ? &h->nevals : &h->nsteps;
    size_t *cap = c->eval ? &h->cap_evals : &h->cap_steps;
    char **rows = c->eval ? (char **)&h->evals : (char **)&h->steps;
    const char *type = c->real ? "float64" : "int64";

    snprintf(where, sizeof where, "/history/%s", c->name);
    const tr_entry *e = tr_index_find(ix, where);
    for (size_t i = 0; !e && c->maybe && i < *n; i++)
        memcpy(*rows + i * row_size(c) + c->offset, &(double){NAN}, sizeof(double));
    if (!e && c->maybe) return TR_OK;
    TR_NEED(e, TR_FILE, "%s%s: missing", ix->of, where);
    TR_NEED(!e->fault[0], TR_FILE, "%s%s: %s", ix->of, where, e->fault);
    TR_NEED(e->ndim == 1 && e->type == (c->real ? TR_F64 : TR_I64), TR_FILE,
            "%s%s: expected %s[n], found %s", ix->of, where, type,
            tr_entry_shape(e->type, e->ndim, e->dims, shape, sizeof shape));
    if (!*rows) {
        *rows = tr_alloc(TR_MEM_OTHER, e->count, row_size(c));
        if (!*rows) return tr_last_status();
        *n = *cap = e->count;
    }
    TR_NEED(e->count == *n, TR_FILE, "%s%s: expected %s[%zu] as the columns before it, found %s",
            ix->of, where, type, *n,
            tr_entry_shape(e->type, e->ndim, e->dims, shape, sizeof shape));
    column = tr_alloc(TR_MEM_IO, e->count, 8);
    if (!column) return tr_last_status();
    TR_TRY(tr_entry_read(ix, e, column, NULL, NULL));
    for (size_t i = 0; i < *n; i++) memcpy(*rows + i * row_size(c) + c->offset, column + 8 * i, 8);
out:
    tr_free(column);
    return st;
}

static tr_status read_confusion(const tr_index *ix, tr_history *h)
{
    char shape[200];
    const tr_entry *e = tr_index_find(ix, "/history/confusion");
    if (!e) return TR_OK;
    if (e->fault[0]) return TR_FAIL(TR_FILE, "%s%s: %s", ix->of, e->where, e->fault);
    if (e->ndim != 2 || e->dims[0] != e->dims[1] || e->dims[0] < 1 || e->type != TR_I64)
        return TR_FAIL(TR_FILE, "%s%s: expected int64[n,n], found %s", ix->of, e->where,
                       tr_entry_shape(e->type, e->ndim, e->dims, shape, sizeof shape));
    h->confusion = tr_alloc(TR_MEM_OTHER, e->count, 8);
    if (!h->confusion) return tr_last_status();
    h->classes = e->dims[0];
    return tr_entry_read(ix, e, h->confusion, NULL, NULL);
}

/* Files of what nobody trained have none; where one is there, so are all. */
static bool has_columns(const tr_index *ix)
{
    char where[64];
    bool any = tr_index_find(ix, "/history"); /* a group is an entry where it is damaged */
    for (size_t i = 0; i < TR_COUNT(tr_history_columns); i++) {
        snprintf(where, sizeof where, "/history/%s", tr_history_columns[i].name);
        any = any || tr_index_find(ix, where);
    }
    return any;
}

tr_status tr_history_read(const tr_index *ix, tr_history *h)
{
    tr_status st = TR_OK;
    tr_history got = {0};
    const bool any = has_columns(ix);
    for (size_t i = 0; any && i < TR_COUNT(tr_history_columns); i++)
        TR_TRY(read_column(ix, &got, &tr_history_columns[i]));
    TR_TRY(read_confusion(ix, &got));
    tr_history_free(h);
    *h = got;
    got = (tr_history){0};
out:
    tr_history_free(&got);
    return st;
}

void tr_history_free(tr_history *h)
{
    if (!h) return;
    tr_free(h->steps);
    tr_free(h->evals);
    tr_free(h->confusion);
    *h = (tr_history){0};
}
