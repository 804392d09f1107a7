/* Activations: one operator each, but gelu (one from opset 20 on) and silu. */
#include "optimize/onnx/ops/ops.h"

#include <math.h>

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

/* sqrt(2 / pi) * (x + 0.044715 x^3) */
static const char *tanh_argument(tr_onnx_writer *w, const char *x)
{
    const char *cube = tr_onnx_chain(w, "Mul", "cube", tr_onnx_chain(w, "Mul", "square", x, x), x);
    const char *some = tr_onnx_chain(w, "Mul", "part", cube, tr_onnx_scalar(w, "c3", 0.044715));
    return tr_onnx_chain(w, "Mul", "argument", tr_onnx_chain(w, "Add", "sum", x, some),
                         tr_onnx_scalar(w, "c1", sqrt(2 / M_PI)));
}

static void write_gelu(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    const tr_gelu_attrs *a = l->attrs;
    const char *x = in[0], *y;
    if (w->opset >= 20) {
        tr_onnx_node *n = tr_onnx_add(w, "Gelu", NULL, TR_NAMES(x), out, NULL);
        tr_onnx_word(w, n, "approximate", a->tanh ? "tanh" : "none");
        return;
    }
    if (a->tanh)
        y = tr_onnx_chain(w, "Tanh", "tanh", tanh_argument(w, x), NULL);
    else
        y = tr_onnx_chain(
            w, "Erf", "erf",
            tr_onnx_chain(w, "Div", "argument", x, tr_onnx_scalar(w, "root", sqrt(2.0))), NULL);
    const char *twice = tr_onnx_chain(
        w, "Mul", "twice", x, tr_onnx_chain(w, "Add", "above", y, tr_onnx_scalar(w, "one", 1)));
    tr_onnx_add(w, "Mul", NULL, TR_NAMES(twice, tr_onnx_scalar(w, "half", 0.5)), out, NULL);
}

static void write_leaky_relu(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                             const char *out)
{
    const tr_leaky_relu_attrs *a = l->attrs;
    tr_onnx_real(w, tr_onnx_add(w, "LeakyRelu", NULL, TR_NAMES(in[0]), out, NULL), "alpha",
                 a->negative_slope);
}

/* Over the channels of an image, else over the last dimension. */
static void write_softmax(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    tr_onnx_int(w, tr_onnx_add(w, "Softmax", NULL, TR_NAMES(in[0]), out, NULL), "axis",
                l->inputs[0].layout == TR_LAYOUT_CHANNELS_LAST ? 1 : -1);
}

static const tr_onnx_layer layers[] = {{.layer = "relu", .write = write_relu},
                                       {.layer = "gelu", .write = write_gelu},
                                       {.layer = "silu", .write = write_silu},
                                       {.layer = "sigmoid", .write = write_sigmoid},
                                       {.layer = "tanh", .write = write_tanh},
                                       {.layer = "leaky_relu", .write = write_leaky_relu},
                                       {.layer = "relu6", .write = write_relu6},
                                       {.layer = "softmax", .write = write_softmax},
                                       {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

static void make(tr_onnx_reader *r, const tr_onnx_step *s, int operand, const char *type,
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
    make(r, s, first(s), "relu", NULL);
}

static void read_sigmoid(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make(r, s, first(s), "sigmoid", NULL);
}

static void read_tanh(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make(r, s, first(s), "tanh", NULL);
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
        make(r, s, first(s), "relu6", NULL);
    else if (low == 0 && high > 1e38)
        make(r, s, first(s), "relu", NULL);
    else
        tr_onnx_refuse(r, s, "between %g and %g: only 0 and 6 are a layer", low, high);
}

static void read_gelu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make(r, s, first(s), "gelu",
         tr_onnx_is(s, "approximate", "tanh", false) ? "{approximate: tanh}" : NULL);
}

static void read_leaky_relu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    char options[64], number[32];
    snprintf(options, sizeof options, "{negative_slope: %s}",
             tr_format_real(tr_onnx_short(tr_onnx_get_real(s, "alpha", 0.01f)), number));
    make(r, s, first(s), "leaky_relu", options);
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
        make(r, s, s->in[0], "softmax", NULL);
}

/* x * sigmoid(x) */
static bool match_silu(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    for (int i = 0; i < 2 && s->nin == 2; i++) {
        const tr_onnx_step *gate = tr_onnx_made_by(r, s->in[i], "Sigmoid");
        if (!gate || first(gate) != s->in[1 - i]) continue;
        operands[0] = s->in[1 - i];
        *n = 1;
        return true;
    }
    return false;
}

static void read_silu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make(r, s, s->operands[0], "silu", NULL);
}

/* What a tree of Mul multiplies: values that are no constants, and the product of those that are. */
typedef struct {
    int values[4], n;
    double number;
} factors;

static bool add_factors(const tr_onnx_reader *r, int value, int depth, factors *f)
{
    const tr_onnx_step *s = tr_onnx_made_by(r, value, "Mul");
    double v;
    if (tr_onnx_scalar_of(r, value, &v)) {
        f->number *= v;
        return true;
    }
    if (s && s->nin == 2 && depth > 0)
        return add_factors(r, s->in[0], depth - 1, f) && add_factors(r, s->in[1], depth - 1, f);
    if (f->n == (int)TR_COUNT(f->values)) return false;
    f->values[f->n++] = value;
    return true;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-3 * fabs(b);
}

/* x^3, as products or a power. */
static bool is_cube(const tr_onnx_reader *r, const factors *f, int x)
{
    double power;
    const tr_onnx_step *s = f->n == 1 ? tr_onnx_shared_by(r, f->values[0], "Pow") : NULL;
    if (s)
        return s->nin == 2 && s->in[0] == x && tr_onnx_scalar_of(r, s->in[1], &power) && power == 3;
    return f->n == 3 && f->values[0] == x && f->values[1] == x && f->values[2] == x;
}

/* sqrt(2 / pi) * (x + 0.044715 x^3) */
static bool is_tanh_argument(const tr_onnx_reader *r, int value, int x)
{
    factors outer = {.number = 1};
    if (!add_factors(r, value, 1, &outer) || outer.n != 1 || !is_near(outer.number, sqrt(2 / M_PI)))
        return false;
    const tr_onnx_step *sum = tr_onnx_made_by(r, outer.values[0], "Add");
    for (int i = 0; sum && sum->nin == 2 && i < 2; i++) {
        factors cube = {.number = 1};
        if (sum->in[i] == x && add_factors(r, sum->in[1 - i], 3, &cube) &&
            is_near(cube.number, 0.044715) && is_cube(r, &cube, x))
            return true;
    }
    return false;
}

/* x / sqrt(2) */
static bool is_erf_argument(const tr_onnx_reader *r, int value, int x)
{
    const tr_onnx_step *s = tr_onnx_made_by(r, value, "Div");
    factors f = {.number = 1};
    double root;
    if (s)
        return s->nin == 2 && s->in[0] == x && tr_onnx_scalar_of(r, s->in[1], &root) &&
               is_near(root, sqrt(2));
    return add_factors(r, value, 1, &f) && f.n == 1 && f.values[0] == x &&
           is_near(f.number, sqrt(0.5));
}

/* x * (1 + g(x)) * 0.5, g by erf or tanh; the factors in any order. Operands: x. */
static bool match_gelu_by(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n,
                          const char *by, bool (*fits)(const tr_onnx_reader *, int, int))
{
    factors f = {.number = 1};
    if (s->nin != 2 || !add_factors(r, s->in[0], 2, &f) || !add_factors(r, s->in[1], 2, &f) ||
        f.n != 2 || !is_near(f.number, 0.5))
        return false;
    for (int i = 0; i < 2; i++) {
        const tr_onnx_step *above = tr_onnx_made_by(r, f.values[i], "Add");
        const tr_onnx_step *g = above ? tr_onnx_made_by(r, tr_onnx_beside(r, above, 1), by) : NULL;
        if (!g || g->nin != 1 || !fits(r, g->in[0], f.values[1 - i])) continue;
        operands[0] = f.values[1 - i];
        *n = 1;
        return true;
    }
    return false;
}

static bool match_gelu(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    return match_gelu_by(r, s, operands, n, "Erf", is_erf_argument);
}

static bool match_gelu_tanh(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    return match_gelu_by(r, s, operands, n, "Tanh", is_tanh_argument);
}

static void read_parts(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make(r, s, s->operands[0], "gelu", NULL);
}

static void read_parts_tanh(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make(r, s, s->operands[0], "gelu", "{approximate: tanh}");
}

static const tr_onnx_operator operators[] = {
    {"Relu", read_relu},       {"Sigmoid", read_sigmoid},
    {"Tanh", read_tanh},       {"Gelu", read_gelu},
    {"Clip", read_clip},       {"LeakyRelu", read_leaky_relu},
    {"Softmax", read_softmax}, {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"Mul", match_silu, read_silu},
                                           {"Mul", match_gelu, read_parts},
                                           {"Mul", match_gelu_tanh, read_parts_tanh},
                                           {NULL, NULL, NULL}};

const tr_onnx_family tr_onnx_activations = {
    .layers = layers, .operators = operators, .patterns = patterns};
