/* What moves or picks elements: flatten, reshape, permute, concat, embedding, class token; a row by
 * its number; dropout and drop_path, which do nothing when a model is evaluated. */
#include "optimize/onnx/ops/ops.h"
#include "optimize/onnx/view.h"

/* Shapes are channels first in both, so the order of features is the same. */
static void write_flatten(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    (void)l;
    tr_onnx_int(w, tr_onnx_add(w, "Flatten", NULL, TR_NAMES(in[0]), out, NULL), "axis", 1);
}

/* 0 keeps what is there: the batch. */
static void write_reshape(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    int64_t dims[TR_MAX_DIMS] = {0};
    for (int i = 0; i < l->output.ndim; i++) dims[1 + i] = l->output.dims[i];
    const char *shape = tr_onnx_int64s(w, "shape", (size_t)l->output.ndim + 1, dims);
    tr_onnx_add(w, "Reshape", NULL, TR_NAMES(in[0], shape), out, NULL);
}

static void write_permute(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    const tr_permute_attrs *a = l->attrs;
    tr_onnx_ints(w, tr_onnx_add(w, "Transpose", NULL, TR_NAMES(in[0]), out, NULL), "perm",
                 (size_t)l->output.ndim + 1, a->dims);
}

/* The weights in front of each sample, as often as there are samples. */
static void write_class_token(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                              const char *out)
{
    const int64_t zero[] = {0}, row[] = {1, l->output.dims[1]};
    const char *batch, *shape, *token, *zeros = tr_onnx_int64s(w, "zero", 1, zero),
                                       *rest = tr_onnx_int64s(w, "row", 2, row);
    tr_onnx_add(w, "Shape", "shape", TR_NAMES(in[0]), NULL, &batch);
    tr_onnx_int(w, tr_onnx_add(w, "Gather", "batch", TR_NAMES(batch, zeros), NULL, &batch), "axis",
                0);
    tr_onnx_int(w, tr_onnx_add(w, "Concat", "token_shape", TR_NAMES(batch, rest), NULL, &shape),
                "axis", 0);
    tr_onnx_add(w, "Expand", "token", TR_NAMES(tr_onnx_param(w, 0), shape), NULL, &token);
    tr_onnx_int(w, tr_onnx_add(w, "Concat", NULL, TR_NAMES(token, in[0]), out, NULL), "axis", 1);
}

static const char *fixed_concat(const tr_layer *l)
{
    return ((const tr_concat_attrs *)l->attrs)->axis == 1 ? "it puts sequences behind each other"
                                                          : NULL;
}

static void write_concat(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const tr_concat_attrs *a = l->attrs;
    tr_onnx_int(w, tr_onnx_add(w, "Concat", NULL, l->nin, in, out, NULL), "axis", a->axis);
}

static void write_embedding(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    (void)l;
    tr_onnx_int(w, tr_onnx_add(w, "Gather", NULL, TR_NAMES(tr_onnx_param(w, 0), in[0]), out, NULL),
                "axis", 0);
}

static void write_dropout(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    (void)l;
    tr_onnx_add(w, "Identity", NULL, TR_NAMES(in[0]), out, NULL);
}

static bool turns(const tr_layer *l)
{
    return ((const tr_permute_attrs *)l->attrs)->dims[1] == 2;
}

static const tr_onnx_layer layers[] = {
    {.layer = "flatten", .write = write_flatten},
    {.layer = "reshape", .write = write_reshape},
    {.layer = "permute",
     .write = write_permute,
     .fixed = tr_onnx_any_rows,
     .columns = true,
     .turns = turns},
    {.layer = "concat", .write = write_concat, .fixed = fixed_concat},
    {.layer = "embedding", .write = write_embedding, .fixed = tr_onnx_any_rows},
    {.layer = "dropout", .write = write_dropout, .fixed = tr_onnx_any_rows},
    {.layer = "drop_path", .write = write_dropout, .fixed = tr_onnx_any_rows},
    {.layer = "class_token", .write = write_class_token},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

static void read_same(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (s->nin < 1 || s->in[0] < 0)
        tr_onnx_refuse(r, s, "an operand is missing");
    else
        tr_onnx_pass(r, s, 0);
}

static void read_dropout(tr_onnx_reader *r, const tr_onnx_step *s)
{
    double training = 0;
    if (s->nin > 2 && s->in[2] >= 0 &&
        (!tr_onnx_scalar_of(r, s->in[2], &training) || training != 0))
        tr_onnx_refuse(r, s, "it drops out when the model is evaluated");
    else
        read_same(r, s);
}

/* Between types of values; ids are whole numbers in any type. */
static void read_cast(tr_onnx_reader *r, const tr_onnx_step *s)
{
    switch (tr_onnx_get_int(s, "to", 0)) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT:
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16:
    case ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16:
    case ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE:
        read_same(r, s);
        return;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT32:
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT64:
        if (s->nin > 0 && s->in[0] >= 0 && r->values[s->in[0]].input >= 0) {
            read_same(r, s);
            return;
        }
        break;
    default:
        break;
    }
    tr_onnx_refuse(r, s, "a cast to whole numbers");
}

static void make_flat(tr_onnx_reader *r, const tr_onnx_step *s, int x)
{
    int value;
    if (tr_onnx_shape(r, x).ndim == 1)
        tr_onnx_give(r, s, x);
    else if (tr_onnx_make(r, s, "flatten", -1, 1, &x, &value, NULL))
        tr_onnx_give(r, s, value);
}

static void read_flatten(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int64_t axis = tr_onnx_get_int(s, "axis", 1);
    int x;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (axis == 1 || axis == -tr_onnx_shape(r, x).ndim)
        make_flat(r, s, x);
    else
        tr_onnx_refuse(r, s, "axis %lld: only a sample as one row is a layer", (long long)axis);
}

/* -1 is what is left, 0 what was there; the first is the batch, which stays. */
static bool sample_dims(const tr_shape *of, const int64_t *to, int n, char *text, size_t size)
{
    int64_t count = 1, all = 1;
    int open = -1, used = 0;
    for (int d = 0; d < of->ndim; d++) count *= of->dims[d];
    if (n < 2 || n > TR_MAX_DIMS || (to[0] != 0 && to[0] != -1 && to[0] != TR_ONNX_BATCH))
        return false;
    for (int d = 1; d < n; d++) {
        const int64_t dim = to[d] == 0 && d <= of->ndim ? of->dims[d - 1] : to[d];
        if (dim == -1 && open < 0)
            open = d;
        else if (dim < 1 || dim > count)
            return false;
        else
            all *= dim;
        used +=
            snprintf(text + used, size - (size_t)used, "%s%lld", d > 1 ? ", " : "", (long long)dim);
        if (all > count) return false;
    }
    return open >= 0 ? to[0] != -1 && count % all == 0 : count == all;
}

/* To the same shape, to one row, or another one. */
static void read_reshape(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t to[TR_ONNX_RANK], count = 1;
    const int n = tr_onnx_numbers(r, s, 1, "shape", TR_ONNX_RANK, to);
    char dims[TR_MAX_DIMS * 24];
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (n > 0 && n <= TR_ONNX_RANK && r->batch > 0 && to[0] == r->batch) to[0] = TR_ONNX_BATCH;
    const tr_shape of = tr_onnx_shape(r, x);
    bool same = n == of.ndim + 1;
    for (int d = 0; d < of.ndim; d++) count *= of.dims[d];
    for (int d = 1; d < n && d <= of.ndim && n <= TR_ONNX_RANK; d++)
        same = same && (to[d] == -1 || to[d] == 0 || to[d] == of.dims[d - 1]);
    if (same)
        tr_onnx_give(r, s, x);
    else if (n == 2 && (to[1] == -1 || to[1] == count))
        make_flat(r, s, x);
    else if (!sample_dims(&of, to, n, dims, sizeof dims))
        tr_onnx_refuse(r, s, "samples of another batch, or of too many dimensions");
    else if (tr_onnx_make(r, s, "reshape", -1, 1, &x, &value, "{dims: [%s]}", dims))
        tr_onnx_give(r, s, value);
}

/* Whether a sequence has one row, or one value a row, and the axis is that. */
static bool is_single(const tr_shape *of, int64_t axis)
{
    const int at = axis == 1 || axis == -2 ? 0 : axis == 2 || axis == -1 ? 1 : -1;
    return of->ndim == 2 && at >= 0 && of->dims[at] == 1;
}

/* (channels, 1, 1), (1, features) or (features, 1) to features. */
static void read_squeeze(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t axes[2];
    const int n = tr_onnx_numbers(r, s, 1, "axes", 2, axes);
    int x;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const bool both = n < 0 || (n == 2 && tr_onnx_are_sides(axes));
    if ((both && of.ndim == 3 && of.dims[1] == 1 && of.dims[2] == 1) ||
        (n == 1 && is_single(&of, axes[0])))
        make_flat(r, s, x);
    else
        tr_onnx_refuse(r, s, "only (channels, 1, 1), (1, features) or (features, 1) to features");
}

static void read_transpose(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t perm[TR_ONNX_RANK];
    const int n = tr_onnx_get_ints(s, "perm", TR_ONNX_RANK, perm);
    char dims[TR_MAX_DIMS * 24];
    int at = 0, used = 0, x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    while (at < n && n <= TR_ONNX_RANK && perm[at] == at) at++;
    if (at == n) {
        tr_onnx_pass(r, s, 0);
        return;
    }
    if (n != tr_onnx_shape(r, x).ndim + 1 || perm[0] != 0) {
        tr_onnx_refuse(r, s, "samples change places with other dimensions");
        return;
    }
    for (int i = 1; i < n; i++) {
        if (perm[i] < 1 || perm[i] >= n) {
            tr_onnx_refuse(r, s, "dimension %lld of %d", (long long)perm[i], n);
            return;
        }
        used += snprintf(dims + used, sizeof dims - (size_t)used, "%s%lld", i > 1 ? ", " : "",
                         (long long)perm[i]);
    }
    if (tr_onnx_make(r, s, "permute", -1, 1, &x, &value, "{dims: [%s]}", dims))
        tr_onnx_give(r, s, value);
}

/* A row of constants, as often as there are samples: for a concat, which takes it as what it
 * was. */
static void read_expand(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *row = tr_onnx_const_in(r, s, 0);
    int64_t to[TR_ONNX_RANK];
    const int n = tr_onnx_numbers(r, s, 1, "shape", TR_ONNX_RANK, to);
    if (row && row->f && n == 3 && to[0] == TR_ONNX_BATCH && (to[1] == 1 || to[1] == -1) &&
        row->ndim > 0 && row->count == (size_t)row->dims[row->ndim - 1] &&
        (to[2] == 1 || to[2] == -1 || (size_t)to[2] == row->count))
        tr_onnx_give_const(r, s, row);
    else
        tr_onnx_refuse(r, s, "only a row of constants for each sample");
}

/* That row before those of the second operand. */
static bool is_class_token(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *row = tr_onnx_const_in(r, s, 0);
    return s->nin == 2 && row && row->f && tr_onnx_get_int(s, "axis", 1) == 1;
}

static void read_class_token(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *row = tr_onnx_const_in(r, s, 0);
    int x, value;
    if (!tr_onnx_operand(r, s, 1, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (of.ndim != 2 || (size_t)of.dims[1] != row->count) {
        tr_onnx_refuse(r, s, "its operands do not fit");
        return;
    }
    const char *name = tr_onnx_make(r, s, "class_token", s->in[0], 1, &x, &value, NULL);
    if (!name) return;
    tr_onnx_fill_const(r, name, "weight", row, false);
    tr_onnx_give(r, s, value);
}

/* More pieces than a layer takes go by pieces of pieces. */
static void read_concat(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t axis = tr_onnx_get_int(s, "axis", 1);
    int in[TR_MAX_IN], n = 0, x;
    if (is_class_token(r, s)) {
        read_class_token(r, s);
        return;
    }
    for (int i = 0; i < s->nin; i++) {
        if (!tr_onnx_operand(r, s, i, &x, NULL)) return;
        const tr_shape a = tr_onnx_shape(r, x), b = n ? tr_onnx_shape(r, in[0]) : a;
        if (i == 0 && axis < 0) axis += a.ndim + 1;
        bool fits = a.ndim == b.ndim && a.layout == b.layout && axis >= 1 && axis <= a.ndim;
        for (int d = 0; fits && d < a.ndim; d++) fits = d == axis - 1 || a.dims[d] == b.dims[d];
        if (!fits) {
            tr_onnx_refuse(r, s, "along axis %lld its operands do not fit", (long long)axis);
            return;
        }
        in[n++] = x;
        if (n < TR_MAX_IN && i + 1 < s->nin) continue;
        if (n > 1 &&
            !tr_onnx_make(r, s, "concat", -1, n, in, &in[0], "{axis: %lld}", (long long)axis))
            return;
        n = 1;
    }
    if (n) tr_onnx_give(r, s, in[0]);
}

/* One row of (rows, features), in front of the batch or behind it. */
static void read_select(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_const *index)
{
    bool columns;
    int x = tr_onnx_view_rows_first(r, s->in[0], &columns), value;
    const int axis = x < 0 || columns ? 1 : 0;
    if (axis == 1 && !tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (of.ndim != 2 || tr_onnx_get_int(s, "axis", 0) != axis || index->ndim != 0 || !index->i ||
        index->i[0] < -of.dims[0] || index->i[0] >= of.dims[0])
        tr_onnx_refuse(r, s, "of what the model computes only one row of (rows, features)");
    else if (tr_onnx_make(r, s, "select", -1, 1, &x, &value, "{index: %lld}",
                          (long long)index->i[0]))
        tr_onnx_give(r, s, value);
}

/* Rows of a constant table by an input of whole numbers. */
static void read_gather(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *table = tr_onnx_const_in(r, s, 0);
    const char *of_layer = table ? tr_onnx_filled(r, table, false) : NULL;
    const tr_onnx_const *index = tr_onnx_const_in(r, s, 1);
    char tied[96] = "";
    int x, value;
    if (!table && index) {
        read_select(r, s, index);
        return;
    }
    if (!tr_onnx_operand(r, s, 1, &x, NULL)) return;
    if (!table || !table->f || table->ndim != 2 || table->dims[0] < 1 || table->dims[1] < 1 ||
        tr_onnx_get_int(s, "axis", 0) != 0 || tr_onnx_shape(r, x).ndim != 1 ||
        r->values[s->in[1]].maker >= 0) {
        tr_onnx_refuse(r, s, "only rows of a constant table by an input of ids are a layer");
        return;
    }
    if (of_layer) snprintf(tied, sizeof tied, ", weight_of: \"%s\"", of_layer);
    const char *name =
        tr_onnx_make(r, s, "embedding", s->in[0], 1, &x, &value, "{num: %lld, dim: %lld%s}",
                     (long long)table->dims[0], (long long)table->dims[1], tied);
    if (name && !of_layer) tr_onnx_fill_const(r, name, "weight", table, false);
    if (name) tr_onnx_give(r, s, value);
}

static const tr_onnx_operator operators[] = {{"Identity", read_same},
                                             {"Dropout", read_dropout},
                                             {"Cast", read_cast},
                                             {"Flatten", read_flatten},
                                             {"Reshape", read_reshape},
                                             {"Squeeze", read_squeeze},
                                             {"Concat", read_concat},
                                             {"Transpose", read_transpose},
                                             {"Gather", read_gather},
                                             {"Expand", read_expand},
                                             {NULL, NULL}};

const tr_onnx_family tr_onnx_shapes = {.layers = layers, .operators = operators};
