/* What layers that are written in parts share: reshaping, moving, cutting and positions, and the
 * same read back. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

const char *tr_onnx_reshaped(tr_onnx_writer *w, const char *what, const char *x, size_t n,
                             const int64_t *dims, const char *out)
{
    char name[64];
    const char *y;
    snprintf(name, sizeof name, "%s_shape", what);
    tr_onnx_add(w, "Reshape", out ? NULL : what, TR_NAMES(x, tr_onnx_int64s(w, name, n, dims)), out,
                &y);
    return y;
}

const char *tr_onnx_transposed(tr_onnx_writer *w, const char *what, const char *x, size_t n,
                               const int64_t *order)
{
    const char *y;
    tr_onnx_ints(w, tr_onnx_add(w, "Transpose", what, TR_NAMES(x), NULL, &y), "perm", n, order);
    return y;
}

const char *tr_onnx_part(tr_onnx_writer *w, const char *what, const char *x, int64_t begin,
                         int64_t end)
{
    const int64_t last = -1;
    char a[64], b[64], c[64];
    const char *y;
    snprintf(a, sizeof a, "%s_begin", what);
    snprintf(b, sizeof b, "%s_end", what);
    snprintf(c, sizeof c, "%s_axis", what);
    tr_onnx_add(w, "Slice", what,
                TR_NAMES(x, tr_onnx_int64s(w, a, 1, &begin), tr_onnx_int64s(w, b, 1, &end),
                         tr_onnx_int64s(w, c, 1, &last)),
                NULL, &y);
    return y;
}

const char *tr_onnx_positions(tr_onnx_writer *w, const char *what, int64_t count, bool column,
                              int along)
{
    const int64_t one = 1, most = (1 << 28) - 1; /* a message holds less than 2 GiB */
    const char *y = "";
    if (count > most && w->pool.st == TR_OK)
        w->pool.st = TR_FAIL(TR_UNSUPPORTED,
                             "layer \"%s\": %lld positions; a table in ONNX has at most %lld",
                             w->layer->name, (long long)count, (long long)most);
    int64_t *v = tr_pool_get(&w->pool, (size_t)count, sizeof *v);
    for (int64_t i = 0; v && i < count; i++) v[i] = i;
    char all[64];
    snprintf(all, sizeof all, along ? "%s_all" : "%s", what);
    if (v) y = tr_onnx_int64s(w, all, (size_t)count, v);
    if (along) y = tr_onnx_cut(w, what, y, along);
    if (column)
        tr_onnx_add(w, "Unsqueeze", "column",
                    TR_NAMES(y, tr_onnx_int64s(w, "column_axis", 1, &one)), NULL, &y);
    return y;
}

/* ---- Reading --------------------------------------------------------------------------------- */

bool tr_onnx_is_order(const tr_onnx_step *s, int n, const int64_t *order)
{
    int64_t perm[TR_ONNX_RANK];
    return s->nin == 1 && tr_onnx_get_ints(s, "perm", TR_ONNX_RANK, perm) == n &&
           memcmp(perm, order, (size_t)n * sizeof *perm) == 0;
}

bool tr_onnx_dims_of(const tr_onnx_reader *r, const tr_onnx_step *s, int n, int64_t *dims)
{
    const tr_onnx_const *c = s->nin == 2 ? tr_onnx_const_at(r, s->in[1]) : NULL;
    if (!c || !c->i || c->count != (size_t)n) return false;
    for (int i = 0; i < n; i++) {
        if (c->i[i] < -1 || c->i[i] > INT32_MAX) return false; /* products of two can be taken */
        dims[i] = i == 1 && c->i[i] == 0 ? r->sequence : c->i[i];
    }
    return true;
}

int tr_onnx_part_of(const tr_onnx_reader *r, int value, int64_t *begin, int64_t *end)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "Slice");
    int64_t *to[] = {begin, end, NULL};
    int64_t axis = 0;
    to[2] = &axis;
    if (!s || s->nin != 4) return -1;
    for (int i = 0; i < 3; i++) {
        const tr_onnx_const *c = tr_onnx_const_at(r, s->in[1 + i]);
        if (!c || !c->i || c->count != 1) return -1;
        *to[i] = c->i[0];
    }
    return axis == -1 ? s->in[0] : -1;
}

bool tr_onnx_are_positions(const tr_onnx_reader *r, int value, int64_t count, bool column)
{
    if (column) {
        const tr_onnx_step *s = tr_onnx_shared_by(r, value, "Unsqueeze");
        const tr_onnx_const *axis = s && s->nin == 2 ? tr_onnx_const_at(r, s->in[1]) : NULL;
        if (!axis || !axis->i || axis->count != 1 || (axis->i[0] != 1 && axis->i[0] != -1))
            return false;
        value = s->in[0];
    }
    const tr_onnx_const *c = tr_onnx_const_at(r, value);
    if (!c || !c->i || c->ndim != 1 || c->count != (size_t)count) return false;
    for (size_t i = 0; i < c->count; i++)
        if (c->i[i] != (int64_t)i) return false;
    return true;
}
