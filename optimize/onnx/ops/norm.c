/* batchnorm by its running statistics; layernorm, which has an operator from opset 17 on. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

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

/* Mean over the last dimension; axes are an operand from opset 18 on. */
static const char *mean_of(tr_onnx_writer *w, const char *what, const char *x)
{
    const int64_t last = -1;
    const char *y, *axes = w->opset >= 18 ? tr_onnx_int64s(w, "axes", 1, &last) : NULL;
    tr_onnx_node *n =
        tr_onnx_add(w, "ReduceMean", what, axes ? 2 : 1, (const char *[]){x, axes}, NULL, &y);
    if (!axes) tr_onnx_ints(w, n, "axes", 1, &last);
    tr_onnx_int(w, n, "keepdims", 1);
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

/* Over the last dimension of x. `out` NULL: "LAYER/normalized". */
static const char *normalized(tr_onnx_writer *w, const tr_layer *l, const char *x, const char *out)
{
    const tr_layernorm_attrs *a = l->attrs;
    const char *weight = tr_onnx_param(w, 0), *bias = tr_onnx_param(w, 1);
    const char *what = out ? NULL : "normalized", *made;
    if (w->opset >= 17) {
        tr_onnx_node *n =
            tr_onnx_add(w, "LayerNormalization", what, TR_NAMES(x, weight, bias), out, &made);
        tr_onnx_int(w, n, "axis", -1);
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
    if (l->output.layout == TR_LAYOUT_CHANNELS_LAST)
        moved(w, NULL, normalized(w, l, moved(w, "channels_last", in[0], to_last, NULL), NULL),
              to_first, out);
    else
        normalized(w, l, in[0], out);
}

static const tr_onnx_layer layers[] = {{.layer = "batchnorm", .write = write_batchnorm},
                                       {.layer = "layernorm", .write = write_layernorm},
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
    if ((of.ndim != 1 && of.ndim != 3) || !are_rows(r, s, 4, of.dims[0]) ||
        tr_onnx_get_int(s, "training_mode", 0) != 0) {
        tr_onnx_refuse(r, s, "only features or an image with constant statistics are a layer");
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

/* `image`: of an image, over its channels. */
static void make_layernorm(tr_onnx_reader *r, const tr_onnx_step *s, int from, int scale, int shift,
                           double eps, bool image)
{
    const tr_onnx_const *weight = tr_onnx_const_at(r, scale), *bias = tr_onnx_const_at(r, shift);
    int x, value;
    char text[32];
    if (!tr_onnx_operand_at(r, s, from, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const int64_t n = tr_shape_channels(&of);
    if ((of.layout == TR_LAYOUT_CHANNELS_LAST) != image || (of.ndim > 2 && !image) || !weight ||
        !weight->f || weight->count != (size_t)n ||
        (shift >= 0 && (!bias || !bias->f || bias->count != (size_t)n))) {
        tr_onnx_refuse(r, s, "only over the last dimension, with constants, is it a layer");
        return;
    }
    const char *name = tr_onnx_make(r, s, "layernorm", scale, 1, &x, &value, "{eps: %s}",
                                    tr_format_real(tr_onnx_short(eps), text));
    if (!name) return;
    tr_onnx_fill_const(r, name, "weight", weight, false);
    if (bias) tr_onnx_fill_const(r, name, "bias", bias, false);
    tr_onnx_give(r, s, value);
}

static void read_layernorm(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int x;
    const int64_t axis = tr_onnx_get_int(s, "axis", -1);
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (s->nin < 2 || (axis != -1 && axis != tr_onnx_shape(r, x).ndim))
        tr_onnx_refuse(r, s, "only over the last dimension is it a layer");
    else
        make_layernorm(r, s, s->in[0], s->in[1], s->nin > 2 ? s->in[2] : -1,
                       tr_onnx_get_real(s, "epsilon", 1e-5f), false);
}

/* ReduceMean over the last dimension, kept: -1: it is none. */
static int mean_from(const tr_onnx_reader *r, int value)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "ReduceMean");
    int64_t axis;
    return s && tr_onnx_numbers(r, s, 1, "axes", 1, &axis) == 1 && axis == -1 &&
                   tr_onnx_get_int(s, "keepdims", 1) == 1
               ? s->in[0]
               : -1;
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

/* Add(Mul(Div(d, Sqrt(Add(mean(d^2), eps))), weight), bias) with d = x - mean(x): operands x, weight,
 * bias, eps. */
static bool match_layernorm(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    for (int i = 0; i < 4 && s->nin == 2; i++) {
        const tr_onnx_step *scaled = tr_onnx_made_by(r, s->in[i & 1], "Mul");
        const tr_onnx_step *normal =
            scaled && scaled->nin == 2 ? tr_onnx_made_by(r, scaled->in[i >> 1], "Div") : NULL;
        const tr_onnx_step *deviation =
            normal && normal->nin == 2 ? tr_onnx_made_by(r, normal->in[1], "Sqrt") : NULL;
        const tr_onnx_step *sum =
            deviation && deviation->nin == 1 ? tr_onnx_made_by(r, deviation->in[0], "Add") : NULL;
        const tr_onnx_step *d = normal ? tr_onnx_shared_by(r, normal->in[0], "Sub") : NULL;
        if (!sum || !d || d->nin != 2 || mean_from(r, d->in[1]) != d->in[0]) continue;
        for (int k = 0; k < 2 && sum->nin == 2; k++) {
            double eps;
            const int variance = mean_from(r, sum->in[k]);
            if (variance < 0 || root_of(r, variance) != normal->in[0] ||
                !tr_onnx_scalar_of(r, sum->in[1 - k], &eps))
                continue;
            operands[0] = d->in[0];
            operands[1] = scaled->in[1 - (i >> 1)];
            operands[2] = s->in[1 - (i & 1)];
            operands[3] = sum->in[1 - k];
            *n = 4;
            return tr_onnx_const_at(r, operands[1]) && tr_onnx_const_at(r, operands[2]);
        }
    }
    return false;
}

static void read_parts(tr_onnx_reader *r, const tr_onnx_step *s)
{
    double eps = 0;
    tr_onnx_scalar_of(r, s->operands[3], &eps);
    make_layernorm(r, s, s->operands[0], s->operands[1], s->operands[2], eps, false);
}

static bool is_moved(const tr_onnx_step *s, const int64_t order[4])
{
    int64_t perm[4];
    return s && s->nin == 1 && tr_onnx_get_ints(s, "perm", 4, perm) == 4 &&
           memcmp(perm, order, sizeof perm) == 0;
}

/* A layernorm between two transpositions: operands x, weight, bias, and of one in parts eps. */
static bool match_image(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    if (!is_moved(s, to_first)) return false;
    const tr_onnx_step *norm = tr_onnx_made_by(r, s->in[0], "LayerNormalization");
    const tr_onnx_step *sum = tr_onnx_made_by(r, s->in[0], "Add");
    if (norm && norm->nin > 2) {
        const int64_t axis = tr_onnx_get_int(norm, "axis", -1);
        if (axis != -1 && axis != 3) return false;
        for (*n = 0; *n < 3; ++*n) operands[*n] = norm->in[*n];
    } else if (!sum || !match_layernorm(r, sum, operands, n)) {
        return false;
    }
    const tr_onnx_step *from = tr_onnx_shared_by(r, operands[0], "Transpose");
    if (!is_moved(from, to_last)) return false;
    operands[0] = from->in[0];
    return operands[1] >= 0 && operands[2] >= 0;
}

static void read_image(tr_onnx_reader *r, const tr_onnx_step *s)
{
    double eps = 0;
    if (s->noperands > 3)
        tr_onnx_scalar_of(r, s->operands[3], &eps);
    else
        eps =
            tr_onnx_get_real(tr_onnx_made_by(r, s->in[0], "LayerNormalization"), "epsilon", 1e-5f);
    make_layernorm(r, s, s->operands[0], s->operands[1], s->operands[2], eps, true);
}

static const tr_onnx_operator operators[] = {
    {"BatchNormalization", read_batchnorm}, {"LayerNormalization", read_layernorm}, {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"Add", match_layernorm, read_parts},
                                           {"Transpose", match_image, read_image},
                                           {NULL, NULL, NULL}};

const tr_onnx_family tr_onnx_norms = {
    .layers = layers, .operators = operators, .patterns = patterns};
