/* gelu: by erf or tanh, as an operator from opset 20 on and in parts, which are read in any order
 * of the factors. */
#include "optimize/onnx/ops/ops.h"

#include <math.h>

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

static const tr_onnx_layer layers[] = {
    {.layer = "gelu", .write = write_gelu, .fixed = tr_onnx_any_rows}, {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

static void read_gelu(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, s->nin > 0 ? s->in[0] : -1, "gelu",
                       tr_onnx_is(s, "approximate", "tanh", false) ? "{approximate: tanh}" : NULL);
}

/* What a tree of Mul multiplies: values that are no constants, and the product of those that
 * are. */
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
    tr_onnx_make_plain(r, s, s->operands[0], "gelu", NULL);
}

static void read_parts_tanh(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_make_plain(r, s, s->operands[0], "gelu", "{approximate: tanh}");
}

static const tr_onnx_operator operators[] = {{"Gelu", read_gelu}, {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {
    {"Mul", match_gelu, read_parts, true}, {"Mul", match_gelu_tanh, read_parts_tanh, true}, {0}};

const tr_onnx_family tr_onnx_gelus = {
    .layers = layers, .operators = operators, .patterns = patterns};
