/* Which steps are views of what they read, and what becomes of one that a layer reads. */
#include <string.h>

#include "optimize/onnx/ops/ops.h"
#include "optimize/onnx/view.h"

/* Steps that wait one behind the other: they are read by recursion. */
enum { DEPTH_MAX = 32 };

static bool see_reshape(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    int64_t to[TR_ONNX_RANK];
    const int n = tr_onnx_numbers(r, s, 1, "shape", TR_ONNX_RANK, to);
    const bool zeros = tr_onnx_get_int(s, "allowzero", 0) != 0;
    const bool first = n > 0 && n <= TR_ONNX_RANK && r->batch > 0 && to[0] == r->batch;
    if (!first && tr_onnx_view_reshape(v, n, to, zeros)) return true;
    /* a file for one batch has it as a number */
    for (int d = 0; r->batch > 0 && d < n && n <= TR_ONNX_RANK; d++) {
        if (to[d] != r->batch) continue;
        to[d] = TR_ONNX_BATCH;
        if (tr_onnx_view_reshape(v, n, to, zeros)) return true;
        to[d] = r->batch;
    }
    return false;
}

static bool see_transpose(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    int64_t perm[TR_ONNX_RANK];
    const int n = tr_onnx_get_ints(s, "perm", TR_ONNX_RANK, perm);
    (void)r;
    return tr_onnx_view_transpose(v, n, perm);
}

/* Bits of the axes that a step names, of so many; false: other ones. */
static bool axes_of(const tr_onnx_reader *r, const tr_onnx_step *s, int more, int rank,
                    unsigned *axes)
{
    int64_t at[TR_ONNX_RANK];
    const int n = tr_onnx_numbers(r, s, 1, "axes", TR_ONNX_RANK, at);
    *axes = 0;
    if (n < 1 || n > TR_ONNX_RANK) return false;
    const int all = rank + more * n;
    for (int i = 0; i < n; i++) {
        const int64_t axis = at[i] < 0 ? at[i] + all : at[i];
        if (axis < 0 || axis >= all || all > TR_ONNX_RANK || (*axes >> axis & 1)) return false;
        *axes |= 1u << axis;
    }
    return true;
}

static bool see_unsqueeze(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    unsigned axes;
    bool good = axes_of(r, s, 1, v->ndim, &axes);
    for (int d = 0; good && d < TR_ONNX_RANK; d++)
        if (axes >> d & 1) good = tr_onnx_view_insert(v, d);
    return good;
}

static bool see_squeeze(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    unsigned axes;
    bool good = axes_of(r, s, 0, v->ndim, &axes);
    for (int d = TR_ONNX_RANK - 1; good && d >= 0; d--)
        if (axes >> d & 1) good = tr_onnx_view_drop(v, d);
    return good;
}

/* One of a dimension, which is gone. */
static bool see_gather(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    const tr_onnx_const *at = tr_onnx_const_in(r, s, 1);
    int64_t axis = tr_onnx_get_int(s, "axis", 0);
    if (axis < 0) axis += v->ndim;
    if (!at || !at->i || at->ndim != 0 || at->count != 1 || axis < 0 || axis >= v->ndim)
        return false;
    const int64_t n = tr_onnx_view_dim(v, (int)axis);
    if (n < 1) return false;
    const int64_t i = at->i[0] < 0 ? at->i[0] + n : at->i[0];
    return i >= 0 && i < n && tr_onnx_view_cut(v, (int)axis, i, 1) &&
           tr_onnx_view_drop(v, (int)axis);
}

static bool see_slice(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    int64_t begin, end, axis = 0, step = 1;
    if (tr_onnx_numbers(r, s, 1, "starts", 1, &begin) != 1 ||
        tr_onnx_numbers(r, s, 2, "ends", 1, &end) != 1 ||
        tr_onnx_numbers(r, s, 3, "axes", 1, &axis) > 1 ||
        tr_onnx_numbers(r, s, 4, "steps", 1, &step) > 1 || step != 1)
        return false;
    if (axis < 0) axis += v->ndim;
    const int64_t n = axis >= 0 && axis < v->ndim ? tr_onnx_view_dim(v, (int)axis) : -1;
    if (n < 1 || tr_onnx_is_batches(begin) || tr_onnx_is_batches(end)) return false;
    begin = begin < -n ? 0 : begin < 0 ? begin + n : begin;
    end = end > n ? n : end < 0 ? (end < -n ? 0 : end + n) : end;
    return begin < end && tr_onnx_view_cut(v, (int)axis, begin, end - begin);
}

/* Times a number, or by it. */
static bool see_scale(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    double by;
    const bool inverse = *s->type == 'D';
    const int at = !inverse && tr_onnx_const_in(r, s, 0) ? 0 : 1;
    const tr_onnx_const *c = tr_onnx_const_in(r, s, at);
    if (s->nin != 2 || !c || !c->f || c->ndim > v->ndim || !tr_onnx_scalar_of(r, s->in[at], &by) ||
        !(by > 0 && by < 1e30))
        return false;
    v->scale *= inverse ? 1 / by : by;
    return v->scale > 0 && v->scale < 1e30;
}

static bool see_same(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    (void)r;
    (void)v;
    return *s->type == 'I' || tr_onnx_get_int(s, "to", 0) == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
}

static const struct {
    const char *type;
    int at; /* the operand that is seen; -1: the one that is no constant */
    bool (*see)(const tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v);
} kinds[] = {{"Reshape", 0, see_reshape},     {"Transpose", 0, see_transpose},
             {"Unsqueeze", 0, see_unsqueeze}, {"Squeeze", 0, see_squeeze},
             {"Gather", 0, see_gather},       {"Slice", 0, see_slice},
             {"Mul", -1, see_scale},          {"Div", 0, see_scale},
             {"Identity", 0, see_same},       {"Cast", 0, see_same}};

/* Parts of one dimension, a value each. */
static bool see_split(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_view *v = s->nin > 0 ? tr_onnx_view_of(r, s->in[0]) : NULL;
    int64_t axis = tr_onnx_get_int(s, "axis", 0), size[TR_ONNX_RANK], at = 0;
    if (!v || s->nout < 1 || s->nout > TR_ONNX_RANK) return false;
    if (axis < 0) axis += v->ndim;
    const int64_t n = axis >= 0 && axis < v->ndim ? tr_onnx_view_dim(v, (int)axis) : -1;
    const int given = tr_onnx_numbers(r, s, 1, "split", TR_ONNX_RANK, size);
    if (n < 1 || (given >= 0 ? given != s->nout : n % s->nout != 0)) return false;
    for (int k = 0; k < s->nout; k++) {
        tr_onnx_view *part = tr_onnx_view_of(r, s->in[0]);
        if (given < 0) size[k] = n / s->nout;
        if (!part || !tr_onnx_view_cut(part, (int)axis, at, size[k])) return false;
        at += size[k];
    }
    if (at != n) return false;
    at = 0;
    for (int k = 0; k < s->nout; k++) {
        tr_onnx_view *part = tr_onnx_view_of(r, s->in[0]);
        if (!part || !tr_onnx_view_cut(part, (int)axis, at, size[k])) return false;
        tr_onnx_view_give(r, s, k, part);
        at += size[k];
    }
    return true;
}

bool tr_onnx_may_wait(const tr_onnx_step *s)
{
    static const char *const others[] = {"Split", "Where", "Softmax", "Attention"};
    for (size_t i = 0; i < TR_COUNT(others); i++)
        if (strcmp(others[i], s->type) == 0) return true;
    for (size_t i = 0; i < TR_COUNT(kinds); i++)
        if (strcmp(kinds[i].type, s->type) == 0) return true;
    return false;
}

static bool is_deep(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    for (int i = 0; i < s->nin; i++) {
        const tr_onnx_view *v = s->in[i] >= 0 ? r->values[s->in[i]].view : NULL;
        if (v && v->depth >= DEPTH_MAX) return true;
    }
    return false;
}

bool tr_onnx_waits(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (is_deep(r, s)) return false;
    if (tr_onnx_attends(r, s)) return true;
    if (strcmp(s->type, "Split") == 0) return see_split(r, s);
    for (size_t i = 0; i < TR_COUNT(kinds); i++) {
        if (strcmp(kinds[i].type, s->type) != 0) continue;
        const int at = kinds[i].at >= 0 ? kinds[i].at : tr_onnx_const_in(r, s, 0) ? 1 : 0;
        /* a number at an input may be data.normalize, and ids are cast */
        const bool plain = kinds[i].see == see_scale || kinds[i].see == see_same;
        if (at >= s->nin || s->in[at] < 0 || (plain && r->values[s->in[at]].input >= 0))
            return false;
        tr_onnx_view *v = tr_onnx_view_of(r, s->in[at]);
        if (!v || !kinds[i].see(r, s, v)) return false;
        tr_onnx_view_give(r, s, 0, v);
        return true;
    }
    return false;
}

bool tr_onnx_settle(tr_onnx_reader *r, const tr_onnx_step *reader, int value)
{
    tr_onnx_value *v = &r->values[value];
    const tr_onnx_step *s = v->waits;
    if (!s) return true;
    if (v->view->scores) {
        tr_onnx_refuse(r, reader,
                       "it reads scores of an attention, which only a scale, a constant mask, a "
                       "softmax over keys and a product with values may");
        return false;
    }
    if (tr_onnx_is_recurrent(s)) {
        tr_onnx_refuse(r, reader,
                       "it reads rows or states of an %s in front of the samples, which only the "
                       "turn back, what picks one, and the next such layer may",
                       s->type);
        return false;
    }
    const size_t before = r->nrefused;
    const tr_onnx_operator *o = tr_onnx_operator_of(s->type);
    void (*read)(tr_onnx_reader *, const tr_onnx_step *) = s->pattern ? s->pattern->read
                                                           : o        ? o->read
                                                                      : NULL;
    v->waits = NULL;
    v->view = NULL;
    v->kind = TR_ONNX_NOTHING;
    if (read) read(r, s);
    tr_onnx_value *y = &r->values[value];
    if (y->kind == TR_ONNX_NOTHING && r->nrefused == before && r->pool.st == TR_OK)
        tr_onnx_refuse(
            r, s,
            "there is no layer for it but in an attention, and node \"%s\" (%s) reads it "
            "otherwise",
            reader->proto->name ? reader->proto->name : "", reader->type);
    if (y->kind == TR_ONNX_NOTHING) y->kind = TR_ONNX_REFUSED;
    return r->values[value].kind == TR_ONNX_VALUE;
}

/* ---- Layers of rows, in whatever order rows are ---------------------------------------------- */

static const char *const by_row[] = {"MatMul", "Gemm", "Relu", "Gelu", "Tanh", "Sigmoid"};

static bool is_by_row(const tr_onnx_step *s)
{
    if (s->pattern) return s->pattern->by_row;
    if (strcmp(s->type, "LayerNormalization") == 0) return tr_onnx_get_int(s, "axis", -1) == -1;
    for (size_t i = 0; i < TR_COUNT(by_row); i++)
        if (strcmp(s->type, by_row[i]) == 0) return true;
    return strcmp(s->type, "Add") == 0 && s->nin == 2;
}

bool tr_onnx_read_by_row(tr_onnx_reader *r, const tr_onnx_step *s,
                         void (*read)(tr_onnx_reader *r, const tr_onnx_step *s))
{
    const int n = s->pattern ? s->noperands : s->nin;
    const int *of = s->pattern ? s->operands : s->in;
    const tr_onnx_view *first = NULL;
    tr_onnx_value held[TR_ONNX_RANK];
    if (n > TR_ONNX_RANK || s->nout < 1 || s->out[0] < 0 || !is_by_row(s)) return false;
    const bool sums = !s->pattern && *s->type == 'A';
    for (int i = 0; i < n; i++) {
        const tr_onnx_value *x = of[i] >= 0 ? &r->values[of[i]] : NULL;
        if (x && x->kind == TR_ONNX_VALUE && !x->view) return false;
        if (x && x->kind == TR_ONNX_VALUE &&
            (x->view->depth >= DEPTH_MAX || !tr_onnx_view_by_row(r, x->view)))
            return false;
        if (x && x->kind == TR_ONNX_VALUE && first &&
            (first->ndim != x->view->ndim || !tr_onnx_view_same(first, x->view, first->ndim)))
            return false;
        if (sums && (!x || x->kind != TR_ONNX_VALUE)) return false;
        if (x && x->kind == TR_ONNX_VALUE) first = x->view;
    }
    if (!first || (first->ndim <= 3 && tr_onnx_view_is_axis(r, first, 0, 0)))
        return false; /* the samples are the file's */
    tr_onnx_view *made = tr_onnx_view_new(r, first);
    if (!made) return true;
    for (int i = 0; i < n; i++)
        if (of[i] >= 0) held[i] = r->values[of[i]];
    for (int i = 0; i < n; i++) {
        tr_onnx_value *x = of[i] >= 0 ? &r->values[of[i]] : NULL;
        if (!x || !x->view) continue;
        x->value = x->view->of;
        x->view = NULL;
        x->waits = NULL;
    }
    r->by_row = true;
    read(r, s);
    r->by_row = false;
    for (int i = n - 1; i >= 0; i--)
        if (of[i] >= 0) r->values[of[i]] = held[i];
    tr_onnx_value *y = &r->values[s->out[0]];
    if (y->kind != TR_ONNX_VALUE) return true;
    const int last = tr_onnx_shape(r, y->value).ndim;
    *made = *first;
    made->ndim--;
    made->natoms -= made->count[made->ndim];
    made->of = y->value;
    y->value = -1;
    tr_onnx_view_add(made, last, 1, tr_onnx_shape(r, made->of).dims[last - 1]);
    tr_onnx_view_give(r, s, 0, made);
    return true;
}
