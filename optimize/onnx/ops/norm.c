/* batchnorm by its running statistics; layernorm, which has an operator from opset 17 on; rmsnorm
 * in parts. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/graph/facts.h"

/* Where the operator wants parameters that the layer does without. */
static const char *same_floats(tr_onnx_writer *w, const char *what, int64_t count, float v)
{
    float *all = tr_pool_get(&w->pool, (size_t)count, sizeof *all);
    for (int64_t i = 0; all && i < count; i++) all[i] = v;
    return all ? tr_onnx_floats(w, what, 1, &count, all) : "";
}

static void write_batchnorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_batchnorm_attrs *a = l->attrs;
    const int64_t channels = tr_shape_channels(&l->output);
    const bool affine = l->nparams > 0;
    tr_onnx_node *n = tr_onnx_add(
        w, "BatchNormalization", NULL,
        TR_NAMES(in[0], affine ? tr_onnx_param(w, 0) : same_floats(w, "ones", channels, 1),
                 affine ? tr_onnx_param(w, 1) : same_floats(w, "zeros", channels, 0),
                 tr_onnx_state(w, 0), tr_onnx_state(w, 1)),
        out, NULL);
    tr_onnx_real(w, n, "epsilon", a->eps);
    tr_onnx_real(w, n, "momentum", 1 - a->momentum); /* of the old statistics */
}

/* How many of the last dimensions are normalized together. */
static int dims_of(const tr_layer *l)
{
    const tr_layernorm_attrs *a = l->attrs;
    return a->dims ? a->dims : 1;
}

/* Mean over the last dimensions; axes are an operand from opset 18 on. */
static const char *mean_of(tr_onnx_writer *w, const char *what, const char *x)
{
    const size_t n = (size_t)dims_of(w->layer);
    int64_t last[TR_MAX_DIMS];
    for (size_t i = 0; i < n; i++) last[i] = (int64_t)i - (int64_t)n;
    const char *y, *axes = w->opset >= 18 ? tr_onnx_int64s(w, "axes", n, last) : NULL;
    tr_onnx_node *mean =
        tr_onnx_add(w, "ReduceMean", what, axes ? 2 : 1, (const char *[]){x, axes}, NULL, &y);
    if (!axes) tr_onnx_ints(w, mean, "axes", n, last);
    tr_onnx_int(w, mean, "keepdims", 1);
    return y;
}

/* Channels last and first again. */
static const int64_t to_last[] = {0, 2, 3, 1}, to_first[] = {0, 3, 1, 2};

static const char *moved(tr_onnx_writer *w, const char *what, const char *x, const int64_t order[4],
                         const char *out)
{
    const char *y;
    tr_onnx_ints(w, tr_onnx_add(w, "Transpose", what, TR_NAMES(x), out, &y), "perm", 4, order);
    return y;
}

static const char *root_mean_square(tr_onnx_writer *w, const tr_layer *l, const char *x,
                                    const char *out)
{
    const tr_layernorm_attrs *a = l->attrs;
    const char *made, *mean = mean_of(w, "mean_square", tr_onnx_chain(w, "Mul", "squared", x, x));
    const char *sum = tr_onnx_chain(w, "Add", "above", mean, tr_onnx_scalar(w, "eps", a->eps));
    const char *y =
        tr_onnx_chain(w, "Div", "normal", x, tr_onnx_chain(w, "Sqrt", "root", sum, NULL));
    tr_onnx_add(w, "Mul", out ? NULL : "normalized", TR_NAMES(y, tr_onnx_param(w, 0)), out, &made);
    return made;
}

/* Over the last dimensions of x. `out` NULL: "LAYER/normalized". */
static const char *normalized(tr_onnx_writer *w, const tr_layer *l, const char *x, const char *out)
{
    const tr_layernorm_attrs *a = l->attrs;
    if (a->rms) return root_mean_square(w, l, x, out);
    const char *weight = tr_onnx_param(w, 0), *bias = tr_onnx_param(w, 1);
    const char *what = out ? NULL : "normalized", *made;
    if (w->opset >= 17) {
        tr_onnx_node *n =
            tr_onnx_add(w, "LayerNormalization", what, TR_NAMES(x, weight, bias), out, &made);
        tr_onnx_int(w, n, "axis", -dims_of(l));
        tr_onnx_real(w, n, "epsilon", a->eps);
        return made;
    }
    const char *d = tr_onnx_chain(w, "Sub", "centered", x, mean_of(w, "mean", x));
    const char *var = mean_of(w, "variance", tr_onnx_chain(w, "Mul", "squared", d, d));
    const char *sum = tr_onnx_chain(w, "Add", "above", var, tr_onnx_scalar(w, "eps", a->eps));
    const char *y =
        tr_onnx_chain(w, "Div", "normal", d, tr_onnx_chain(w, "Sqrt", "deviation", sum, NULL));
    tr_onnx_add(w, "Add", what, TR_NAMES(tr_onnx_chain(w, "Mul", "scaled", y, weight), bias), out,
                &made);
    return made;
}

static void write_layernorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_layernorm_attrs *a = l->attrs;
    if (l->output.layout == TR_LAYOUT_CHANNELS_LAST && !a->dims)
        moved(w, NULL, normalized(w, l, moved(w, "channels_last", in[0], to_last, NULL), NULL),
              to_first, out);
    else
        normalized(w, l, in[0], out);
}

static const char *fixed_layernorm(const tr_layer *l)
{
    return dims_of(l) > 1 ? "it takes all rows together" : NULL;
}

static const tr_onnx_layer layers[] = {
    {.layer = "batchnorm", .write = write_batchnorm},
    {.layer = "layernorm", .write = write_layernorm, .fixed = fixed_layernorm},
    {.layer = "rmsnorm", .write = write_layernorm, .fixed = fixed_layernorm},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

/* Operands from the second on, each a row of `count` values. */
static bool are_rows(const tr_onnx_reader *r, const tr_onnx_step *s, int n, int64_t count)
{
    for (int i = 1; i <= n; i++) {
        const tr_onnx_const *c = tr_onnx_const_in(r, s, i);
        if (!c || !c->f || c->count != (size_t)count) return false;
    }
    return true;
}

/* Ones and zeros that nobody calls a weight: it has none. */
static bool is_plain(const tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *w = tr_onnx_const_in(r, s, 1), *b = tr_onnx_const_in(r, s, 2);
    const char *dot = w->name ? strrchr(w->name, '.') : NULL;
    for (size_t i = 0; i < w->count; i++)
        if (w->f[i] != 1 || b->f[i] != 0) return false;
    return !dot || strcmp(dot, ".weight") != 0;
}

static void read_batchnorm(tr_onnx_reader *r, const tr_onnx_step *s)
{
    static const char *const rows[] = {"weight", "bias", "running_mean", "running_var"};
    int x, value;
    char eps[32], momentum[32];
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (of.ndim > 3 || !are_rows(r, s, 4, of.dims[0]) ||
        tr_onnx_get_int(s, "training_mode", 0) != 0) {
        tr_onnx_refuse(
            r, s, "only features, a sequence or an image with constant statistics are a layer");
        return;
    }
    const bool plain = is_plain(r, s);
    const char *name = tr_onnx_make(
        r, s, "batchnorm", plain ? -1 : s->in[1], 1, &x, &value,
        plain ? "{eps: %s, momentum: %s, affine: false}" : "{eps: %s, momentum: %s}",
        tr_format_real(tr_onnx_short(tr_onnx_get_real(s, "epsilon", 1e-5f)), eps),
        tr_format_real(1 - tr_onnx_short(tr_onnx_get_real(s, "momentum", 0.9f)), momentum));
    for (int i = plain ? 2 : 0; i < 4 && name; i++)
        tr_onnx_fill_const(r, name, rows[i], tr_onnx_const_in(r, s, 1 + i), false);
    tr_onnx_give(r, s, value);
}

/* What is read of a layernorm or, without a mean taken off, an rmsnorm. */
typedef struct {
    int x, weight, bias; /* values; bias -1: none */
    double eps;
    int dims;   /* the last ones */
    bool image; /* over the channels of an image */
    bool rms;
} norm;

static bool is_row(const tr_onnx_const *c, int64_t count)
{
    return c && c->f && c->count == (size_t)count;
}

/* The option normalized_shape, where it is not what the layer does anyway; the values that are
 * normalized together. */
static int64_t shape_text(const tr_shape *of, const norm *n, char text[160])
{
    int64_t count = 1;
    int at = snprintf(text, 160, ", normalized_shape: [");
    for (int i = of->ndim - n->dims; i < of->ndim; i++) {
        count *= of->dims[i];
        at += snprintf(text + at, 160 - (size_t)at, "%s%lld", i > of->ndim - n->dims ? ", " : "",
                       (long long)of->dims[i]);
    }
    snprintf(text + at, 160 - (size_t)at, "]");
    if (n->dims == 1 && of->ndim < 3) *text = '\0';
    return count;
}

static void make_norm(tr_onnx_reader *r, const tr_onnx_step *s, const norm *n)
{
    const tr_onnx_const *weight = tr_onnx_const_at(r, n->weight);
    const tr_onnx_const *bias = tr_onnx_const_at(r, n->bias);
    int x, value;
    char text[32], shape[160] = "";
    if (!tr_onnx_operand_at(r, s, n->x, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (n->dims < 1 || n->dims > of.ndim || (n->image && of.ndim != 3)) {
        tr_onnx_refuse(r, s, "only over the last dimensions is it a layer");
        return;
    }
    const int64_t count = n->image ? of.dims[0] : shape_text(&of, n, shape);
    if (!is_row(weight, count) || (n->bias >= 0 && !is_row(bias, count))) {
        tr_onnx_refuse(r, s, "only over the last dimensions, with constants, is it a layer");
        return;
    }
    const char *name =
        tr_onnx_make(r, s, n->rms ? "rmsnorm" : "layernorm", n->weight, 1, &x, &value,
                     "{eps: %s%s}", tr_format_real(tr_onnx_short(n->eps), text), shape);
    if (!name) return;
    tr_onnx_fill_const(r, name, "weight", weight, false);
    if (bias) tr_onnx_fill_const(r, name, "bias", bias, false);
    tr_onnx_give(r, s, value);
}

static void read_operator(tr_onnx_reader *r, const tr_onnx_step *s, bool rms)
{
    int x;
    const int64_t axis = tr_onnx_get_int(s, "axis", -1);
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const int64_t dims = axis < 0 ? -axis : tr_onnx_shape(r, x).ndim + 1 - axis;
    if (s->nin < 2 || dims < 1 || dims > TR_MAX_DIMS) {
        tr_onnx_refuse(r, s, "only over the last dimensions is it a layer");
        return;
    }
    make_norm(r, s,
              &(norm){.x = s->in[0],
                      .weight = s->in[1],
                      .bias = s->nin > 2 ? s->in[2] : -1,
                      .eps = tr_onnx_get_real(s, "epsilon", 1e-5f),
                      .dims = (int)dims,
                      .rms = rms});
}

static void read_layernorm(tr_onnx_reader *r, const tr_onnx_step *s)
{
    read_operator(r, s, false);
}

static void read_rmsnorm(tr_onnx_reader *r, const tr_onnx_step *s)
{
    read_operator(r, s, true);
}

/* ReduceMean over the last dimensions, kept, and how many: -1: it is none. */
static int mean_from(const tr_onnx_reader *r, int value, int *dims)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "ReduceMean");
    int64_t axes[TR_MAX_DIMS];
    *dims = s ? tr_onnx_numbers(r, s, 1, "axes", TR_MAX_DIMS, axes) : 0;
    if (*dims < 1 || *dims > TR_MAX_DIMS || tr_onnx_get_int(s, "keepdims", 1) != 1) return -1;
    for (int i = 0; i < *dims; i++)
        if (axes[i] != i - *dims) return -1;
    return s->in[0];
}

/* The value of which this is the square, -1. */
static int root_of(const tr_onnx_reader *r, int value)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "Mul");
    double power;
    if (s && s->nin == 2 && s->in[0] == s->in[1]) return s->in[0];
    s = tr_onnx_shared_by(r, value, "Pow");
    return s && s->nin == 2 && tr_onnx_scalar_of(r, s->in[1], &power) && power == 2 ? s->in[0] : -1;
}

/* Mul(Div(d, Sqrt(Add(mean(d^2), eps))), weight): d, weight and eps of it. */
static bool match_scaled(const tr_onnx_reader *r, const tr_onnx_step *s, norm *out)
{
    for (int i = 0; i < 2 && s->nin == 2; i++) {
        const tr_onnx_step *normal = tr_onnx_made_by(r, s->in[i], "Div");
        const tr_onnx_step *deviation =
            normal && normal->nin == 2 ? tr_onnx_made_by(r, normal->in[1], "Sqrt") : NULL;
        const tr_onnx_step *sum =
            deviation && deviation->nin == 1 ? tr_onnx_made_by(r, deviation->in[0], "Add") : NULL;
        for (int k = 0; k < 2 && sum && sum->nin == 2; k++) {
            const int variance = mean_from(r, sum->in[k], &out->dims);
            if (variance < 0 || root_of(r, variance) != normal->in[0] ||
                !tr_onnx_scalar_of(r, sum->in[1 - k], &out->eps))
                continue;
            out->x = normal->in[0];
            out->weight = s->in[1 - i];
            out->bias = -1;
            out->rms = true;
            return tr_onnx_const_at(r, out->weight) != NULL;
        }
    }
    return false;
}

/* Add of that and a bias, with d = x - mean(x). */
static bool match_sum(const tr_onnx_reader *r, const tr_onnx_step *s, norm *out)
{
    for (int i = 0; i < 2 && s->nin == 2; i++) {
        const tr_onnx_step *scaled = tr_onnx_made_by(r, s->in[i], "Mul");
        if (!scaled || !match_scaled(r, scaled, out)) continue;
        const tr_onnx_step *d = tr_onnx_shared_by(r, out->x, "Sub");
        int dims;
        if (!d || d->nin != 2 || mean_from(r, d->in[1], &dims) != d->in[0] || dims != out->dims)
            continue;
        out->x = d->in[0];
        out->bias = s->in[1 - i];
        out->rms = false;
        return tr_onnx_const_at(r, out->bias) != NULL;
    }
    return false;
}

static bool is_moved(const tr_onnx_step *s, const int64_t order[4])
{
    int64_t perm[4];
    return s && s->nin == 1 && tr_onnx_get_ints(s, "perm", 4, perm) == 4 &&
           memcmp(perm, order, sizeof perm) == 0;
}

/* One between two transpositions. */
static bool match_moved(const tr_onnx_reader *r, const tr_onnx_step *s, norm *out)
{
    if (!is_moved(s, to_first)) return false;
    const tr_onnx_step *one = tr_onnx_made_by(r, s->in[0], "LayerNormalization");
    const tr_onnx_step *sum = tr_onnx_made_by(r, s->in[0], "Add");
    const tr_onnx_step *scaled = tr_onnx_made_by(r, s->in[0], "Mul");
    if (one && one->nin > 2) {
        const int64_t axis = tr_onnx_get_int(one, "axis", -1);
        if (axis != -1 && axis != 3) return false;
        *out = (norm){.x = one->in[0],
                      .weight = one->in[1],
                      .bias = one->in[2],
                      .dims = 1,
                      .eps = tr_onnx_get_real(one, "epsilon", 1e-5f)};
        if (out->bias < 0) return false;
    } else if (!(sum && match_sum(r, sum, out)) && !(scaled && match_scaled(r, scaled, out))) {
        return false;
    }
    const tr_onnx_step *from = tr_onnx_shared_by(r, out->x, "Transpose");
    if (!is_moved(from, to_last) || out->dims != 1) return false;
    out->x = from->in[0];
    out->image = true;
    return out->weight >= 0;
}

/* By the step that it ends with. */
static bool match_any(const tr_onnx_reader *r, const tr_onnx_step *s, norm *out)
{
    *out = (norm){.bias = -1};
    return *s->type == 'A'   ? match_sum(r, s, out)
           : *s->type == 'M' ? match_scaled(r, s, out)
                             : match_moved(r, s, out);
}

static bool match(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    norm found;
    if (!match_any(r, s, &found)) return false;
    operands[0] = found.x;
    operands[1] = found.weight;
    operands[2] = found.bias;
    *n = found.bias >= 0 ? 3 : 2;
    return true;
}

static void read_found(tr_onnx_reader *r, const tr_onnx_step *s)
{
    norm found;
    if (match_any(r, s, &found)) make_norm(r, s, &found);
}

static const tr_onnx_operator operators[] = {{"BatchNormalization", read_batchnorm},
                                             {"LayerNormalization", read_layernorm},
                                             {"RMSNormalization", read_rmsnorm},
                                             {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"Add", match, read_found, false},
                                           {"Mul", match, read_found, false},
                                           {"Transpose", match, read_found, false},
                                           {0}};

const tr_onnx_family tr_onnx_norms = {
    .layers = layers, .operators = operators, .patterns = patterns};
