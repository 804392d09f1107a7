/* Sums and products of layers. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

/* In the order of the sum, as additions of two: runtimes are free in Sum. */
static void write_add(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    const char *sum = in[0];
    for (int i = 1; i < l->nin; i++) {
        char what[32];
        snprintf(what, sizeof what, "sum%d", i);
        const bool last = i + 1 == l->nin;
        tr_onnx_add(w, "Add", last ? NULL : what, TR_NAMES(sum, in[i]), last ? out : NULL, &sum);
    }
}

static void write_mul(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    (void)l;
    tr_onnx_add(w, "Mul", NULL, TR_NAMES(in[0], in[1]), out, NULL);
}

/* The table is of a sample's shape: the batch is what it is broadcast over. */
static void write_positions(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const int64_t *dims = l->output.dims;
    const size_t length = (size_t)dims[0], width = (size_t)dims[1];
    const char *table = NULL;
    if (l->nparams > 0) {
        table = tr_onnx_param(w, 0);
    } else {
        float *v = tr_pool_get(&w->pool, length * width, sizeof *v);
        if (!v) return;
        tr_positions_table(length, width, v);
        table = tr_onnx_floats(w, "table", 2, dims, v);
    }
    if (tr_onnx_along(w, 0)) table = tr_onnx_cut(w, "rows", table, tr_onnx_along(w, 0));
    tr_onnx_add(w, "Add", NULL, TR_NAMES(in[0], table), out, NULL);
}

static const tr_onnx_layer layers[] = {
    {.layer = "add", .write = write_add, .fixed = tr_onnx_any_rows},
    {.layer = "mul", .write = write_mul, .fixed = tr_onnx_any_rows},
    {.layer = "positions", .write = write_positions, .fixed = tr_onnx_any_rows},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

enum { CHANNELS_MAX = 1 << 20 };

/* One number a channel of an image, from (), (1), (C, 1, 1) or (1, C, 1, 1); false: it is none. */
static bool by_channel(const tr_onnx_const *c, const tr_shape *x)
{
    if (!c || !c->f || x->layout != TR_LAYOUT_CHANNELS_LAST || x->dims[0] > CHANNELS_MAX)
        return false;
    if (c->count == 1) return c->ndim <= 4;
    return c->count == (size_t)x->dims[0] && (c->ndim == 3 || c->ndim == 4) &&
           c->dims[c->ndim - 3] == x->dims[0];
}

/* x * scale + shift by channel: a convolution of one pixel and one channel a group. */
static void make_affine(tr_onnx_reader *r, const tr_onnx_step *s, int x, const tr_onnx_const *c,
                        bool scales)
{
    const int64_t n = tr_onnx_shape(r, x).dims[0];
    float *weight = tr_pool_get(&r->pool, (size_t)n, sizeof *weight);
    float *bias = tr_pool_get(&r->pool, (size_t)n, sizeof *bias);
    int value;
    if (!weight || !bias) return;
    for (int64_t i = 0; i < n; i++) {
        const float v = c->f[c->count == 1 ? 0 : i];
        const bool inverse = *s->type == 'D' || *s->type == 'S';
        weight[i] = !scales ? 1 : inverse ? 1 / v : v;
        bias[i] = scales ? 0 : inverse ? -v : v;
    }
    const char *name = tr_onnx_make(r, s, "conv2d", -1, 1, &x, &value,
                                    "{out: %lld, kernel: 1, groups: %lld, bias: %s}", (long long)n,
                                    (long long)n, scales ? "false" : "true");
    if (!name) return;
    tr_onnx_fill_values(r, name, "weight", weight, (size_t)n);
    if (!scales) tr_onnx_fill_values(r, name, "bias", bias, (size_t)n);
    tr_onnx_give(r, s, value);
}

/* A table of a sequence's shape, (T, F) or (1, T, F). */
static bool by_place(const tr_onnx_const *c, const tr_shape *x)
{
    return c && c->f && x->ndim == 2 && (c->ndim == 2 || (c->ndim == 3 && c->dims[0] == 1)) &&
           c->dims[c->ndim - 2] == x->dims[0] && c->dims[c->ndim - 1] == x->dims[1];
}

static void make_positions(tr_onnx_reader *r, const tr_onnx_step *s, int x, const tr_onnx_const *c)
{
    const tr_shape of = tr_onnx_shape(r, x);
    float *sines = tr_pool_get(&r->pool, c->count, sizeof *sines);
    int value;
    if (!sines) return;
    tr_positions_table((size_t)of.dims[0], (size_t)of.dims[1], sines);
    const bool made = memcmp(sines, c->f, c->count * sizeof *sines) == 0;
    const char *name =
        tr_onnx_make(r, s, "positions", -1, 1, &x, &value, made ? "{kind: sinusoidal}" : NULL);
    if (!name) return;
    if (!made) tr_onnx_fill_values(r, name, "weight", c->f, c->count);
    tr_onnx_give(r, s, value);
}

/* With a constant: at an input it is normalization, elsewhere a layer if by channel. */
static void read_with_const(tr_onnx_reader *r, const tr_onnx_step *s, int at, bool scales)
{
    const tr_onnx_const *c = tr_onnx_const_in(r, s, at);
    int x;
    if (!tr_onnx_operand(r, s, 1 - at, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (tr_onnx_normalizes(r, s)) return;
    if (by_channel(c, &of) && (at == 1 || *s->type == 'A' || *s->type == 'M'))
        make_affine(r, s, x, c, scales);
    else if (*s->type == 'A' && by_place(c, &of))
        make_positions(r, s, x, c);
    else
        tr_onnx_refuse(r, s,
                       "with a constant it is a layer only by channel of an image, or as a sum by "
                       "place of a sequence");
}

static bool equal(const tr_shape *a, const tr_shape *b)
{
    return a->ndim == b->ndim && a->layout == b->layout &&
           memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims) == 0;
}

/* Sums of more than a layer takes are sums of sums. */
static void read_sum(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int in[TR_MAX_IN], n = 0;
    for (int i = 0; i < s->nin; i++) {
        int x;
        if (!tr_onnx_operand(r, s, i, &x, NULL)) return;
        const tr_shape a = tr_onnx_shape(r, x), b = n ? tr_onnx_shape(r, in[0]) : a;
        if (!equal(&a, &b)) {
            tr_onnx_refuse(r, s, "its operands have different shapes");
            return;
        }
        in[n++] = x;
        if (n < TR_MAX_IN && i + 1 < s->nin) continue;
        if (n > 1 && !tr_onnx_make(r, s, "add", -1, n, in, &in[0], NULL)) return;
        n = 1;
    }
    if (n) tr_onnx_give(r, s, in[0]);
}

static void read_add(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (s->nin == 2 && tr_onnx_const_in(r, s, 0))
        read_with_const(r, s, 0, false);
    else if (s->nin == 2 && tr_onnx_const_in(r, s, 1))
        read_with_const(r, s, 1, false);
    else
        read_sum(r, s);
}

static void read_mul(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int in[2], value;
    if (s->nin != 2) {
        tr_onnx_refuse(r, s, "it has %d operands", s->nin);
        return;
    }
    for (int i = 0; i < 2; i++)
        if (tr_onnx_const_in(r, s, i)) {
            read_with_const(r, s, i, true);
            return;
        }
    for (int i = 0; i < 2; i++)
        if (!tr_onnx_operand(r, s, i, &in[i], NULL)) return;
    tr_shape a = tr_onnx_shape(r, in[0]), b = tr_onnx_shape(r, in[1]);
    if (!equal(&a, &b) && a.ndim == 3 && a.dims[1] == 1 &&
        a.dims[2] == 1) { /* factors come second */
        const tr_shape c = a;
        const int first = in[0];
        in[0] = in[1], in[1] = first;
        a = b, b = c;
    }
    if (!equal(&a, &b) && (a.layout != TR_LAYOUT_CHANNELS_LAST || b.ndim != 3 ||
                           b.dims[0] != a.dims[0] || b.dims[1] != 1 || b.dims[2] != 1)) {
        tr_onnx_refuse(r, s, "its operands are neither of one shape nor a factor a channel");
        return;
    }
    if (tr_onnx_make(r, s, "mul", -1, 2, in, &value, NULL)) tr_onnx_give(r, s, value);
}

/* By or of a constant alone. */
static void read_inverse(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (s->nin == 2 && tr_onnx_const_in(r, s, 1))
        read_with_const(r, s, 1, *s->type == 'D');
    else
        tr_onnx_refuse(r, s, "only with a constant is it a layer");
}

static const tr_onnx_operator operators[] = {{"Add", read_add},     {"Sum", read_sum},
                                             {"Mul", read_mul},     {"Sub", read_inverse},
                                             {"Div", read_inverse}, {NULL, NULL}};

const tr_onnx_family tr_onnx_arithmetic = {.layers = layers, .operators = operators};
