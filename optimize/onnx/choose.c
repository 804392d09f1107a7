/* Steps on constants of which masks and the sizes of reshapes are made: comparisons, choices,
 * triangles, parts, and whole numbers, the batch among them. */
#include <string.h>

#include "optimize/onnx/fold.h"

bool tr_onnx_any_batches(const tr_onnx_const *c)
{
    for (size_t k = 0; c->i && k < c->count; k++)
        if (tr_onnx_is_batches(c->i[k])) return true;
    return false;
}

/* ---- Broadcasting ---------------------------------------------------------------------------- */

/* The dimensions that both are broadcast to; false: they do not fit. */
static bool together(int *ndim, int64_t *dims, int n, const int64_t *of)
{
    int64_t made[TR_ONNX_RANK];
    const int rank = n > *ndim ? n : *ndim;
    if (rank > TR_ONNX_RANK) return false;
    for (int d = 0; d < rank; d++) {
        const int a = d - (rank - *ndim), b = d - (rank - n);
        const int64_t x = a < 0 ? 1 : dims[a], y = b < 0 ? 1 : of[b];
        if (x != y && x != 1 && y != 1) return false;
        made[d] = x == 1 ? y : x;
    }
    memcpy(dims, made, (size_t)rank * sizeof *dims);
    *ndim = rank;
    return true;
}

/* Which element of `c` stands at element `at` of these dimensions. */
static size_t place(const tr_onnx_const *c, int ndim, const int64_t *dims, size_t at)
{
    size_t made = 0, step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        const size_t i = at % (size_t)dims[d];
        const int own = d - (ndim - c->ndim);
        at /= (size_t)dims[d];
        if (own < 0) continue;
        made += c->dims[own] == 1 ? 0 : i * step;
        step *= (size_t)c->dims[own];
    }
    return made;
}

static tr_onnx_const *broadcast(tr_onnx_reader *r, int n, const tr_onnx_const *const *of,
                                bool floats, float **f, int64_t **i)
{
    int64_t dims[TR_ONNX_RANK];
    int ndim = 0;
    for (int k = 0; k < n; k++)
        if (!of[k] || !together(&ndim, dims, of[k]->ndim, of[k]->dims)) return NULL;
    return tr_onnx_fold_new(r, ndim, dims, floats, f, i);
}

/* Of floats or of whole numbers, as what they are of. */
static void copy(float *f, int64_t *i, size_t k, const tr_onnx_const *from, size_t at)
{
    if (f)
        f[k] = from->f[at];
    else
        i[k] = from->i[at];
}

/* ---- Whole numbers --------------------------------------------------------------------------- */

typedef enum { ADD, DIV, MOD, MUL, SUB, WHOLE_OPS } whole_op;
static const char *const whole_ops[WHOLE_OPS] = {"Add", "Div", "Mod", "Mul", "Sub"};

/* Of two; a multiple of the batch may be one of them where the result is one. */
static bool whole(whole_op op, int64_t a, int64_t b, int64_t *out)
{
    const bool batch = tr_onnx_is_batches(a), other = tr_onnx_is_batches(b);
    const int64_t x = batch ? tr_onnx_times_batch(a) : a, y = other ? tr_onnx_times_batch(b) : b;
    if (op == MOD || op == DIV) {
        if (y < 1 || x < 0 || other || (batch && (op == MOD || x % y != 0))) return false;
        *out = op == MOD ? x % y : x / y;
    } else if (op == MUL   ? __builtin_mul_overflow(x, y, out)
               : op == ADD ? __builtin_add_overflow(x, y, out)
                           : __builtin_sub_overflow(x, y, out)) {
        return false;
    }
    if (!batch && !other) return !tr_onnx_is_batches(*out);
    if ((op != MUL && op != DIV) || (batch && other) || *out < 1 || *out >= TR_ONNX_BATCHES_MAX)
        return false;
    *out = tr_onnx_batches(*out);
    return true;
}

const tr_onnx_const *tr_onnx_fold_whole(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *of[] = {tr_onnx_const_in(r, s, 0), tr_onnx_const_in(r, s, 1)};
    int op = 0;
    float *f = NULL;
    int64_t *i = NULL;
    while (op < WHOLE_OPS && strcmp(s->type, whole_ops[op]) != 0) op++;
    if (op == WHOLE_OPS) return NULL;
    if (s->nin != 2 || !of[0] || !of[1] || !of[0]->i || !of[1]->i) return NULL;
    tr_onnx_const *made = broadcast(r, 2, of, false, &f, &i);
    for (size_t k = 0; made && k < made->count; k++)
        if (!whole((whole_op)op, of[0]->i[place(of[0], made->ndim, made->dims, k)],
                   of[1]->i[place(of[1], made->ndim, made->dims, k)], &i[k]))
            return NULL;
    return made;
}

/* ---- Questions and choices ------------------------------------------------------------------- */

const tr_onnx_const *tr_onnx_fold_equal(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *of[] = {tr_onnx_const_in(r, s, 0), tr_onnx_const_in(r, s, 1)};
    float *f = NULL;
    int64_t *i = NULL;
    if (s->nin != 2 || !of[1] || (of[0]->f != NULL) != (of[1]->f != NULL)) return NULL;
    tr_onnx_const *made = broadcast(r, 2, of, false, &f, &i);
    for (size_t k = 0; made && k < made->count; k++) {
        const size_t a = place(of[0], made->ndim, made->dims, k);
        const size_t b = place(of[1], made->ndim, made->dims, k);
        if (of[0]->f) {
            i[k] = of[0]->f[a] == of[1]->f[b];
            continue;
        }
        const bool batch = tr_onnx_is_batches(of[0]->i[a]), other = tr_onnx_is_batches(of[1]->i[b]);
        /* a batch is at least 1, and may be any number from there */
        if (batch != other && (batch ? of[1]->i[b] : of[0]->i[a]) > 0) return NULL;
        i[k] = of[0]->i[a] == of[1]->i[b];
    }
    return made;
}

const tr_onnx_const *tr_onnx_fold_where(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *of[] = {tr_onnx_const_in(r, s, 0), tr_onnx_const_in(r, s, 1),
                                 tr_onnx_const_in(r, s, 2)};
    float *f = NULL;
    int64_t *i = NULL;
    if (s->nin != 3 || !of[1] || !of[2] || !of[0]->i || (of[1]->f != NULL) != (of[2]->f != NULL))
        return NULL;
    tr_onnx_const *made = broadcast(r, 3, of, of[1]->f != NULL, &f, &i);
    for (size_t k = 0; made && k < made->count; k++) {
        const tr_onnx_const *from = of[of[0]->i[place(of[0], made->ndim, made->dims, k)] ? 1 : 2];
        copy(f, i, k, from, place(from, made->ndim, made->dims, k));
    }
    return made;
}

/* To dimensions that do not have the batch. */
const tr_onnx_const *tr_onnx_fold_expand(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0), *to = tr_onnx_const_in(r, s, 1);
    int64_t dims[TR_ONNX_RANK], *i = NULL;
    float *f = NULL;
    int ndim = c->ndim;
    if (!to || !to->i || to->count > TR_ONNX_RANK) return NULL;
    for (size_t k = 0; k < to->count; k++)
        if (to->i[k] < 1) return NULL;
    memcpy(dims, c->dims, sizeof dims);
    if (!together(&ndim, dims, (int)to->count, to->i)) return NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, ndim, dims, c->f != NULL, &f, &i);
    for (size_t k = 0; made && k < made->count; k++) copy(f, i, k, c, place(c, ndim, dims, k));
    return made;
}

const tr_onnx_const *tr_onnx_fold_trilu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    const bool upper = tr_onnx_get_int(s, "upper", 1) != 0;
    double k = 0;
    float *f = NULL;
    int64_t *i = NULL;
    if (c->ndim < 2 || (s->nin > 1 && s->in[1] >= 0 && !tr_onnx_scalar_of(r, s->in[1], &k)))
        return NULL;
    const size_t rows = (size_t)c->dims[c->ndim - 2], columns = (size_t)c->dims[c->ndim - 1];
    tr_onnx_const *made = tr_onnx_fold_new(r, c->ndim, c->dims, c->f != NULL, &f, &i);
    for (size_t at = 0; made && at < made->count; at++) {
        const double off = (double)(at % columns) - (double)(at / columns % rows);
        const bool kept = upper ? off >= k : off <= k;
        if (f)
            f[at] = kept ? c->f[at] : 0;
        else
            i[at] = kept ? c->i[at] : 0;
    }
    return made;
}

/* A part of one dimension, forwards and without gaps. */
const tr_onnx_const *tr_onnx_fold_cut(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    int64_t begin, end, axis = 0, step = 1, dims[TR_ONNX_RANK], *i = NULL;
    float *f = NULL;
    if (tr_onnx_numbers(r, s, 1, "starts", 1, &begin) != 1 ||
        tr_onnx_numbers(r, s, 2, "ends", 1, &end) != 1 ||
        tr_onnx_numbers(r, s, 3, "axes", 1, &axis) > 1 ||
        tr_onnx_numbers(r, s, 4, "steps", 1, &step) > 1 || step != 1)
        return NULL;
    if (axis < 0) axis += c->ndim;
    if (axis < 0 || axis >= c->ndim || begin < 0 || end < 0) return NULL;
    const int64_t n = c->dims[axis];
    if (end > n) end = n;
    if (begin >= end) return NULL;
    memcpy(dims, c->dims, sizeof dims);
    dims[axis] = end - begin;
    size_t behind = 1;
    for (int d = (int)axis + 1; d < c->ndim; d++) behind *= (size_t)c->dims[d];
    tr_onnx_const *made = tr_onnx_fold_new(r, c->ndim, dims, c->f != NULL, &f, &i);
    const size_t row = (size_t)(end - begin) * behind;
    for (size_t k = 0; made && k < made->count; k++) {
        const size_t at = k / row * (size_t)n * behind + (size_t)begin * behind + k % row;
        copy(f, i, k, c, at);
    }
    return made;
}
