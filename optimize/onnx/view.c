/* Views: a value's dimensions as products of parts of axes of what is seen, in any order. A reshape
 * regroups parts and takes axes apart, a transpose moves them. */
#include "optimize/onnx/view.h"

#include <string.h>

int64_t tr_onnx_view_axis(const tr_onnx_reader *r, const tr_onnx_view *v, int axis)
{
    if (v->of >= 0) return tr_onnx_shape(r, v->of).dims[axis - 1];
    return axis == 1 ? v->scores->heads : axis == 2 ? v->scores->queries : v->scores->keys;
}

static int axes_of(const tr_onnx_reader *r, const tr_onnx_view *v)
{
    return v->of >= 0 ? tr_onnx_shape(r, v->of).ndim : 3;
}

const tr_onnx_atom *tr_onnx_view_atoms(const tr_onnx_view *v, int d)
{
    const tr_onnx_atom *a = v->atoms;
    for (int i = 0; i < d; i++) a += v->count[i];
    return a;
}

static void split_dim(const tr_onnx_view *v, int d, int64_t *count, bool *batch)
{
    const tr_onnx_atom *a = tr_onnx_view_atoms(v, d);
    *count = 1;
    *batch = false;
    for (int i = 0; i < v->count[d]; i++) {
        *batch = *batch || a[i].axis == 0;
        *count *= a[i].axis ? a[i].size : 1;
    }
}

int64_t tr_onnx_view_dim(const tr_onnx_view *v, int d)
{
    int64_t count;
    bool batch;
    split_dim(v, d, &count, &batch);
    return batch ? tr_onnx_batches(count) : count;
}

tr_onnx_view *tr_onnx_view_new(tr_onnx_reader *r, const tr_onnx_view *like)
{
    tr_onnx_view *v = tr_pool_get(&r->pool, 1, sizeof *v);
    if (!v) return NULL;
    *v = *like;
    v->ndim = v->natoms = 0;
    return v;
}

bool tr_onnx_view_add(tr_onnx_view *v, int axis, int64_t stride, int64_t size)
{
    const bool any = axis == 0 || size != 1;
    if (v->ndim == TR_ONNX_RANK || v->natoms == TR_ONNX_ATOMS) return false;
    if (any) v->atoms[v->natoms++] = (tr_onnx_atom){axis, stride, size};
    v->count[v->ndim++] = any;
    return true;
}

tr_onnx_view *tr_onnx_view_of(tr_onnx_reader *r, int value)
{
    static const int64_t none[4] = {0};
    const tr_onnx_value *from = value >= 0 ? &r->values[value] : NULL;
    tr_onnx_view *v;
    if (!from || from->kind != TR_ONNX_VALUE || memcmp(from->padding, none, sizeof none) != 0)
        return NULL;
    if (from->view) {
        v = tr_pool_get(&r->pool, 1, sizeof *v);
        if (v) *v = *from->view;
        return v;
    }
    const tr_shape of = tr_onnx_shape(r, from->value);
    const tr_onnx_view whole = {.of = from->value, .scale = 1};
    v = tr_onnx_view_new(r, &whole);
    if (v) tr_onnx_view_add(v, 0, 1, 1);
    for (int d = 0; v && d < of.ndim; d++) tr_onnx_view_add(v, d + 1, 1, of.dims[d]);
    return v;
}

bool tr_onnx_view_is_axis(const tr_onnx_reader *r, const tr_onnx_view *v, int d, int axis)
{
    const int64_t size = axis ? tr_onnx_view_axis(r, v, axis) : 1;
    const tr_onnx_atom *a = tr_onnx_view_atoms(v, d);
    if (axis && size == 1) return v->count[d] == 0;
    return v->count[d] == 1 && a->axis == axis &&
           (axis == 0 || (a->stride == 1 && a->size == size));
}

bool tr_onnx_view_same(const tr_onnx_view *a, const tr_onnx_view *b, int n)
{
    if (n > a->ndim || n > b->ndim) return false;
    for (int d = 0; d < n; d++) {
        const tr_onnx_atom *x = tr_onnx_view_atoms(a, d), *y = tr_onnx_view_atoms(b, d);
        if (a->count[d] != b->count[d]) return false;
        for (int i = 0; i < a->count[d]; i++)
            if (x[i].axis != y[i].axis || x[i].size != y[i].size || x[i].stride != y[i].stride)
                return false;
    }
    return true;
}

/* Neighbours that are one range are one atom. */
static int merged(tr_onnx_atom *a, int n)
{
    int made = 0;
    for (int i = 0; i < n; i++) {
        tr_onnx_atom *last = made ? &a[made - 1] : NULL;
        if (last && last->axis && last->axis == a[i].axis &&
            last->stride == a[i].stride * a[i].size) {
            last->size *= a[i].size;
            last->stride = a[i].stride;
        } else {
            a[made++] = a[i];
        }
    }
    return made;
}

/* ---- Changes --------------------------------------------------------------------------------- */

/* The dimensions asked for as numbers, and which has the batch. */
static bool wanted(const tr_onnx_view *v, int n, const int64_t *to, bool zeros, int64_t *count,
                   int *batch)
{
    int64_t all = 1, known = 1;
    int open = -1;
    for (int d = 0; d < v->ndim; d++) {
        int64_t c;
        bool b;
        split_dim(v, d, &c, &b);
        all *= c;
    }
    *batch = -1;
    for (int d = 0; d < n; d++) {
        bool b = tr_onnx_is_batches(to[d]);
        count[d] = b ? tr_onnx_times_batch(to[d]) : to[d];
        if (to[d] == 0) {
            if (zeros || d >= v->ndim) return false;
            split_dim(v, d, &count[d], &b);
        } else if (to[d] == -1) {
            if (open >= 0) return false;
            open = d;
            continue;
        }
        if ((b && *batch >= 0) || count[d] < 1 || count[d] > all / known) return false;
        if (b) *batch = d;
        known *= count[d];
    }
    if (open < 0) return *batch >= 0 && known == all;
    count[open] = all / known;
    if (*batch < 0) *batch = open;
    return all % known == 0;
}

bool tr_onnx_view_reshape(tr_onnx_view *v, int n, const int64_t *to, bool zeros)
{
    int64_t count[TR_ONNX_RANK];
    tr_onnx_view made = *v;
    int batch, at = 0;
    tr_onnx_atom rest = {0};
    if (n < 1 || n > TR_ONNX_RANK || !wanted(v, n, to, zeros, count, &batch)) return false;
    made.ndim = n;
    made.natoms = 0;
    for (int d = 0; d < n; d++) {
        const int first = made.natoms;
        bool b = d == batch;
        int64_t need = count[d];
        while (need > 1 || b) {
            if (rest.size <= 1 && rest.axis == 0) {
                if (at == v->natoms) return false;
                rest = v->atoms[at++];
            }
            if (made.natoms == TR_ONNX_ATOMS) return false;
            tr_onnx_atom piece = rest;
            if (rest.axis == 0) {
                if (!b) return false;
                b = false;
                rest = (tr_onnx_atom){0};
            } else if (need % rest.size == 0) {
                need /= rest.size;
                rest = (tr_onnx_atom){0};
            } else if (need > 1 && rest.size % need == 0) {
                rest.size /= need;
                piece.size = need;
                piece.stride = rest.stride * rest.size;
                need = 1;
            } else {
                return false;
            }
            made.atoms[made.natoms++] = piece;
        }
        made.count[d] = merged(made.atoms + first, made.natoms - first);
        made.natoms = first + made.count[d];
    }
    if (at != v->natoms || rest.axis) return false;
    *v = made;
    return true;
}

bool tr_onnx_view_transpose(tr_onnx_view *v, int n, const int64_t *perm)
{
    tr_onnx_view made = *v;
    unsigned seen = 0;
    if (n != v->ndim) return false;
    made.natoms = 0;
    for (int d = 0; d < n; d++) {
        if (perm[d] < 0 || perm[d] >= n || (seen >> perm[d] & 1)) return false;
        seen |= 1u << perm[d];
        const tr_onnx_atom *a = tr_onnx_view_atoms(v, (int)perm[d]);
        made.count[d] = v->count[perm[d]];
        for (int i = 0; i < made.count[d]; i++) made.atoms[made.natoms++] = a[i];
    }
    *v = made;
    return true;
}

static void remove_atom(tr_onnx_view *v, int d)
{
    const int at = (int)(tr_onnx_view_atoms(v, d) - v->atoms);
    memmove(v->atoms + at, v->atoms + at + 1, (size_t)(v->natoms - at - 1) * sizeof *v->atoms);
    v->natoms--;
    v->count[d] = 0;
}

bool tr_onnx_view_cut(tr_onnx_view *v, int d, int64_t begin, int64_t size)
{
    if (d < 0 || d >= v->ndim || begin < 0 || size < 1) return false;
    if (v->count[d] == 0) return begin == 0 && size == 1;
    tr_onnx_atom *a = v->atoms + (tr_onnx_view_atoms(v, d) - v->atoms);
    if (v->count[d] != 1 || a->axis == 0 || begin > a->size || size > a->size - begin) return false;
    v->offset[a->axis] += begin * a->stride;
    a->size = size;
    if (size == 1) remove_atom(v, d);
    return true;
}

bool tr_onnx_view_drop(tr_onnx_view *v, int d)
{
    if (d < 0 || d >= v->ndim || v->count[d] != 0) return false;
    memmove(v->count + d, v->count + d + 1, (size_t)(v->ndim - d - 1) * sizeof *v->count);
    v->ndim--;
    return true;
}

bool tr_onnx_view_insert(tr_onnx_view *v, int d)
{
    if (d < 0 || d > v->ndim || v->ndim == TR_ONNX_RANK) return false;
    memmove(v->count + d + 1, v->count + d, (size_t)(v->ndim - d) * sizeof *v->count);
    v->count[d] = 0;
    v->ndim++;
    return true;
}

/* ---- What becomes of it ---------------------------------------------------------------------- */

/* Parts of one axis do not overlap, so that as many elements as it has are all of them. */
static bool is_complete(const tr_onnx_reader *r, const tr_onnx_view *v)
{
    int64_t count[TR_MAX_DIMS + 1] = {0};
    const int n = axes_of(r, v);
    for (int i = 0; i < v->natoms; i++) {
        int64_t *c = &count[v->atoms[i].axis];
        *c = (*c ? *c : 1) * v->atoms[i].size;
    }
    for (int a = 1; a <= n; a++)
        if ((count[a] ? count[a] : 1) != tr_onnx_view_axis(r, v, a) || v->offset[a]) return false;
    return true;
}

bool tr_onnx_view_by_row(const tr_onnx_reader *r, const tr_onnx_view *v)
{
    const int n = v->of >= 0 ? axes_of(r, v) : 0;
    return (n == 1 || n == 2) && v->scale == 1 && v->ndim > 1 && is_complete(r, v) &&
           tr_onnx_view_is_axis(r, v, v->ndim - 1, n);
}

int tr_onnx_view_rows_first(const tr_onnx_reader *r, int value, bool *columns)
{
    const tr_onnx_view *v = value >= 0 ? r->values[value].view : NULL;
    if (!v || v->of < 0 || axes_of(r, v) != 2 || v->scale != 1 || v->ndim != 3 ||
        !is_complete(r, v) || !tr_onnx_view_is_axis(r, v, 1, 0))
        return -1;
    *columns = !tr_onnx_view_is_axis(r, v, 0, 1);
    return tr_onnx_view_is_axis(r, v, 0, *columns ? 2 : 1) &&
                   tr_onnx_view_is_axis(r, v, 2, *columns ? 1 : 2)
               ? v->of
               : -1;
}

static bool is_whole(const tr_onnx_reader *r, const tr_onnx_view *v)
{
    bool whole = v->of >= 0 && v->scale == 1 && v->ndim == axes_of(r, v) + 1 && is_complete(r, v);
    for (int d = 0; whole && d < v->ndim; d++) whole = tr_onnx_view_is_axis(r, v, d, d);
    return whole;
}

void tr_onnx_view_give(tr_onnx_reader *r, const tr_onnx_step *s, int k, tr_onnx_view *v)
{
    tr_onnx_value *to = k < s->nout && s->out[k] >= 0 ? &r->values[s->out[k]] : NULL;
    if (!to || r->pool.st != TR_OK) return;
    to->kind = TR_ONNX_VALUE;
    if (is_whole(r, v)) {
        to->value = v->of;
        return;
    }
    v->depth++;
    to->view = v;
    to->waits = s;
}
