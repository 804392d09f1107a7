/* LSTM and GRU read: what recurrent_write.c writes, and the operators by themselves, as others
 * export them. */
#include "optimize/onnx/ops/recurrent.h"
#include "optimize/onnx/view.h"

#include <string.h>

typedef struct {
    const tr_onnx_step *step; /* the operator */
    int x, lengths;           /* values, batch first; lengths -1: none */
    bool hold;
    int64_t hidden, features, rows;
    size_t gates;
} found;

static bool is_turned(const tr_onnx_step *s, int n, const int64_t *order)
{
    int64_t perm[4];
    return s && s->nin == 1 && tr_onnx_get_ints(s, "perm", 4, perm) == n &&
           memcmp(perm, order, (size_t)n * sizeof *perm) == 0;
}

static bool is_shaped(const tr_onnx_const *c, int ndim, int64_t directions, int64_t rows,
                      int64_t cols)
{
    return c && c->f && c->ndim == ndim && c->dims[0] == directions && c->dims[1] == rows &&
           (ndim < 3 || c->dims[2] == cols);
}

static bool are_zeros(const Onnx__TensorProto *t)
{
    bool all = t->n_float_data > 0 || t->raw_data.len > 0;
    for (size_t i = 0; i < t->n_float_data; i++) all = all && t->float_data[i] == 0;
    for (size_t i = 0; i < t->raw_data.len; i++) all = all && t->raw_data.data[i] == 0;
    return all;
}

/* Zeros, whatever the batch: made by their shape, or a part of such. */
static bool is_zero(const tr_onnx_reader *r, int value)
{
    const tr_onnx_const *c = tr_onnx_const_at(r, value);
    const tr_onnx_step *part = NULL, *made = tr_onnx_shared_by(r, value, "ConstantOfShape");
    size_t n = 0;
    for (int depth = 0; !c && !made && depth < 4; depth++) {
        part = tr_onnx_shared_by(r, value, "Slice");
        if (!part) part = tr_onnx_shared_by(r, value, "Expand");
        if (!part) return false;
        value = part->in[0];
        c = tr_onnx_const_at(r, value);
        made = tr_onnx_shared_by(r, value, "ConstantOfShape");
    }
    const Onnx__AttributeProto *filled = made ? tr_onnx_get(made, "value") : NULL;
    if (made) return !filled || (filled->t && are_zeros(filled->t));
    while (c && c->f && n < c->count && c->f[n] == 0) n++;
    return c && c->f && n == c->count;
}

/* The value of which (batch, 1) operand 4 is made; -1. */
static int match_lengths(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_step *cast = s->nin > 4 ? tr_onnx_shared_by(r, s->in[4], "Cast") : NULL;
    const tr_onnx_step *flat = cast ? tr_onnx_shared_by(r, cast->in[0], "Reshape") : NULL;
    int64_t dims;
    return flat && tr_onnx_dims_of(r, flat, 1, &dims) && dims == -1 ? flat->in[0] : -1;
}

/* Those that stand for themselves: a sigmoid for gates, tanh for the rest. */
static bool are_usual(const Onnx__AttributeProto *activations, size_t of_direction)
{
    bool all = true;
    for (size_t i = 0; activations && i < activations->n_strings; i++) {
        const ProtobufCBinaryData *a = &activations->strings[i];
        const char *usual = i % of_direction == 0 ? "Sigmoid" : "Tanh";
        all = all && a->len == strlen(usual) && memcmp(a->data, usual, a->len) == 0;
    }
    return all;
}

/* What the operator does that the layer does not; NULL: nothing. */
static const char *obstacle(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    const bool gru = *s->type == 'G';
    if (s->nin < 3) return "an operand is missing";
    if (s->nin > 4 && s->in[4] >= 0 && match_lengths(r, s) < 0)
        return "lengths of samples (sequence_lens) must be an input of (batch, 1) whole numbers, "
               "reshaped to (batch) and cast";
    for (int i = 5; i < s->nin && i < 7; i++)
        if (s->in[i] >= 0 && !is_zero(r, s->in[i]))
            return "it begins with a state that is not zeros";
    if (s->nout > 2 && s->out[2] >= 0 && r->values[s->out[2]].needed)
        return "the last state of its cells is read (output 2), which no layer gives";
    if (s->nin > 7 && s->in[7] >= 0) return "it has peepholes";
    if (!are_usual(tr_onnx_get(s, "activations"), gru ? 2 : 3))
        return "its activations are not sigmoid and tanh";
    if (tr_onnx_get(s, "clip")) return "it clips (clip)";
    if (tr_onnx_get_int(s, "layout", 0) != 0) return "its samples go before its rows (layout: 1)";
    if (tr_onnx_get_int(s, "input_forget", 0) != 0) return "it couples two gates (input_forget: 1)";
    if (gru && tr_onnx_get_int(s, "linear_before_reset", 0) != 1)
        return "its reset gate comes before the product (linear_before_reset: 0)";
    return NULL;
}

static bool is_one_way(const tr_onnx_step *s)
{
    return tr_onnx_is(s, "direction", "forward", true) ||
           tr_onnx_is(s, "direction", "reverse", false);
}

/* Reshape(Transpose(LSTM(Transpose(x), W, R [, B [, lengths]]))). */
static bool match_layer(const tr_onnx_reader *r, const tr_onnx_step *s, found *f)
{
    int64_t dims[3];
    if (s->nin != 2 || tr_onnx_numbers(r, s, 1, "shape", 3, dims) != 3) return false;
    const tr_onnx_step *turned = tr_onnx_made_by(r, s->in[0], "Transpose");
    if (!is_turned(turned, 4, tr_onnx_batch_first)) return false;
    const tr_onnx_step *lstm = tr_onnx_made_by(r, turned->in[0], "LSTM");
    const tr_onnx_step *gru = tr_onnx_made_by(r, turned->in[0], "GRU");
    f->step = lstm ? lstm : gru;
    f->gates = lstm ? TR_LSTM_GATES : TR_GRU_GATES;
    if (!f->step || f->step->nin < 3 || f->step->out[0] != turned->in[0] || obstacle(r, f->step) ||
        !is_one_way(f->step))
        return false;
    const tr_onnx_step *first = tr_onnx_shared_by(r, f->step->in[0], "Transpose");
    const tr_onnx_const *w = tr_onnx_const_in(r, f->step, 1);
    if (!is_turned(first, 3, tr_onnx_rows_first) || !w || w->ndim != 3) return false;
    f->x = first->in[0];
    f->hidden = w->dims[1] / (int64_t)f->gates;
    f->features = w->dims[2];
    f->rows = dims[1] ? dims[1] : r->sequence;
    f->hold = false;
    f->lengths = match_lengths(r, f->step);
    return dims[2] == f->hidden && tr_onnx_get_int(f->step, "hidden_size", f->hidden) == f->hidden;
}

/* Where(Less(places, lengths), the rows, the last state): hold. */
static bool match_held(const tr_onnx_reader *r, const tr_onnx_step *s, found *f)
{
    const int64_t ends_dims[] = {-1, 1, 1};
    int64_t dims[3];
    const tr_onnx_step *rows = s->nin == 3 ? tr_onnx_made_by(r, s->in[1], "Reshape") : NULL;
    if (!rows || !match_layer(r, rows, f) || f->lengths < 0 || f->step->nout < 2) return false;
    const tr_onnx_step *there = tr_onnx_made_by(r, s->in[0], "Less");
    const tr_onnx_step *state = tr_onnx_made_by(r, s->in[2], "Transpose");
    const tr_onnx_step *ends =
        there && there->nin == 2 ? tr_onnx_made_by(r, there->in[1], "Reshape") : NULL;
    f->hold = ends && tr_onnx_are_positions(r, there->in[0], f->rows, true) &&
              tr_onnx_dims_of(r, ends, 3, dims) && memcmp(dims, ends_dims, sizeof dims) == 0 &&
              ends->in[0] == f->lengths && is_turned(state, 3, tr_onnx_rows_first) &&
              state->in[0] == f->step->out[1] && tr_onnx_is(f->step, "direction", "forward", true);
    return f->hold;
}

static bool match_any(const tr_onnx_reader *r, const tr_onnx_step *s, found *f)
{
    return strcmp(s->type, "Where") == 0 ? match_held(r, s, f) : match_layer(r, s, f);
}

static bool match(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    found f;
    if (!match_any(r, s, &f)) return false;
    *n = 0;
    operands[(*n)++] = f.x;
    if (f.lengths >= 0) operands[(*n)++] = f.lengths;
    for (int i = 1; i < f.step->nin && i < 4; i++)
        if (f.step->in[i] >= 0) operands[(*n)++] = f.step->in[i];
    return true;
}

static void fill(tr_onnx_reader *r, const found *f, const char *layer, const char *row,
                 const float *from, int64_t cols)
{
    const size_t each = (size_t)(f->hidden * cols);
    float *v = tr_pool_get(&r->pool, f->gates * each, sizeof *v);
    if (!v) return;
    tr_onnx_reorder(f->gates, from, v, each, true);
    tr_onnx_fill_values(r, layer, row, v, f->gates * each);
}

/* The layer of direction `which` of operator f->step, whose constants have one or several. */
static void make_direction(tr_onnx_reader *r, const tr_onnx_step *s, const found *f, int which,
                           bool reverse, int nin, const int *in, int *value)
{
    const int64_t wide = (int64_t)f->gates * f->hidden;
    const bool bias = f->step->nin > 3 && f->step->in[3] >= 0;
    const tr_onnx_const *w = tr_onnx_const_in(r, f->step, 1), *h = tr_onnx_const_in(r, f->step, 2),
                        *b = bias ? tr_onnx_const_in(r, f->step, 3) : NULL;
    const char *name = tr_onnx_make(
        r, s, f->gates == TR_LSTM_GATES ? "lstm_layer" : "gru_layer", which ? TR_ONNX_BESIDE : -1,
        nin, in, value, "{hidden: %lld, reverse: %s, bias: %s, hold: %s}", (long long)f->hidden,
        reverse ? "true" : "false", bias ? "true" : "false", f->hold ? "true" : "false");
    if (!name) return;
    fill(r, f, name, "weight_ih", w->f + which * wide * f->features, f->features);
    fill(r, f, name, "weight_hh", h->f + which * wide * f->hidden, f->hidden);
    if (bias) fill(r, f, name, "bias_ih", b->f + which * 2 * wide, 1);
    if (bias) fill(r, f, name, "bias_hh", b->f + which * 2 * wide + wide, 1);
}

static void read_layer(tr_onnx_reader *r, const tr_onnx_step *s)
{
    found f;
    int in[2], value;
    if (!match_any(r, s, &f) || !tr_onnx_operand_at(r, s, f.x, &in[0], NULL) ||
        (f.lengths >= 0 && !tr_onnx_operand_at(r, s, f.lengths, &in[1], NULL)))
        return;
    const int64_t wide = (int64_t)f.gates * f.hidden;
    const bool bias = f.step->nin > 3 && f.step->in[3] >= 0;
    const tr_onnx_const *w = tr_onnx_const_in(r, f.step, 1), *h = tr_onnx_const_in(r, f.step, 2),
                        *b = bias ? tr_onnx_const_in(r, f.step, 3) : NULL;
    const tr_shape of = tr_onnx_shape(r, in[0]);
    if (of.ndim != 2 || of.dims[1] != f.features || (f.rows != 0 && f.rows != of.dims[0]) ||
        !is_shaped(w, 3, 1, wide, f.features) || !is_shaped(h, 3, 1, wide, f.hidden) ||
        (bias && !is_shaped(b, 2, 1, 2 * wide, 0))) {
        tr_onnx_refuse(r, s, "one direction over rows of features, with constants, is a layer");
        return;
    }
    make_direction(r, s, &f, 0, tr_onnx_is(f.step, "direction", "reverse", false),
                   f.lengths >= 0 ? 2 : 1, in, &value);
    tr_onnx_give(r, s, value);
}

/* ---- As others export them --------------------------------------------------------------------
 * The operator by itself: a layer a direction. What it gives are their rows and last states in
 * other orders (view.h), of which the steps behind it make (batch, rows, features) again, or hand
 * them to the next operator as they are. */

bool tr_onnx_is_recurrent(const tr_onnx_step *s)
{
    return strcmp(s->type, "LSTM") == 0 || strcmp(s->type, "GRU") == 0;
}

static int sides_of(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *w = tr_onnx_const_in(r, s, 1);
    return w && w->ndim == 3 && (w->dims[0] == 1 || w->dims[0] == 2) ? (int)w->dims[0] : 0;
}

/* The last state of a direction is picked, of the operator's or of those of several (h_n of stacked
 * layers): the operator, and which direction; NULL. */
static const tr_onnx_step *state_of(const tr_onnx_reader *r, const tr_onnx_step *s, int *side)
{
    const tr_onnx_const *index = tr_onnx_const_in(r, s, 1);
    const tr_onnx_step *all = s->nin > 0 ? tr_onnx_shared_by(r, s->in[0], "Concat") : NULL;
    const tr_onnx_step *of[TR_MAX_IN];
    const int n = all ? all->nin : 1, *values = all ? all->in : s->in;
    int64_t at = 0;
    if (!index || !index->i || index->ndim != 0 || n > TR_MAX_IN ||
        tr_onnx_get_int(s, "axis", 0) != 0 || (all && tr_onnx_get_int(all, "axis", 1) != 0))
        return NULL;
    for (int k = 0; k < n; k++) {
        const int maker = values[k] >= 0 ? r->values[values[k]].maker : -1;
        of[k] = maker >= 0 ? &r->steps[maker] : NULL;
        if (!of[k] || !tr_onnx_is_recurrent(of[k]) || of[k]->nout < 2 || of[k]->out[1] != values[k])
            return NULL;
        at += index->i[0] < 0 ? sides_of(r, of[k]) : 0;
    }
    at += index->i[0];
    for (int k = 0; k < n && at >= 0; at -= sides_of(r, of[k++]))
        if (at < sides_of(r, of[k])) {
            *side = (int)at;
            return of[k];
        }
    return NULL;
}

static bool match_state(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    int side;
    const tr_onnx_step *of = state_of(r, s, &side);
    if (of) operands[0] = of->out[1];
    *n = 1;
    return of != NULL;
}

/* Its operator has given it already. */
static void read_state(tr_onnx_reader *r, const tr_onnx_step *s)
{
    (void)r;
    (void)s;
}

/* Whether something reads the value but picks of states. */
static bool is_seen(const tr_onnx_reader *r, int value)
{
    int readers = 0, side;
    for (size_t k = 0; value >= 0 && k < r->nsteps; k++) {
        const tr_onnx_step *s = &r->steps[k];
        bool needed = false, reads = false;
        for (int i = 0; i < s->nout; i++)
            needed = needed || (s->out[i] >= 0 && r->values[s->out[i]].needed);
        for (int i = 0; i < s->nin; i++) reads = reads || s->in[i] == value;
        if (reads && needed && !(strcmp(s->type, "Gather") == 0 && state_of(r, s, &side)))
            return true;
        readers += reads;
    }
    return value >= 0 && r->values[value].uses > readers;
}

/* The model's (rows, features) that operand 0 is, rows in front of the batch; -1: refused. */
static int rows_of(tr_onnx_reader *r, const tr_onnx_step *s, const found *f)
{
    bool columns;
    int x = tr_onnx_view_rows_first(r, s->in[0], &columns);
    if (x < 0)
        tr_onnx_refuse(r, s,
                       "it reads no rows of features: expected (batch, rows, features), or columns "
                       "of as many, with rows in front of the batch by a Transpose");
    else if (columns && !tr_onnx_make(r, s, "permute", TR_ONNX_BESIDE, 1, &x, &x, "{dims: [2, 1]}"))
        return -1;
    if (x >= 0 && tr_onnx_shape(r, x).dims[1] != f->features) {
        tr_onnx_refuse(r, s, "it reads rows of %lld features, and its weights are of %lld",
                       (long long)tr_onnx_shape(r, x).dims[1], (long long)f->features);
        return -1;
    }
    return x;
}

/* What the operator is; false: refused. */
static bool understand(tr_onnx_reader *r, const tr_onnx_step *s, found *f)
{
    const char *why = obstacle(r, s);
    const tr_onnx_const *w = tr_onnx_const_in(r, s, 1);
    const int sides = sides_of(r, s);
    const bool bias = s->nin > 3 && s->in[3] >= 0;
    *f = (found){.step = s, .gates = *s->type == 'G' ? TR_GRU_GATES : TR_LSTM_GATES};
    if (!why && !sides) why = "its weights are no constants";
    if (why) {
        tr_onnx_refuse(r, s, "%s", why);
        return false;
    }
    f->hidden = w->dims[1] / (int64_t)f->gates;
    f->features = w->dims[2];
    f->lengths = match_lengths(r, s);
    const int64_t wide = (int64_t)f->gates * f->hidden;
    const bool both = tr_onnx_is(s, "direction", "bidirectional", false);
    if ((!both && !is_one_way(s)) || sides != 1 + both || f->hidden < 1 ||
        tr_onnx_get_int(s, "hidden_size", f->hidden) != f->hidden ||
        !is_shaped(w, 3, sides, wide, f->features) ||
        !is_shaped(tr_onnx_const_in(r, s, 2), 3, sides, wide, f->hidden) ||
        (bias && !is_shaped(tr_onnx_const_in(r, s, 3), 2, sides, 2 * wide, 0))) {
        tr_onnx_refuse(r, s, "its weights are not constants of one or both directions, as it says");
        return false;
    }
    return true;
}

/* (hidden): the last state of a direction, whose rows are in[0]. */
static int end_of(tr_onnx_reader *r, const tr_onnx_step *s, int named, bool reverse, int lengths,
                  int rows)
{
    const int in[] = {rows, lengths};
    int value = -1;
    tr_onnx_make(r, s, "select", named, lengths >= 0 && !reverse ? 2 : 1, in, &value, "{index: %d}",
                 reverse ? 0 : -1);
    return value;
}

/* One value of both directions', by feature. */
static int joined(tr_onnx_reader *r, const tr_onnx_step *s, int sides, const int *of)
{
    int value = of[0];
    if (sides > 1) tr_onnx_make(r, s, "concat", TR_ONNX_BESIDE, sides, of, &value, "{axis: -1}");
    return value;
}

/* Output k: (rows, directions, batch, hidden), or of states without rows. */
static void give_sides(tr_onnx_reader *r, const found *f, int k, int sides, const int *of)
{
    const tr_onnx_view whole = {.of = joined(r, f->step, sides, of), .scale = 1};
    tr_onnx_view *v = r->pool.st == TR_OK ? tr_onnx_view_new(r, &whole) : NULL;
    if (!v) return;
    const tr_shape shape = tr_onnx_shape(r, whole.of);
    if (shape.ndim == 2) tr_onnx_view_add(v, 1, 1, shape.dims[0]);
    tr_onnx_view_add(v, shape.ndim, f->hidden, sides);
    tr_onnx_view_add(v, 0, 1, 1);
    tr_onnx_view_add(v, shape.ndim, 1, f->hidden);
    tr_onnx_view_give(r, f->step, k, v);
}

static bool match_operator(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    *n = 0;
    for (int i = 0; i < s->nin && i < 4; i++)
        if (s->in[i] >= 0) operands[(*n)++] = s->in[i];
    if (match_lengths(r, s) >= 0) operands[(*n)++] = match_lengths(r, s);
    return true;
}

static void read_operator(tr_onnx_reader *r, const tr_onnx_step *s)
{
    found f;
    int in[2], rows[2], ends[2], lengths = -1, side;
    if (!understand(r, s, &f) || (in[0] = rows_of(r, s, &f)) < 0) return;
    if (f.lengths >= 0 && !tr_onnx_operand_at(r, s, f.lengths, &lengths, NULL)) return;
    in[1] = lengths;
    const int sides = sides_of(r, s);
    const bool back = tr_onnx_is(s, "direction", "reverse", false);
    for (int k = 0; k < sides && r->pool.st == TR_OK; k++)
        make_direction(r, s, &f, k, back || k, lengths >= 0 ? 2 : 1, in, &rows[k]);
    if (r->pool.st != TR_OK) return;
    if (is_seen(r, s->out[0])) give_sides(r, &f, 0, sides, rows);
    for (size_t k = 0; k < r->nsteps; k++) {
        const tr_onnx_step *pick = &r->steps[k];
        if (pick->pattern && pick->pattern->read == read_state && state_of(r, pick, &side) == s)
            tr_onnx_give(r, pick, end_of(r, pick, -1, back || side, lengths, rows[side]));
    }
    if (s->nout > 1 && is_seen(r, s->out[1])) {
        for (int k = 0; k < sides; k++)
            ends[k] = end_of(r, s, TR_ONNX_BESIDE, back || k, lengths, rows[k]);
        give_sides(r, &f, 1, sides, ends);
    } else if (s->nout > 1 && s->out[1] >= 0) {
        r->values[s->out[1]].kind = TR_ONNX_VALUE; /* nobody reads it: picks have theirs */
    }
}

static const tr_onnx_pattern patterns[] = {
    {"Reshape", match, read_layer, false},          {"Where", match, read_layer, false},
    {"LSTM", match_operator, read_operator, false}, {"GRU", match_operator, read_operator, false},
    {"Gather", match_state, read_state, false},     {0}};

const tr_onnx_family tr_onnx_recurrent = {.layers = tr_onnx_recurrent_layers, .patterns = patterns};
