/* Activations: one operator each, but gelu (one from opset 20 on) and silu. */
#include "optimize/onnx/ops/ops.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/graph/facts.h"

static void write_relu(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    (void)l;
    tr_onnx_add(w, "Relu", NULL, TR_NAMES(in[0]), out, NULL);
}

static void write_sigmoid(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    (void)l;
    tr_onnx_add(w, "Sigmoid", NULL, TR_NAMES(in[0]), out, NULL);
}

static void write_tanh(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    (void)l;
    tr_onnx_add(w, "Tanh", NULL, TR_NAMES(in[0]), out, NULL);
}

static void write_relu6(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                        const char *out)
{
    (void)l;
    tr_onnx_add(w, "Clip", NULL,
                TR_NAMES(in[0], tr_onnx_scalar(w, "min", 0), tr_onnx_scalar(w, "max", 6)), out,
                NULL);
}

static void write_silu(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    (void)l;
    tr_onnx_add(w, "Mul", NULL, TR_NAMES(in[0], tr_onnx_chain(w, "Sigmoid", "gate", in[0], NULL)),
                out, NULL);
}

static void write_leaky_relu(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                             const char *out)
{
    const tr_leaky_relu_attrs *a = l->attrs;
    tr_onnx_real(w, tr_onnx_add(w, "LeakyRelu", NULL, TR_NAMES(in[0]), out, NULL), "alpha",
                 a->negative_slope);
}

static void write_elu(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    const tr_elu_attrs *a = l->attrs;
    tr_onnx_real(w, tr_onnx_add(w, "Elu", NULL, TR_NAMES(in[0]), out, NULL), "alpha", a->alpha);
}

static void gate(tr_onnx_writer *w, const char *x, const char *what, const char *out,
                 const char **made)
{
    tr_onnx_node *n = tr_onnx_add(w, "HardSigmoid", what, TR_NAMES(x), out, made);
    tr_onnx_real(w, n, "alpha", 1.0 / 6);
    tr_onnx_real(w, n, "beta", 0.5);
}

static void write_hardsigmoid(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                              const char *out)
{
    (void)l;
    gate(w, in[0], NULL, out, NULL);
}

/* An operator from opset 14 on. */
static void write_hardswish(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const char *by;
    (void)l;
    if (w->opset >= 14) {
        tr_onnx_add(w, "HardSwish", NULL, TR_NAMES(in[0]), out, NULL);
        return;
    }
    gate(w, in[0], "gate", NULL, &by);
    tr_onnx_add(w, "Mul", NULL, TR_NAMES(in[0], by), out, NULL);
}

/* Where beta * x is at least 15, float32 does not tell x from softplus(x): a threshold above is as
 * good as none. */
#define SOFTPLUS_ALIKE 15

static void write_softplus(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                           const char *out)
{
    const tr_softplus_attrs *a = l->attrs;
    const bool whole = a->threshold < SOFTPLUS_ALIKE, sharp = a->beta != 1;
    const char *x = in[0], *v = x, *y;
    const char *beta = sharp ? tr_onnx_scalar(w, "beta", a->beta) : NULL;
    if (sharp) v = tr_onnx_chain(w, "Mul", "argument", x, beta);
    tr_onnx_add(w, "Softplus", sharp || whole ? "bent" : NULL, TR_NAMES(v),
                sharp || whole ? NULL : out, &y);
    if (sharp)
        tr_onnx_add(w, "Div", whole ? "scaled" : NULL, TR_NAMES(y, beta), whole ? NULL : out, &y);
    if (!whole) return;
    const char *beyond =
        tr_onnx_chain(w, "Greater", "beyond", v, tr_onnx_scalar(w, "threshold", a->threshold));
    tr_onnx_add(w, "Where", NULL, TR_NAMES(beyond, x, y), out, NULL);
}

/* Slopes of channels that others stand behind: of an image, of a sequence. */
static void write_prelu(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                        const char *out)
{
    const tr_prelu_attrs *a = l->attrs;
    const int64_t shape[TR_MAX_DIMS] = {tr_shape_channels(&l->output), 1, 1};
    const char *slope = tr_onnx_param(w, 0);
    if (a->per_channel && l->output.layout == TR_LAYOUT_CHANNELS_LAST)
        slope = tr_onnx_chain(w, "Reshape", "slopes", slope,
                              tr_onnx_int64s(w, "shape", (size_t)l->output.ndim, shape));
    tr_onnx_add(w, "PRelu", NULL, TR_NAMES(in[0], slope), out, NULL);
}

/* Over the channels of an image, else over the last dimension. */
static void write_softmax(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    tr_onnx_int(w, tr_onnx_add(w, "Softmax", NULL, TR_NAMES(in[0]), out, NULL), "axis",
                l->inputs[0].layout == TR_LAYOUT_CHANNELS_LAST ? 1 : -1);
}

static const tr_onnx_layer layers[] = {
    {.layer = "relu", .write = write_relu, .fixed = tr_onnx_any_rows},
    {.layer = "silu", .write = write_silu, .fixed = tr_onnx_any_rows},
    {.layer = "sigmoid", .write = write_sigmoid, .fixed = tr_onnx_any_rows},
    {.layer = "tanh", .write = write_tanh, .fixed = tr_onnx_any_rows},
    {.layer = "leaky_relu", .write = write_leaky_relu, .fixed = tr_onnx_any_rows},
    {.layer = "relu6", .write = write_relu6, .fixed = tr_onnx_any_rows},
    {.layer = "elu", .write = write_elu, .fixed = tr_onnx_any_rows},
    {.layer = "hardswish", .write = write_hardswish, .fixed = tr_onnx_any_rows},
    {.layer = "hardsigmoid", .write = write_hardsigmoid, .fixed = tr_onnx_any_rows},
    {.layer = "softplus", .write = write_softplus, .fixed = tr_onnx_any_rows},
    {.layer = "prelu", .write = write_prelu, .fixed = tr_onnx_any_rows},
    {.layer = "softmax", .write = write_softmax, .fixed = tr_onnx_any_rows},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

void tr_onnx_make_plain(tr_onnx_reader *r, const tr_onnx_step *s, int operand, const char *type,
                        const char *options)
{
    int x, value = -1;
    if (!tr_onnx_operand_at(r, s, operand, &x, NULL)) return;
    const char *name = options ? tr_onnx_make(r, s, type, -1, 1, &x, &value, "%s", options)
                               : tr_onnx_make(r, s, type, -1, 1, &x, &value, NULL);
    if (name) tr_onnx_give(r, s, value);
}

static int first(const tr_onnx_step *s)
{
    return s->nin > 0 ? s->in[0] : -1;
}

static void read_relu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, first(s), "relu", NULL);
}

static void read_sigmoid(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, first(s), "sigmoid", NULL);
}

static void read_tanh(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, first(s), "tanh", NULL);
}

/* From 0 on, up to 6 or to anything; bounds are operands from opset 11 on. */
static void read_clip(tr_onnx_reader *r, const tr_onnx_step *s)
{
    double low = tr_onnx_get_real(s, "min", -INFINITY), high = tr_onnx_get_real(s, "max", INFINITY);
    double *const bounds[] = {&low, &high};
    for (int i = 0; i < 2; i++)
        if (s->nin > 1 + i && s->in[1 + i] >= 0 && !tr_onnx_scalar_of(r, s->in[1 + i], bounds[i]))
            *bounds[i] = NAN;
    if (low == 0 && high == 6)
        tr_onnx_make_plain(r, s, first(s), "relu6", NULL);
    else if (low == 0 && high > 1e38)
        tr_onnx_make_plain(r, s, first(s), "relu", NULL);
    else
        tr_onnx_refuse(r, s, "between %g and %g: only 0 and 6 are a layer", low, high);
}

static void read_leaky_relu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    char options[64], number[32];
    snprintf(options, sizeof options, "{negative_slope: %s}",
             tr_format_real(tr_onnx_short(tr_onnx_get_real(s, "alpha", 0.01f)), number));
    tr_onnx_make_plain(r, s, first(s), "leaky_relu", options);
}

static void read_elu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    char options[64], number[32];
    snprintf(options, sizeof options, "{alpha: %s}",
             tr_format_real(tr_onnx_short(tr_onnx_get_real(s, "alpha", 1)), number));
    tr_onnx_make_plain(r, s, first(s), "elu", options);
}

static void read_hardswish(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, first(s), "hardswish", NULL);
}

/* relu6(x + 3) / 6: ONNX's own numbers are others. */
static bool is_gate(const tr_onnx_step *s)
{
    return fabs(tr_onnx_get_real(s, "alpha", 0.2) - 1.0 / 6) < 1e-4 &&
           fabs(tr_onnx_get_real(s, "beta", 0.5) - 0.5) < 1e-6;
}

static void read_hardsigmoid(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (is_gate(s))
        tr_onnx_make_plain(r, s, first(s), "hardsigmoid", NULL);
    else
        tr_onnx_refuse(r, s, "only with alpha 1/6 and beta 0.5 is it a layer");
}

static void read_softplus(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, first(s), "softplus", NULL);
}

/* The constant has a value for each channel where images have them, or the last dimension of
 * others. */
static bool is_by_channel(const tr_onnx_const *c, const tr_shape *x)
{
    const int behind = x->layout == TR_LAYOUT_CHANNELS_LAST ? x->ndim - 1 : 0;
    return c->ndim > behind && c->count == (size_t)tr_shape_channels(x) &&
           c->dims[c->ndim - 1 - behind] == tr_shape_channels(x);
}

static void read_prelu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *slope = tr_onnx_const_in(r, s, 1);
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const bool one = slope && slope->count == 1;
    if (!slope || !slope->f || (!one && !is_by_channel(slope, &of))) {
        tr_onnx_refuse(r, s, "only with a constant slope, or one a channel, is it a layer");
        return;
    }
    const char *name = tr_onnx_make(r, s, "prelu", s->in[1], 1, &x, &value, "{per_channel: %s}",
                                    one ? "false" : "true");
    if (!name) return;
    tr_onnx_fill_const(r, name, "weight", slope, false);
    tr_onnx_give(r, s, value);
}

static void read_softmax(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int64_t axis = tr_onnx_get_int(s, "axis", r->opset < 13 ? 1 : -1);
    int x;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const int ours = of.layout == TR_LAYOUT_CHANNELS_LAST ? 1 : of.ndim;
    /* before opset 13 it was over all dimensions from the axis on */
    if ((axis < 0 ? axis + of.ndim + 1 : axis) != ours || (r->opset < 13 && ours != of.ndim))
        tr_onnx_refuse(r, s, "only over channels, or the last dimension of what is no image");
    else
        tr_onnx_make_plain(r, s, s->in[0], "softmax", NULL);
}

/* x * gate(x) */
static bool match_gated(const tr_onnx_reader *r, const tr_onnx_step *s, const char *by,
                        int operands[], int *n)
{
    for (int i = 0; i < 2 && s->nin == 2; i++) {
        const tr_onnx_step *by_gate = tr_onnx_made_by(r, s->in[i], by);
        if (!by_gate || first(by_gate) != s->in[1 - i]) continue;
        if (strcmp(by, "HardSigmoid") == 0 && !is_gate(by_gate)) continue;
        operands[0] = s->in[1 - i];
        *n = 1;
        return true;
    }
    return false;
}

static bool match_silu(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    return match_gated(r, s, "Sigmoid", operands, n);
}

static bool match_hardswish(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    return match_gated(r, s, "HardSigmoid", operands, n);
}

static void read_hardswish_parts(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, s->operands[0], "hardswish", NULL);
}

/* softplus(v) with v = x, or softplus(v) / beta with v = beta * x, which others may read too
 * (`shared`). */
typedef struct {
    int x, v, beta; /* values; beta -1: 1 */
} bent;

static bool is_bent(const tr_onnx_reader *r, const tr_onnx_step *s, bool shared, bent *b)
{
    double beta;
    *b = (bent){-1, -1, -1};
    if (s && strcmp(s->type, "Softplus") == 0) {
        b->x = b->v = first(s);
        return b->x >= 0;
    }
    if (!s || s->nin != 2 || !tr_onnx_scalar_of(r, s->in[1], &beta)) return false;
    const tr_onnx_step *inner = tr_onnx_made_by(r, s->in[0], "Softplus");
    if (!inner || inner->nin != 1) return false;
    b->v = inner->in[0];
    b->beta = s->in[1];
    inner = (shared ? tr_onnx_shared_by : tr_onnx_made_by)(r, b->v, "Mul");
    b->x = inner ? tr_onnx_beside(r, inner, beta) : -1;
    return b->x >= 0;
}

static bool match_softplus(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    bent b;
    if (!is_bent(r, s, false, &b)) return false;
    operands[0] = b.x;
    operands[1] = b.beta;
    *n = 2;
    return true;
}

static void read_sharp(tr_onnx_reader *r, const tr_onnx_step *s)
{
    double beta = 1, threshold = 20;
    char options[96], text[2][32];
    tr_onnx_scalar_of(r, s->operands[1], &beta);
    if (s->noperands > 2) tr_onnx_scalar_of(r, s->operands[2], &threshold);
    snprintf(options, sizeof options, "{beta: %s, threshold: %s}",
             tr_format_real(tr_onnx_short(beta), text[0]),
             tr_format_real(tr_onnx_short(threshold), text[1]));
    tr_onnx_make_plain(r, s, s->operands[0], "softplus", options);
}

/* Where(v > threshold, x, softplus): operands x, beta (or, where it is 1, x again), threshold. */
static bool match_threshold(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    double threshold;
    bent b;
    const tr_onnx_step *beyond = s->nin == 3 ? tr_onnx_made_by(r, s->in[0], "Greater") : NULL;
    if (!beyond || beyond->nin != 2 || !tr_onnx_scalar_of(r, beyond->in[1], &threshold))
        return false;
    const tr_onnx_step *inner = tr_onnx_made_by(r, s->in[2], "Div");
    if (!inner) inner = tr_onnx_made_by(r, s->in[2], "Softplus");
    if (!is_bent(r, inner, true, &b) || b.x != s->in[1] || b.v != beyond->in[0]) return false;
    operands[0] = b.x;
    operands[1] = b.beta >= 0 ? b.beta : b.x;
    operands[2] = beyond->in[1];
    *n = 3;
    return true;
}

static void read_silu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, s->operands[0], "silu", NULL);
}

static const tr_onnx_operator operators[] = {
    {"Relu", read_relu},         {"Sigmoid", read_sigmoid},      {"Tanh", read_tanh},
    {"Clip", read_clip},         {"LeakyRelu", read_leaky_relu}, {"Softmax", read_softmax},
    {"Elu", read_elu},           {"HardSwish", read_hardswish},  {"HardSigmoid", read_hardsigmoid},
    {"Softplus", read_softplus}, {"PRelu", read_prelu},          {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"Mul", match_silu, read_silu, true},
                                           {"Mul", match_hardswish, read_hardswish_parts, false},
                                           {"Div", match_softplus, read_sharp, false},
                                           {"Where", match_threshold, read_sharp, false},
                                           {0}};

const tr_onnx_family tr_onnx_activations = {
    .layers = layers, .operators = operators, .patterns = patterns};
