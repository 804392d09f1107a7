/* select and mean_rows: one row made of a sample's. With lengths all rows that are not taken become
 * 0, and the rest is a sum: which is so much for any length, 0 as well. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

static const int64_t ends_dims[] = {-1, 1, 1};

static bool is_last(const tr_layer *l, int64_t at)
{
    return at == l->inputs[0].dims[0] - 1;
}

static const char *fixed_select(const tr_layer *l)
{
    const int64_t at = ((const tr_rows_attrs *)l->attrs)->at;
    return at <= 0 || is_last(l, at)
               ? NULL
               : "it takes a row that shorter sequences may not have: expected the first or last";
}

/* ReduceSum or ReduceMean over rows; axes of the mean are an operand from opset 18 on. */
static const char *reduced(tr_onnx_writer *w, const char *type, const char *x, bool operand,
                           const char *out)
{
    const int64_t rows = 1;
    const char *y, *axes = operand ? tr_onnx_int64s(w, "rows_axis", 1, &rows) : NULL;
    tr_onnx_node *n =
        tr_onnx_add(w, type, out ? NULL : "sum", axes ? 2 : 1, (const char *[]){x, axes}, out, &y);
    if (!axes) tr_onnx_ints(w, n, "axes", 1, &rows);
    tr_onnx_int(w, n, "keepdims", 0);
    return y;
}

/* The sum of the rows that are taken. */
static const char *sum_taken(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                             const char *out)
{
    const tr_rows_attrs *a = l->attrs;
    const char *kept, *ends = tr_onnx_reshaped(w, "ends", in[1], 3, ends_dims, NULL);
    const char *places =
        tr_onnx_positions(w, "places", l->inputs[0].dims[0], true, tr_onnx_along(w, 0));
    if (!a->mean)
        ends = tr_onnx_chain(w, "Add", "place", ends, tr_onnx_int64s(w, "from_end", 1, &a->at));
    const char *taken = tr_onnx_chain(w, a->mean ? "Less" : "Equal", "taken", places, ends);
    tr_onnx_add(w, "Where", "kept", TR_NAMES(taken, in[0], tr_onnx_scalar(w, "nothing", 0)), NULL,
                &kept);
    return reduced(w, "ReduceSum", kept, true, out);
}

static void write_select(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const int64_t at = ((const tr_rows_attrs *)l->attrs)->at;
    const bool last = tr_onnx_along(w, 0) && is_last(l, at);
    if (l->nin > 1)
        sum_taken(w, l, in, out);
    else
        tr_onnx_int(w,
                    tr_onnx_add(w, "Gather", NULL,
                                TR_NAMES(in[0], tr_onnx_int64(w, "index", last ? -1 : at)), out,
                                NULL),
                    "axis", 1);
}

static void write_mean(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    const int64_t one = 1;
    const char *count;
    if (l->nin < 2) {
        reduced(w, "ReduceMean", in[0], w->opset >= 18, out);
        return;
    }
    const char *sum = sum_taken(w, l, in, NULL),
               *some = tr_onnx_chain(w, "Max", "some", in[1], tr_onnx_int64s(w, "one", 1, &one));
    tr_onnx_int(w, tr_onnx_add(w, "Cast", "count", TR_NAMES(some), NULL, &count), "to",
                ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT);
    tr_onnx_add(w, "Div", NULL, TR_NAMES(sum, count), out, NULL);
}

static const tr_onnx_layer layers[] = {
    {.layer = "select", .write = write_select, .fixed = fixed_select},
    {.layer = "mean_rows", .write = write_mean, .fixed = tr_onnx_any_rows},
    {0}};

/* ---- Reading: what we write ------------------------------------------------------------------ */

typedef struct {
    int x, lengths; /* values */
    int64_t rows, at;
    bool mean;
} taken;

static bool is_number(const tr_onnx_reader *r, int value, int64_t *out)
{
    const tr_onnx_const *c = tr_onnx_const_at(r, value);
    if (!c || !c->i || c->count != 1) return false;
    *out = c->i[0];
    return true;
}

/* How many positions a column has; 0: it is none. */
static int64_t positions(const tr_onnx_reader *r, int value)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "Unsqueeze");
    const tr_onnx_const *c = s ? tr_onnx_const_at(r, s->in[0]) : NULL;
    const int64_t n = c ? (int64_t)c->count : 0;
    return n && tr_onnx_are_positions(r, value, n, true) ? n : 0;
}

/* Less(places, ends), or Equal(places, Add(ends, at)). */
static bool match_where(const tr_onnx_reader *r, int value, taken *t)
{
    int64_t dims[3];
    const tr_onnx_step *s = tr_onnx_made_by(r, value, "Less"), *place = NULL;
    t->mean = s != NULL;
    if (!s) s = tr_onnx_made_by(r, value, "Equal");
    if (!s || s->nin != 2) return false;
    t->rows = positions(r, s->in[0]);
    if (!t->mean) place = tr_onnx_made_by(r, s->in[1], "Add");
    if (!t->mean && (!place || place->nin != 2 || !is_number(r, place->in[1], &t->at) ||
                     t->at >= 0 || t->at < -INT32_MAX))
        return false;
    const tr_onnx_step *ends = tr_onnx_made_by(r, place ? place->in[0] : s->in[1], "Reshape");
    if (!ends || !tr_onnx_dims_of(r, ends, 3, dims) || memcmp(dims, ends_dims, sizeof dims) != 0)
        return false;
    t->lengths = ends->in[0];
    return t->rows > 0;
}

/* ReduceSum(Where(which, x, 0)), over rows. */
static bool match_sum(const tr_onnx_reader *r, const tr_onnx_step *s, taken *t)
{
    int64_t axis;
    double other;
    const tr_onnx_step *kept = tr_onnx_made_by(r, s->in[0], "Where");
    if (!kept || kept->nin != 3 || !tr_onnx_scalar_of(r, kept->in[2], &other) || other != 0 ||
        tr_onnx_numbers(r, s, 1, "axes", 1, &axis) != 1 || axis != 1 ||
        tr_onnx_get_int(s, "keepdims", 1) != 0)
        return false;
    t->x = kept->in[1];
    return match_where(r, kept->in[0], t);
}

/* Div(that, Cast(Max(lengths, 1))). */
static bool match_mean(const tr_onnx_reader *r, const tr_onnx_step *s, taken *t)
{
    int64_t one;
    const tr_onnx_step *sum = s->nin == 2 ? tr_onnx_made_by(r, s->in[0], "ReduceSum") : NULL;
    const tr_onnx_step *count = sum ? tr_onnx_made_by(r, s->in[1], "Cast") : NULL;
    const tr_onnx_step *some = count ? tr_onnx_made_by(r, count->in[0], "Max") : NULL;
    return some && some->nin == 2 && match_sum(r, sum, t) && t->mean && some->in[0] == t->lengths &&
           is_number(r, some->in[1], &one) && one == 1;
}

static bool match_any(const tr_onnx_reader *r, const tr_onnx_step *s, taken *t)
{
    return strcmp(s->type, "Div") == 0 ? match_mean(r, s, t) : match_sum(r, s, t) && !t->mean;
}

static bool match(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    taken t;
    if (s->nin < 1 || !match_any(r, s, &t)) return false;
    operands[0] = t.x;
    operands[1] = t.lengths;
    *n = 2;
    return true;
}

static void read_taken(tr_onnx_reader *r, const tr_onnx_step *s)
{
    taken t;
    int in[2], value;
    char index[32] = "";
    if (!match_any(r, s, &t) || !tr_onnx_operand_at(r, s, t.x, &in[0], NULL) ||
        !tr_onnx_operand_at(r, s, t.lengths, &in[1], NULL))
        return;
    const tr_shape of = tr_onnx_shape(r, in[0]);
    if (!t.mean) snprintf(index, sizeof index, "{index: %lld}", (long long)t.at);
    if (of.ndim != 2 || of.dims[0] != t.rows)
        tr_onnx_refuse(
            r, s, "one row made of (rows, features), as many as there are positions, is a layer");
    else if (tr_onnx_make(r, s, t.mean ? "mean_rows" : "select", -1, 2, in, &value,
                          t.mean ? NULL : "%s", index))
        tr_onnx_give(r, s, value);
}

static const tr_onnx_pattern patterns[] = {
    {"ReduceSum", match, read_taken, false}, {"Div", match, read_taken, false}, {0}};

const tr_onnx_family tr_onnx_rows = {.layers = layers, .patterns = patterns};
