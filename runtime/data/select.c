/* Some samples of an array, as an array: those from an offset on, or those of a list. Runs of
 * neighbours are read at once. */
#include "runtime/data/internal.h"

#include <string.h>

typedef struct {
    tr_array base;
    tr_array *from;
    uint64_t first; /* without rows: of the samples */
    uint64_t *rows; /* [samples], NULL: neighbours */
} selected;

/* Of the list, beside what `from` keeps. */
static size_t rows_bytes(const selected *s)
{
    return s->rows ? (size_t)s->base.samples * sizeof *s->rows : 0;
}

static tr_status read_run(tr_array *from, uint64_t first, uint64_t n, void *to)
{
    if (!from->held) return from->read(from, first, n, to);
    memcpy(to, (const char *)from->held + first * from->nbytes, (size_t)n * from->nbytes);
    return TR_OK;
}

static tr_status select_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const selected *s = (const selected *)a;
    char *p = to;
    tr_status st = TR_OK;
    if (!s->rows) return read_run(s->from, s->first + first, n, to);
    for (uint64_t i = 0, k; i < n && st == TR_OK; i = k) {
        for (k = i + 1; k < n && s->rows[first + k] == s->rows[first + k - 1] + 1;) k++;
        st = read_run(s->from, s->rows[first + i], k - i, p + i * a->nbytes);
    }
    return st;
}

static tr_status select_draw(tr_array *a, uint64_t i, uint64_t seed, uint64_t ordinal, void *to)
{
    const selected *s = (const selected *)a;
    return s->from->draw(s->from, s->rows ? s->rows[i] : s->first + i, seed, ordinal, to);
}

static void select_use(tr_array *a, uint64_t i)
{
    const selected *s = (const selected *)a;
    s->from->use(s->from, s->rows ? s->rows[i] : s->first + i);
}

static tr_status select_keep(tr_array *a, uint64_t budget, size_t *cache)
{
    const selected *s = (const selected *)a;
    const tr_status st = s->from->keep(s->from, budget, cache);
    if (st == TR_OK) *cache += rows_bytes(s);
    a->kept = s->from->kept;
    return st;
}

static const char *select_file(const tr_array *a, uint64_t i)
{
    const selected *s = (const selected *)a;
    return s->from->file(s->from, s->rows ? s->rows[i] : s->first + i);
}

static int64_t select_rows(const tr_array *a, uint64_t i)
{
    const selected *s = (const selected *)a;
    return s->from->rows(s->from, s->rows ? s->rows[i] : s->first + i);
}

static void select_where(const tr_array *a, uint64_t i, char *buf, size_t size)
{
    const selected *s = (const selected *)a;
    tr_array_where(s->from, s->rows ? s->rows[i] : s->first + i, buf, size);
}

static const char *select_column(const tr_array *a, size_t place)
{
    const selected *s = (const selected *)a;
    return s->from->column(s->from, place);
}

/* Neighbours' alone. From then on they are all that `from` has. */
static void select_once(tr_array *a, uint64_t first, uint64_t end, uint64_t stride)
{
    selected *s = (selected *)a;
    s->from->once(s->from, s->first + first, s->first + end, stride);
    s->first = 0;
    a->samples = s->from->samples;
}

/* Once the samples are held, the array they came from is not needed but for its words. */
static void select_release(tr_array *a)
{
    selected *s = (selected *)a;
    s->from->release(s->from);
    tr_free(s->from->held);
    s->from->held = NULL;
    a->cache = s->from->cache + rows_bytes(s);
}

static void select_fini(tr_array *a)
{
    selected *s = (selected *)a;
    tr_array_close(s->from);
    tr_free(s->rows);
}

tr_status tr_array_select(tr_array **a, const uint64_t *rows, uint64_t first, uint64_t n)
{
    tr_array *from = *a;
    tr_status st = TR_OK;
    selected *s = TR_NEW(TR_MEM_OTHER, selected);
    if (!s) return tr_last_status();
    s->base = *from;
    s->base.held = NULL;
    s->base.samples = n;
    s->base.read = select_read;
    s->base.draw = from->draw ? select_draw : NULL;
    s->base.use = from->use ? select_use : NULL;
    s->base.keep = from->keep ? select_keep : NULL;
    s->base.file = from->file ? select_file : NULL;
    s->base.rows = from->rows ? select_rows : NULL;
    s->base.once = from->once && !rows ? select_once : NULL;
    s->base.where = select_where;
    s->base.column = from->column ? select_column : NULL;
    s->base.release = NULL;
    s->base.fini = NULL;
    s->base.name = tr_strdup(from->name);
    TR_HAVE(s->base.name);
    if (rows) {
        s->rows = tr_alloc(TR_MEM_DATA, (size_t)n, sizeof *rows);
        TR_HAVE(s->rows);
        memcpy(s->rows, rows, (size_t)n * sizeof *rows);
    }
    s->first = first;
    s->from = from;
    s->base.cache = from->cache + rows_bytes(s);
    s->base.release = select_release;
    s->base.fini = select_fini;
    *a = &s->base;
out:
    if (st != TR_OK) tr_array_close(&s->base);
    return st;
}
