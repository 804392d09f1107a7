/* Arrays of a file into rows of a network, by name: rules change names first (names.c), and of each
 * row and each array it is known in the end whether it found its other. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/tensors/arrays.h"
#include "optimize/tensors/names.h"
#include "optimize/tensors/rows.h"
#include "runtime/base/numbers.h"

/* ---- What found its other -------------------------------------------------------------------- */

static void add(tr_name_list *l, const char *fmt, ...) TR_PRINTF(2, 3);
static void add(tr_name_list *l, const char *fmt, ...)
{
    const size_t have = strlen(l->text);
    char one[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(one, sizeof one, fmt, args);
    va_end(args);
    if (l->told == l->count && have + strlen(one) + 3 < sizeof l->text) {
        snprintf(l->text + have, sizeof l->text - have, "%s%s", have ? ", " : "", one);
        l->told++;
    }
    l->count++;
}

static const char *name_at(const void *arrays, size_t i, int *ndim)
{
    const tr_named_array *a = tr_arrays_at(arrays, i);
    *ndim = a->ndim;
    return a->name;
}

/* Dimensions of 1 in front say nothing: (1, 197, 768) is (197, 768). */
static bool same_shape(const tr_named_array *a, bool turned, const tr_row *r)
{
    int more = 0;
    while (more < a->ndim - r->ndim && a->dims[more] == 1) more++;
    if (a->ndim - more != r->ndim) return false;
    if (turned) return r->ndim == 2 && a->dims[0] == r->dims[1] && a->dims[1] == r->dims[0];
    return memcmp(a->dims + more, r->dims, (size_t)r->ndim * sizeof *r->dims) == 0;
}

/* Whether the array can become the row; if not, the list says why. */
static bool is_like(const tr_init_from *o, const tr_named_array *a, const tr_row *r,
                    tr_name_list *unlike)
{
    char is[64], wants[64];
    const bool turned = tr_name_transposed(&o->names, a->name, a->ndim);
    if (a->fault[0]) {
        add(unlike, "%s: %.100s", r->name, a->fault);
        return false;
    }
    if (same_shape(a, turned, r)) return true;
    add(unlike, "%s is %s%s, the model's %s", r->name,
        tr_format_dims(a->ndim, a->dims, is, sizeof is), turned ? " before it is transposed" : "",
        tr_format_dims(r->ndim, r->dims, wants, sizeof wants));
    return false;
}

/* A sketch says nothing beside other signs, whose shape is the same. */
static tr_status check_signs(const tr_init_from *o, const tr_named_array *a, const tr_row *r)
{
    const tr_sketch *is = &a->sketch, *wants = &r->sketch;
    if (is->side == TR_SKETCH_NONE || wants->side == TR_SKETCH_NONE ||
        (is->terms == wants->terms && is->rank == wants->rank && is->seed == wants->seed))
        return TR_OK;
    return TR_FAIL(TR_CONFIG,
                   "%s: %s was learned beside other signs than the model's %s: set terms: %lld, "
                   "rank: %lld, seed: %lld in its layer, found terms: %lld, rank: %lld, seed: %lld",
                   o->file, a->name, r->name, (long long)is->terms, (long long)is->rank,
                   (long long)is->seed, (long long)wants->terms, (long long)wants->rank,
                   (long long)wants->seed);
}

/* The network's rows by name. */
typedef struct {
    char name[2 * TR_NAME];
    size_t row;
} named_row;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named_row *)a)->name, ((const named_row *)b)->name);
}

static tr_status sort_rows(const tr_network *n, named_row **out)
{
    const size_t count = tr_row_count(n);
    named_row *all = tr_alloc(TR_MEM_OTHER, count, sizeof *all);
    if (!all) return tr_last_status();
    for (size_t i = 0; i < count; i++) {
        memcpy(all[i].name, tr_row_at(n, i).name, sizeof all[i].name);
        all[i].row = i;
    }
    qsort(all, count, sizeof *all, by_name);
    *out = all;
    return TR_OK;
}

/* NULL: none has the name. */
static const named_row *find_row(const named_row *all, size_t count, const char *name)
{
    named_row key;
    if (strlen(name) >= sizeof key.name) return NULL;
    strcpy(key.name, name);
    return bsearch(&key, all, count, sizeof *all, by_name);
}

enum { NONE = -1 };

/* Scales of a weight in 8 bits, which it gets anew where the file has none. */
static bool follows(const tr_network *n, size_t row)
{
    const size_t params = n->model->nparams;
    return row >= params && strcmp(n->model->states[row - params].name, TR_SCALE_STATE) == 0;
}

/* Each row's array, or NONE. */
static tr_status match_all(const tr_arrays *a, const tr_init_from *o, const tr_network *n,
                           int64_t *array_of, tr_arrays_taken *t)
{
    tr_status st = TR_OK;
    char name[TR_ARRAY_NAME];
    named_row *rows = NULL;
    TR_TRY(sort_rows(n, &rows));
    for (size_t i = 0; i < tr_row_count(n); i++) array_of[i] = NONE;
    for (size_t i = 0; i < tr_arrays_count(a); i++) {
        const char *own = tr_arrays_at(a, i)->name;
        TR_TRY(tr_name_in_model(&o->names, own, name));
        if (!*name) continue;
        const named_row *found = find_row(rows, tr_row_count(n), name);
        if (!found) {
            add(&t->unused, "%.100s", own);
            continue;
        }
        const size_t r = found->row;
        if (array_of[r] != NONE) {
            st = tr_map_fail(&o->names, "%s and %s are both %s", own,
                             tr_arrays_at(a, (size_t)array_of[r])->name, name);
            goto out;
        }
        array_of[r] = (int64_t)i;
    }
    for (size_t i = 0; i < tr_row_count(n); i++) {
        const tr_row r = tr_row_at(n, i);
        if (array_of[i] == NONE && follows(n, i)) continue;
        if (array_of[i] == NONE)
            add(&t->missing, "%s", r.name);
        else if (!is_like(o, tr_arrays_at(a, (size_t)array_of[i]), &r, &t->unlike))
            array_of[i] = NONE;
        else
            t->taken++;
        if (array_of[i] != NONE) TR_TRY(check_signs(o, tr_arrays_at(a, (size_t)array_of[i]), &r));
    }
    t->rows = tr_row_count(n);
out:
    tr_free(rows);
    return st;
}

static size_t list_text(const tr_name_list *l, const char *what, char *buf, size_t size, size_t n)
{
    if (l->count == 0 || n >= size) return n;
    n += (size_t)snprintf(buf + n, size - n, "; %zu %s: %s", l->count, what, l->text);
    if (l->told < l->count && n < size)
        n += (size_t)snprintf(buf + n, size - n, "%s%zu more", l->told ? " and " : "",
                              l->count - l->told);
    return n;
}

const char *tr_arrays_taken_text(const tr_arrays_taken *t, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "%zu of %zu arrays taken", t->taken, t->rows);
    n = list_text(&t->missing, "missing", buf, size, n);
    n = list_text(&t->unlike, "of another shape or type", buf, size, n);
    list_text(&t->unused, "not the model's", buf, size, n);
    return buf;
}

static tr_status read_row(tr_arrays *a, const tr_init_from *o, size_t i, float *to)
{
    const tr_named_array *info = tr_arrays_at(a, i);
    if (!tr_name_transposed(&o->names, info->name, info->ndim)) return tr_arrays_read(a, i, to);
    tr_status st = TR_OK;
    float *v = tr_alloc(TR_MEM_OTHER, info->count, sizeof *v);
    TR_HAVE(v);
    TR_TRY(tr_arrays_read(a, i, v));
    tr_transpose(v, (size_t)info->dims[0], (size_t)info->dims[1], to);
out:
    tr_free(v);
    return st;
}

tr_status tr_arrays_take(tr_arrays *a, const tr_init_from *o, tr_network *n, tr_arrays_taken *found)
{
    tr_status st = TR_OK;
    tr_arrays_taken t = {.rows = 0};
    char text[700];
    const tr_names all_names = {a, tr_arrays_count(a), name_at, o->file};
    int64_t *array_of = tr_alloc(TR_MEM_OTHER, tr_row_count(n), sizeof *array_of);
    TR_HAVE(array_of);
    TR_TRY(tr_names_check(&o->names, &all_names));
    TR_TRY(match_all(a, o, n, array_of, &t));
    tr_arrays_taken_text(&t, text, sizeof text);
    const bool all = t.missing.count + t.unused.count + t.unlike.count == 0;
    TR_NEED(all || !o->strict, TR_CONFIG, "%s does not fit the model: %s", o->file, text);
    TR_NEED(t.taken > 0, TR_CONFIG, "%s: nothing of it fits the model: %s", o->file, text);
    for (size_t i = 0; i < t.rows; i++) {
        const tr_row r = tr_row_at(n, i);
        if (array_of[i] == NONE) continue;
        TR_TRY(read_row(a, o, (size_t)array_of[i],
                        (r.state ? n->states : n->params) + tr_row_offset(n, i)));
    }
    if (found) *found = t;
out:
    tr_free(array_of);
    return st;
}
