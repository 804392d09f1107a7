/* Steps on constants, done when the file is read: what exporters compute of shapes and weights. */
#include <math.h>
#include <string.h>

#include "optimize/onnx/fold.h"
#include "optimize/onnx/view.h"

/* Elements that may be made of constants; transposed weights are as large as the file. */
enum { SOME = 1 << 22 };

tr_onnx_const *tr_onnx_fold_new(tr_onnx_reader *r, int ndim, const int64_t *dims, bool floats,
                                float **f, int64_t **i)
{
    size_t n = 1;
    for (int d = 0; d < ndim; d++)
        if (dims[d] < 0 || !tr_mul_size(n, (size_t)dims[d], &n)) return NULL;
    if (n > SOME + 2 * r->file_bytes - r->folded) return NULL;
    r->folded += n;
    r->pool.most += r->pool.most ? n * sizeof(int64_t) : 0;
    return tr_onnx_const_new(r, ndim, dims, floats ? f : NULL, floats ? NULL : i);
}

/* The same elements, seen otherwise. */
static tr_onnx_const *reshaped(tr_onnx_reader *r, const tr_onnx_const *c, int ndim,
                               const int64_t *dims)
{
    tr_onnx_const *n = tr_pool_get(&r->pool, 1, sizeof *n);
    if (!n) return NULL;
    *n = *c;
    n->turned_of = NULL;
    n->ndim = ndim;
    if (ndim) memcpy(n->dims, dims, (size_t)ndim * sizeof *dims);
    return n;
}

/* ---- Constants of the graph ------------------------------------------------------------------ */

static const tr_onnx_const *constant(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const Onnx__AttributeProto *a;
    float *f = NULL;
    int64_t *i = NULL;
    if ((a = tr_onnx_get(s, "value")) && a->t) return tr_onnx_tensor(r, a->t);
    if ((a = tr_onnx_get(s, "value_float")) && a->has_f) {
        tr_onnx_const *c = tr_onnx_fold_new(r, 0, NULL, true, &f, &i);
        if (c) *f = a->f;
        return c;
    }
    if ((a = tr_onnx_get(s, "value_int")) && a->has_i) {
        tr_onnx_const *c = tr_onnx_fold_new(r, 0, NULL, false, &f, &i);
        if (c) *i = a->i;
        return c;
    }
    if ((a = tr_onnx_get(s, "value_ints"))) {
        tr_onnx_const *c = tr_onnx_fold_new(r, 1, (int64_t[]){(int64_t)a->n_ints}, false, &f, &i);
        if (c && a->n_ints) memcpy(i, a->ints, a->n_ints * sizeof *i);
        return c;
    }
    if ((a = tr_onnx_get(s, "value_floats"))) {
        tr_onnx_const *c = tr_onnx_fold_new(r, 1, (int64_t[]){(int64_t)a->n_floats}, true, &f, &i);
        if (c && a->n_floats) memcpy(f, a->floats, a->n_floats * sizeof *f);
        return c;
    }
    return NULL;
}

static int64_t within(int64_t v, int64_t n, int64_t least)
{
    v = v < 0 ? v + n : v;
    return v < least ? least : v > n ? n : v;
}

static const tr_onnx_const *shape_of(tr_onnx_reader *r, const tr_onnx_step *s,
                                     const tr_onnx_const *c)
{
    int64_t *i = NULL;
    float *f = NULL;
    if (tr_onnx_get(s, "start") || tr_onnx_get(s, "end")) return NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, 1, (int64_t[]){c->ndim}, false, &f, &i);
    for (int d = 0; made && d < c->ndim; d++) i[d] = c->dims[d];
    return made;
}

/* The dimensions of a value of the model, the batch among them: all, or from `start` to `end`. */
static const tr_onnx_const *shape(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t *i = NULL;
    float *f = NULL;
    const tr_onnx_value *from = s->nin == 1 && s->in[0] >= 0 ? &r->values[s->in[0]] : NULL;
    if (!from || (from->kind != TR_ONNX_VALUE && from->kind != TR_ONNX_CONST)) return NULL;
    if (from->kind == TR_ONNX_CONST) return shape_of(r, s, from->constant);
    const tr_shape of = from->view ? (tr_shape){0} : tr_onnx_shape(r, from->value);
    const int64_t n = from->view ? from->view->ndim : of.ndim + 1;
    int64_t begin = tr_onnx_get_int(s, "start", 0), end = tr_onnx_get_int(s, "end", n);
    begin = within(begin, n, 0);
    end = within(end, n, 0);
    tr_onnx_const *c =
        tr_onnx_fold_new(r, 1, (int64_t[]){end > begin ? end - begin : 0}, false, &f, &i);
    for (int64_t d = begin; c && d < end; d++)
        i[d - begin] = from->view ? tr_onnx_view_dim(from->view, (int)d)
                       : d        ? of.dims[d - 1]
                                  : TR_ONNX_BATCH;
    return c;
}

/* ---- Other shapes ---------------------------------------------------------------------------- */

static const tr_onnx_const *cast(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    const int64_t to = tr_onnx_get_int(s, "to", 0);
    const bool floats =
        to == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT || to == ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE;
    const bool whole =
        to == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 || to == ONNX__TENSOR_PROTO__DATA_TYPE__INT32;
    float *f = NULL;
    int64_t *i = NULL;
    if (c->f ? floats : whole) return c;
    if (to == ONNX__TENSOR_PROTO__DATA_TYPE__BOOL && !tr_onnx_any_batches(c)) {
        tr_onnx_const *t = tr_onnx_fold_new(r, c->ndim, c->dims, false, &f, &i);
        for (size_t k = 0; t && k < c->count; k++) i[k] = c->f ? c->f[k] != 0 : c->i[k] != 0;
        return t;
    }
    if (!floats || c->f || tr_onnx_any_batches(c)) return NULL;
    tr_onnx_const *n = tr_onnx_fold_new(r, c->ndim, c->dims, true, &f, &i);
    for (size_t k = 0; n && k < c->count; k++) f[k] = (float)c->i[k];
    return n;
}

static const tr_onnx_const *reshape(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    int64_t dims[TR_ONNX_RANK];
    const int n = tr_onnx_numbers(r, s, 1, "shape", TR_ONNX_RANK, dims);
    size_t known = 1;
    int open = -1;
    if (n < 0 || n > TR_ONNX_RANK) return NULL;
    for (int d = 0; d < n; d++) {
        if (dims[d] == 0 && d < c->ndim) dims[d] = c->dims[d];
        if (dims[d] == -1 && open < 0)
            open = d;
        else if (dims[d] < 0 || !tr_mul_size(known, (size_t)dims[d], &known))
            return NULL;
    }
    if (open >= 0 && known) dims[open] = (int64_t)(c->count / known);
    if (open >= 0 && (!known || known * (size_t)dims[open] != c->count)) return NULL;
    return open >= 0 || known == c->count ? reshaped(r, c, n, dims) : NULL;
}

/* Dimensions of 1 put in or taken out. */
static const tr_onnx_const *squeeze(tr_onnx_reader *r, const tr_onnx_step *s, bool in)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    int64_t axes[TR_ONNX_RANK], dims[TR_ONNX_RANK];
    const int n = tr_onnx_numbers(r, s, 1, "axes", TR_ONNX_RANK, axes);
    unsigned at = 0;
    if (n > TR_ONNX_RANK || (in && (n < 0 || c->ndim + n > TR_ONNX_RANK))) return NULL;
    const int rank = in ? c->ndim + n : c->ndim;
    for (int k = 0; k < n; k++) {
        const int64_t axis = axes[k] < 0 ? axes[k] + rank : axes[k];
        if (axis < 0 || axis >= rank) return NULL;
        at |= 1u << axis;
    }
    int made = 0, from = 0;
    for (int d = 0; d < rank; d++) {
        const bool named = at >> d & 1;
        if (in) {
            if (!named && from == c->ndim) return NULL;
            dims[made++] = named ? 1 : c->dims[from++];
        } else if (n < 0 ? c->dims[d] != 1 : !named) {
            dims[made++] = c->dims[d];
        } else if (c->dims[d] != 1) {
            return NULL;
        }
    }
    return reshaped(r, c, made, dims);
}

/* Elements in the order of other dimensions. */
static const tr_onnx_const *transpose(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    int64_t perm[TR_ONNX_RANK], dims[TR_ONNX_RANK], behind[TR_ONNX_RANK];
    int n = tr_onnx_get_ints(s, "perm", TR_ONNX_RANK, perm);
    unsigned seen = 0;
    float *f = NULL;
    int64_t *w = NULL, step = 1;
    for (int d = 0; n < 0 && d < c->ndim; d++) perm[d] = c->ndim - 1 - d;
    if (n < 0) n = c->ndim;
    if (n != c->ndim) return NULL;
    for (int d = 0; d < n; d++) {
        if (perm[d] < 0 || perm[d] >= n || (seen >> perm[d] & 1)) return NULL;
        seen |= 1u << perm[d];
        dims[d] = c->dims[perm[d]];
    }
    for (int d = n - 1; d >= 0; d--) {
        behind[d] = step;
        step *= c->dims[d];
    }
    tr_onnx_const *made = tr_onnx_fold_new(r, n, dims, c->f != NULL, &f, &w);
    int64_t at[TR_ONNX_RANK] = {0}, from = 0;
    for (size_t i = 0; made && i < c->count; i++) {
        if (f)
            f[i] = c->f[from];
        else
            w[i] = c->i[from];
        for (int d = n - 1; d >= 0; d--) {
            from += behind[perm[d]];
            if (++at[d] < dims[d]) break;
            from -= at[d] * behind[perm[d]];
            at[d] = 0;
        }
    }
    if (made) made->name = c->name;
    if (made && n == 2 && perm[0] == 1) made->turned_of = c;
    return made;
}

/* ---- Lists of whole numbers ------------------------------------------------------------------ */

static const tr_onnx_const *concat(tr_onnx_reader *r, const tr_onnx_step *s)
{
    size_t n = 0;
    for (int k = 0; k < s->nin; k++) {
        const tr_onnx_const *c = tr_onnx_const_in(r, s, k);
        if (!c || c->ndim != 1 || !c->i || !tr_add_size(n, c->count, &n)) return NULL;
    }
    int64_t *i = NULL;
    float *f = NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, 1, (int64_t[]){(int64_t)n}, false, &f, &i);
    for (int k = 0; made && k < s->nin; k++) {
        const tr_onnx_const *c = tr_onnx_const_in(r, s, k);
        if (c->count) memcpy(i, c->i, c->count * sizeof *i);
        i += c->count;
    }
    return made;
}

static const tr_onnx_const *gather(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0), *at = tr_onnx_const_in(r, s, 1);
    int64_t *i = NULL;
    float *f = NULL;
    if (!at || c->ndim != 1 || !c->i || !at->i || tr_onnx_get_int(s, "axis", 0) != 0) return NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, at->ndim, at->dims, false, &f, &i);
    for (size_t k = 0; made && k < at->count; k++) {
        const int64_t p = at->i[k] < 0 ? at->i[k] + (int64_t)c->count : at->i[k];
        if (p < 0 || (size_t)p >= c->count) return NULL;
        i[k] = c->i[p];
    }
    return made;
}

/* Of whole numbers along the first axis, forwards or backwards, without gaps. */
static const tr_onnx_const *slice(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 0);
    int64_t begin, end, axis = 0, step = 1, dims[TR_ONNX_RANK], *i = NULL;
    float *f = NULL;
    /* as a number of a file that is the first or last one, not the batch */
    for (int k = 1; k < 3; k++) {
        const tr_onnx_const *b = tr_onnx_const_in(r, s, k);
        if (b && b->type == 0 && tr_onnx_any_batches(b)) return NULL;
    }
    if (c->ndim < 1 || tr_onnx_numbers(r, s, 1, "starts", 1, &begin) != 1 ||
        tr_onnx_numbers(r, s, 2, "ends", 1, &end) != 1 ||
        tr_onnx_numbers(r, s, 3, "axes", 1, &axis) > 1 ||
        tr_onnx_numbers(r, s, 4, "steps", 1, &step) > 1 || (step != 1 && step != -1))
        return NULL;
    if (!c->i || (axis != 0 && axis != -c->ndim)) return tr_onnx_fold_cut(r, s);
    const int64_t n = c->dims[0];
    begin = step > 0 ? within(begin, n, 0) : within(begin, n, -1);
    if (step < 0 && begin == n) begin = n - 1;
    end = within(end, n, step > 0 ? 0 : -1);
    const int64_t count = (end - begin) * step > 0 ? (end - begin) * step : 0;
    const size_t row = n > 0 ? c->count / (size_t)n : 0;
    memcpy(dims, c->dims, sizeof dims);
    dims[0] = count;
    tr_onnx_const *made = tr_onnx_fold_new(r, c->ndim, dims, false, &f, &i);
    for (int64_t k = 0; made && k < count && row; k++)
        memcpy(i + (size_t)k * row, c->i + (size_t)(begin + k * step) * row, row * sizeof *i);
    return made;
}

/* One number everywhere. */
static const tr_onnx_const *filled(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *shape = tr_onnx_const_in(r, s, 0);
    const Onnx__AttributeProto *a = tr_onnx_get(s, "value");
    const tr_onnx_const *v = a && a->t ? tr_onnx_tensor(r, a->t) : NULL;
    int64_t *i = NULL;
    float *f = NULL;
    if (!shape->i || shape->count > TR_ONNX_RANK || (a && (!v || v->count != 1))) return NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, (int)shape->count, shape->i, !v || v->f, &f, &i);
    for (size_t k = 0; made && v && k < made->count; k++)
        if (f)
            f[k] = v->f[0];
        else
            i[k] = v->i[0];
    return made;
}

/* ---- Arithmetic ------------------------------------------------------------------------------ */

static bool arithmetic(char op, double a, double b, double *out)
{
    switch (op) {
    case 'A':
        *out = a + b;
        return true;
    case 'S':
        *out = a - b;
        return true;
    case 'M':
        *out = a * b;
        return true;
    case 'D':
        *out = a / b;
        return true;
    default:
        *out = pow(a, b);
        return op == 'P';
    }
}

/* Equal shapes, or a single number. */
static const tr_onnx_const *of_two(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *a = tr_onnx_const_in(r, s, 0), *b = tr_onnx_const_in(r, s, 1);
    float *f = NULL;
    int64_t *i = NULL;
    if (b && a->i && b->i && strcmp(s->type, "Pow") != 0) return tr_onnx_fold_whole(r, s);
    if (!b || !a->f || !b->f || (a->count != 1 && b->count != 1 && a->count != b->count))
        return NULL;
    const tr_onnx_const *of = b->count == 1 ? a : b;
    if (a->count == b->count &&
        (a->ndim != b->ndim || memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims) != 0))
        return NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, of->ndim, of->dims, true, &f, &i);
    for (size_t k = 0; made && k < of->count; k++) {
        double v;
        if (!arithmetic(*s->type, (double)a->f[a->count == 1 ? 0 : k],
                        (double)b->f[b->count == 1 ? 0 : k], &v))
            return NULL;
        f[k] = (float)v;
    }
    return made;
}

static const tr_onnx_const *of_one(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *a = tr_onnx_const_in(r, s, 0);
    float *f = NULL;
    int64_t *i = NULL;
    if (!a->f) return NULL;
    tr_onnx_const *made = tr_onnx_fold_new(r, a->ndim, a->dims, true, &f, &i);
    for (size_t k = 0; made && k < a->count; k++)
        f[k] = *s->type == 'S' ? sqrtf(a->f[k]) : *s->type == 'R' ? 1 / a->f[k] : -a->f[k];
    return made;
}

/* As a layer keeps its weight: int8 without a zero point, a positive scale a row. */
static bool is_by_row(const tr_onnx_const *q, const tr_onnx_const *scale, const tr_onnx_const *zero,
                      size_t behind)
{
    const size_t rows = q->ndim > 1 ? (size_t)q->dims[0] : 0;
    if (!rows || scale->count != rows || (rows > 1 && behind != q->count / rows)) return false;
    for (size_t i = 0; i < rows; i++)
        if (!(scale->f[i] > 0 && scale->f[i] < 1e30f) || (zero && zero->i[i] != 0)) return false;
    for (size_t i = 0; i < q->count; i++)
        if (q->i[i] < -127 || q->i[i] > 127) return false;
    return true;
}

/* (q - zero point) * scale, for all or along an axis. */
static const tr_onnx_const *dequantize(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *q = tr_onnx_const_in(r, s, 0), *scale = tr_onnx_const_in(r, s, 1),
                        *zero = tr_onnx_const_in(r, s, 2);
    int64_t axis = tr_onnx_get_int(s, "axis", 1), *i = NULL;
    size_t behind = 1;
    float *f = NULL;
    if (axis < 0) axis += q->ndim;
    if (!q->i || !scale || !scale->f || scale->count == 0 ||
        tr_onnx_get_int(s, "block_size", 0) != 0 ||
        (scale->count > 1 &&
         (axis < 0 || axis >= q->ndim || scale->count != (size_t)q->dims[axis])) ||
        (zero && (!zero->i || zero->count != scale->count)))
        return NULL;
    for (int64_t d = q->ndim - 1; scale->count > 1 && d > axis; d--) behind *= (size_t)q->dims[d];
    tr_onnx_const *made = tr_onnx_fold_new(r, q->ndim, q->dims, true, &f, &i);
    for (size_t k = 0; made && k < q->count; k++) {
        const size_t c = scale->count > 1 ? k / behind % scale->count : 0;
        /* a difference of int64 may overflow */
        f[k] = (float)((double)q->i[k] - (zero ? (double)zero->i[c] : 0)) * scale->f[c];
    }
    if (made) made->name = q->name;
    if (made && is_by_row(q, scale, zero, behind)) made->scale = scale;
    return made;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const tr_onnx_const *unsqueezed(tr_onnx_reader *r, const tr_onnx_step *s)
{
    return squeeze(r, s, true);
}

static const tr_onnx_const *squeezed(tr_onnx_reader *r, const tr_onnx_step *s)
{
    return squeeze(r, s, false);
}

static const tr_onnx_const *same(tr_onnx_reader *r, const tr_onnx_step *s)
{
    return tr_onnx_const_in(r, s, 0);
}

static const struct {
    const char *type;
    bool none; /* of its operands must be a constant */
    const tr_onnx_const *(*fold)(tr_onnx_reader *r, const tr_onnx_step *s);
} folds[] = {{"Constant", true, constant},
             {"Shape", true, shape},
             {"Cast", false, cast},
             {"Identity", false, same},
             {"Reshape", false, reshape},
             {"Unsqueeze", false, unsqueezed},
             {"Squeeze", false, squeezed},
             {"Transpose", false, transpose},
             {"Concat", false, concat},
             {"Gather", false, gather},
             {"Slice", false, slice},
             {"Add", false, of_two},
             {"Sub", false, of_two},
             {"Mul", false, of_two},
             {"Div", false, of_two},
             {"Pow", false, of_two},
             {"Sqrt", false, of_one},
             {"Reciprocal", false, of_one},
             {"Neg", false, of_one},
             {"DequantizeLinear", false, dequantize},
             {"ConstantOfShape", false, filled},
             {"Mod", false, tr_onnx_fold_whole},
             {"Equal", false, tr_onnx_fold_equal},
             {"Where", false, tr_onnx_fold_where},
             {"Expand", false, tr_onnx_fold_expand},
             {"Trilu", false, tr_onnx_fold_trilu}};

const char *tr_onnx_fold_type(size_t i)
{
    return i < TR_COUNT(folds) ? folds[i].type : NULL;
}

bool tr_onnx_may_fold(const tr_onnx_step *s)
{
    for (size_t i = 0; i < TR_COUNT(folds); i++)
        if (strcmp(folds[i].type, s->type) == 0) return true;
    return false;
}

bool tr_onnx_fold(tr_onnx_reader *r, const tr_onnx_step *s)
{
    for (size_t i = 0; i < TR_COUNT(folds); i++) {
        if (strcmp(folds[i].type, s->type) != 0) continue;
        bool all = s->nin > 0 || folds[i].none;
        for (int k = 0; k < s->nin && !folds[i].none; k++)
            all = all && (s->in[k] < 0 ? k > 0 : tr_onnx_const_in(r, s, k) != NULL);
        const tr_onnx_const *c = all ? folds[i].fold(r, s) : NULL;
        if (c) tr_onnx_give_const(r, s, c);
        return c != NULL;
    }
    return false;
}
