/* batchnorm by its running statistics; layernorm, which has an operator from opset 17 on. */
#include "optimize/onnx/ops/ops.h"

static void write_batchnorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_batchnorm_attrs *a = l->attrs;
    tr_onnx_node *n = tr_onnx_add(w, "BatchNormalization", NULL,
                                  TR_NAMES(in[0], tr_onnx_param(w, 0), tr_onnx_param(w, 1),
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

static void write_layernorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_layernorm_attrs *a = l->attrs;
    const char *weight = tr_onnx_param(w, 0), *bias = tr_onnx_param(w, 1);
    if (w->opset >= 17) {
        tr_onnx_node *n =
            tr_onnx_add(w, "LayerNormalization", NULL, TR_NAMES(in[0], weight, bias), out, NULL);
        tr_onnx_int(w, n, "axis", -1);
        tr_onnx_real(w, n, "epsilon", a->eps);
        return;
    }
    const char *d = tr_onnx_chain(w, "Sub", "centered", in[0], mean_of(w, "mean", in[0]));
    const char *var = mean_of(w, "variance", tr_onnx_chain(w, "Mul", "squared", d, d));
    const char *sum = tr_onnx_chain(w, "Add", "above", var, tr_onnx_scalar(w, "eps", a->eps));
    const char *y =
        tr_onnx_chain(w, "Div", "normal", d, tr_onnx_chain(w, "Sqrt", "deviation", sum, NULL));
    tr_onnx_add(w, "Add", NULL, TR_NAMES(tr_onnx_chain(w, "Mul", "scaled", y, weight), bias), out,
                NULL);
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
    const char *name = tr_onnx_make(
        r, s, "batchnorm", s->in[1], 1, &x, &value, "{eps: %s, momentum: %s}",
        tr_format_real(tr_onnx_short(tr_onnx_get_real(s, "epsilon", 1e-5f)), eps),
        tr_format_real(1 - tr_onnx_short(tr_onnx_get_real(s, "momentum", 0.9f)), momentum));
    for (int i = 0; i < 4 && name; i++)
        tr_onnx_fill_const(r, name, rows[i], tr_onnx_const_in(r, s, 1 + i), false);
    tr_onnx_give(r, s, value);
}

static void make_layernorm(tr_onnx_reader *r, const tr_onnx_step *s, int from, int scale, int shift,
                           double eps)
{
    const tr_onnx_const *weight = tr_onnx_const_at(r, scale), *bias = tr_onnx_const_at(r, shift);
    int x, value;
    char text[32];
    if (!tr_onnx_operand_at(r, s, from, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const int64_t n = of.dims[of.ndim - 1];
    if (of.layout == TR_LAYOUT_CHANNELS_LAST || of.ndim > 2 || !weight || !weight->f ||
        weight->count != (size_t)n ||
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
                       tr_onnx_get_real(s, "epsilon", 1e-5f));
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
    make_layernorm(r, s, s->operands[0], s->operands[1], s->operands[2], eps);
}

static const tr_onnx_operator operators[] = {
    {"BatchNormalization", read_batchnorm}, {"LayerNormalization", read_layernorm}, {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"Add", match_layernorm, read_parts},
                                           {NULL, NULL, NULL}};

const tr_onnx_family tr_onnx_norms = {
    .layers = layers, .operators = operators, .patterns = patterns};
