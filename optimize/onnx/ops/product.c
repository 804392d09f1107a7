/* linear, conv1d, conv2d and conv_transpose2d: Gemm, MatMul, Conv, ConvTranspose. */
#include "optimize/onnx/ops/ops.h"

/* x W^T + b. Gemm takes matrices; rows of features go through MatMul, whose second operand is in x
 * out. `which`: of names; bias NULL: none. */
static const char *write_matrix(tr_onnx_writer *w, const tr_layer *l, const char *which,
                                const char *x, const char *weight, const char *bias,
                                const char *out)
{
    const char *turned, *y;
    char name[64];
    if (l->inputs[0].ndim == 1) {
        const char *operands[] = {x, weight, bias};
        tr_onnx_node *n =
            tr_onnx_add(w, "Gemm", out ? NULL : which, bias ? 3 : 2, operands, out, &y);
        tr_onnx_int(w, n, "transB", 1);
        return y;
    }
    snprintf(name, sizeof name, "%s_T", which);
    tr_onnx_node *n = tr_onnx_add(w, "Transpose", name, TR_NAMES(weight), NULL, &turned);
    tr_onnx_ints(w, n, "perm", 2, (const int64_t[]){1, 0});
    const char *product = bias ? "product" : out ? NULL : which;
    tr_onnx_add(w, "MatMul", product, TR_NAMES(x, turned), bias ? NULL : out, &y);
    if (bias) tr_onnx_add(w, "Add", NULL, TR_NAMES(y, bias), out, &y);
    return y;
}

static void write_linear(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const tr_linear_attrs *a = l->attrs;
    write_matrix(w, l, "weight", in[0], tr_onnx_param(w, 0), a->bias ? tr_onnx_param(w, 1) : NULL,
                 out);
}

/* The matrix that a sketched layer multiplies with, from its i-th parameter: a graph has no random
 * streams. */
static const char *write_sketch(tr_onnx_writer *w, const tr_layer *l, const char *what,
                                const tr_sketch *s, int i, int64_t out, int64_t in, int ndim)
{
    const tr_param *p = &w->n->model->params[l->params[i]];
    const int64_t dims[4] = {out, in, 1, 1};
    float *all = tr_pool_get(&w->pool, (size_t)(out * in), sizeof *all);
    if (all) tr_sketch_matrix(s, w->n->params + p->offset, out, in, all);
    return all ? tr_onnx_weights(w, what, ndim, dims, all) : "";
}

static void write_sklinear(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                           const char *out)
{
    const tr_linear_attrs *a = l->attrs;
    const int64_t width = 2 * a->sketch.terms * a->sketch.rank;
    const int64_t features = l->inputs[0].dims[l->inputs[0].ndim - 1];
    tr_sketch down = a->sketch;
    down.side = TR_SKETCH_DOWN;
    const char *first = write_sketch(w, l, "down", &down, 0, width, features, 2);
    const char *second = write_sketch(w, l, "up", &a->sketch, 1, a->out, width, 2);
    const char *h = write_matrix(w, l, "sketches", in[0], first, NULL, NULL);
    write_matrix(w, l, "sums", h, second, a->bias ? tr_onnx_param(w, 2) : NULL, out);
}

static void write_conv(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    const tr_conv2d_attrs *a = l->attrs;
    const char *operands[] = {in[0], tr_onnx_param(w, 0), a->bias ? tr_onnx_param(w, 1) : NULL};
    tr_onnx_node *n = tr_onnx_add(w, "Conv", NULL, a->bias ? 3 : 2, operands, out, NULL);
    const bool line = l->inputs[0].ndim == 2;
    tr_onnx_write_window(w, n, line, a->kernel, a->stride, a->padding, a->extra);
    tr_onnx_ints(w, n, "dilations", line ? 1 : 2, a->dilation + line);
    tr_onnx_int(w, n, "group", a->groups);
}

static void write_skconv2d(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                           const char *out)
{
    const tr_skconv2d_attrs *both = l->attrs;
    const tr_linear_attrs *a = &both->a;
    const tr_conv2d_attrs *c = &both->conv;
    const char *h;
    tr_onnx_node *n =
        tr_onnx_add(w, "Conv", "sketches", TR_NAMES(in[0], tr_onnx_param(w, 0)), NULL, &h);
    tr_onnx_write_window(w, n, false, c->kernel, c->stride, c->padding, c->extra);
    tr_onnx_ints(w, n, "dilations", 2, c->dilation);
    const char *signs = write_sketch(w, l, "up", &a->sketch, 0, a->out, c->out, 4);
    const char *operands[] = {h, signs, a->bias ? tr_onnx_param(w, 1) : NULL};
    tr_onnx_add(w, "Conv", NULL, a->bias ? 3 : 2, operands, out, NULL);
}

static void write_conv_transpose2d(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                                   const char *out)
{
    const tr_conv2d_attrs *a = l->attrs;
    const char *operands[] = {in[0], tr_onnx_param(w, 0), a->bias ? tr_onnx_param(w, 1) : NULL};
    int64_t more[2];
    for (int i = 0; i < 2; i++) /* what the formula of sizes leaves */
        more[i] = l->output.dims[1 + i] - (l->inputs[0].dims[1 + i] - 1) * a->stride[i] -
                  a->dilation[i] * (a->kernel[i] - 1) - 1 + 2 * a->padding[i];
    tr_onnx_node *n = tr_onnx_add(w, "ConvTranspose", NULL, a->bias ? 3 : 2, operands, out, NULL);
    tr_onnx_ints(w, n, "kernel_shape", 2, a->kernel);
    tr_onnx_ints(w, n, "strides", 2, a->stride);
    tr_onnx_ints(w, n, "pads", 4,
                 (const int64_t[]){a->padding[0], a->padding[1], a->padding[0], a->padding[1]});
    tr_onnx_ints(w, n, "output_padding", 2, more);
    tr_onnx_ints(w, n, "dilations", 2, a->dilation);
    tr_onnx_int(w, n, "group", a->groups);
}

static const tr_onnx_layer layers[] = {
    {.layer = "linear", .write = write_linear, .fixed = tr_onnx_any_rows},
    {.layer = "sklinear", .write = write_sklinear, .fixed = tr_onnx_any_rows},
    {.layer = "skconv2d", .write = write_skconv2d},
    {.layer = "conv1d", .write = write_conv},
    {.layer = "conv2d", .write = write_conv},
    {.layer = "conv_transpose2d", .write = write_conv_transpose2d},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

/* Times a factor: the constant as it is, where that is 1. */
static const float *times(tr_onnx_reader *r, const tr_onnx_const *c, double factor)
{
    if (factor == 1) return c->f;
    float *v = tr_pool_get(&r->pool, c->count, sizeof *v);
    for (size_t i = 0; v && i < c->count; i++) v[i] = (float)((double)c->f[i] * factor);
    return v;
}

/* One value an output, or one for all. */
static void fill_bias(tr_onnx_reader *r, const char *layer, const tr_onnx_const *c, int64_t out,
                      double factor)
{
    float *v = tr_pool_get(&r->pool, (size_t)out, sizeof *v);
    for (size_t i = 0; v && i < (size_t)out; i++)
        v[i] = (float)((double)c->f[c->count == 1 ? 0 : i] * factor);
    if (layer) tr_onnx_fill_values(r, layer, "bias", v, (size_t)out);
}

typedef struct {
    int x, named; /* values: the input; whose name says the layer's */
    const tr_onnx_const *weight, *bias;
    bool turned; /* weight is (in, out) */
    double weight_factor, bias_factor;
} product;

static void make_linear(tr_onnx_reader *r, const tr_onnx_step *s, product *p)
{
    int x, value = -1;
    char tied[96] = "";
    if (!tr_onnx_operand_at(r, s, p->x, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (p->turned && p->weight->turned_of) { /* as it was written in the first place */
        p->weight = p->weight->turned_of;
        p->turned = false;
    }
    const int64_t in = p->weight->dims[p->turned ? 0 : 1], out = p->weight->dims[p->turned ? 1 : 0];
    if (of.ndim > 2 || of.dims[of.ndim - 1] != in || out < 1) {
        tr_onnx_refuse(r, s, "a matrix of %lld features for %lld", (long long)in,
                       (long long)of.dims[of.ndim - 1]);
        return;
    }
    if (p->bias && (!p->bias->f || (p->bias->count != 1 && p->bias->count != (size_t)out) ||
                    (p->bias->count > 1 && p->bias->dims[p->bias->ndim - 1] != out))) {
        tr_onnx_refuse(r, s, "its bias has %zu values for %lld outputs", p->bias->count,
                       (long long)out);
        return;
    }
    const char *of_layer = p->weight_factor == 1 ? tr_onnx_filled(r, p->weight, p->turned) : NULL;
    if (of_layer) snprintf(tied, sizeof tied, ", weight_of: \"%s\"", of_layer);
    if (!of_layer && p->weight_factor == 1 && !p->turned)
        snprintf(tied, sizeof tied, "%s", tr_onnx_stored(p->weight));
    const char *name =
        tr_onnx_make(r, s, "linear", p->named, 1, &x, &value, "{out: %lld, bias: %s%s}",
                     (long long)out, p->bias ? "true" : "false", tied);
    if (!name) return;
    if (!of_layer && p->weight_factor == 1) {
        tr_onnx_fill_weight(r, name, p->weight, p->turned);
    } else if (!of_layer) {
        tr_onnx_const *scaled = tr_pool_get(&r->pool, 1, sizeof *scaled);
        if (!scaled) return;
        *scaled = *p->weight;
        scaled->f = times(r, p->weight, p->weight_factor);
        tr_onnx_fill_const(r, name, "weight", scaled, p->turned);
    }
    if (p->bias) fill_bias(r, name, p->bias, out, p->bias_factor);
    tr_onnx_give(r, s, value);
}

static void read_gemm(tr_onnx_reader *r, const tr_onnx_step *s)
{
    product p = {.x = s->in[0],
                 .named = s->nin > 1 ? s->in[1] : -1,
                 .weight = tr_onnx_const_in(r, s, 1),
                 .bias = tr_onnx_const_in(r, s, 2),
                 .turned = tr_onnx_get_int(s, "transB", 0) == 0,
                 .weight_factor = tr_onnx_get_real(s, "alpha", 1),
                 .bias_factor = tr_onnx_get_real(s, "beta", 1)};
    int x;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (!p.weight || !p.weight->f || p.weight->ndim != 2 || tr_onnx_get_int(s, "transA", 0) != 0 ||
        (s->nin > 2 && s->in[2] >= 0 && !p.bias) || (tr_onnx_shape(r, x).ndim != 1 && !r->by_row)) {
        tr_onnx_refuse(r, s, "only rows times a constant matrix plus a constant are a layer");
        return;
    }
    make_linear(r, s, &p);
}

static void read_matmul_of(tr_onnx_reader *r, const tr_onnx_step *s, int x, int weight, int bias)
{
    product p = {.x = x,
                 .named = weight,
                 .weight = tr_onnx_const_at(r, weight),
                 .bias = tr_onnx_const_at(r, bias),
                 .turned = true,
                 .weight_factor = 1,
                 .bias_factor = 1};
    if (!p.weight || !p.weight->f || p.weight->ndim != 2)
        tr_onnx_refuse(r, s, "only a product with a constant matrix is a layer");
    else
        make_linear(r, s, &p);
}

static void read_matmul(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (s->nin == 2)
        read_matmul_of(r, s, s->in[0], s->in[1], -1);
    else
        tr_onnx_refuse(r, s, "it has %d operands", s->nin);
}

/* MatMul by a constant matrix, and Add of a constant row. */
static bool match_linear(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    for (int i = 0; i < 2 && s->nin == 2; i++) {
        const tr_onnx_const *bias = tr_onnx_const_in(r, s, i);
        const tr_onnx_step *of = tr_onnx_made_by(r, s->in[1 - i], "MatMul");
        const tr_onnx_const *weight = of ? tr_onnx_const_in(r, of, 1) : NULL;
        if (!bias || !weight || !bias->f || weight->ndim != 2 ||
            (bias->count != 1 && bias->count != (size_t)weight->dims[1]))
            continue;
        operands[0] = of->in[0];
        operands[1] = of->in[1];
        operands[2] = s->in[i];
        *n = 3;
        return true;
    }
    return false;
}

static void read_linear(tr_onnx_reader *r, const tr_onnx_step *s)
{
    read_matmul_of(r, s, s->operands[0], s->operands[1], s->operands[2]);
}

static void read_conv(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *weight = tr_onnx_const_in(r, s, 1), *bias = tr_onnx_const_in(r, s, 2);
    const int64_t groups = tr_onnx_get_int(s, "group", 1);
    tr_onnx_window w = {.ceil = false};
    int64_t padding[4];
    int x, value;
    char tied[96] = "", text[4][TR_ONNX_PADDING];
    if (!tr_onnx_operand(r, s, 0, &x, padding)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const bool line = of.ndim == 2;
    if (!weight || !weight->f || weight->ndim != (line ? 3 : 4) ||
        (s->nin > 2 && s->in[2] >= 0 && !bias) || (!line && of.layout != TR_LAYOUT_CHANNELS_LAST) ||
        groups < 1 || groups > weight->dims[0] || weight->dims[1] != of.dims[0] / groups ||
        of.dims[0] % groups != 0 ||
        (bias && (!bias->f || bias->count != (size_t)weight->dims[0]))) {
        tr_onnx_refuse(r, s,
                       "only an image with constant weights (out, in / group, height, width), or a "
                       "sequence with (out, in / group, kernel), is a layer");
        return;
    }
    w.kernel[0] = line ? 1 : weight->dims[2];
    w.kernel[1] = weight->dims[line ? 2 : 3];
    if (!tr_onnx_window_of(r, s, &x, padding, true, &w)) return;
    const char *of_layer = tr_onnx_filled(r, weight, false);
    if (of_layer)
        snprintf(tied, sizeof tied, ", weight_of: \"%s\"", of_layer);
    else
        snprintf(tied, sizeof tied, "%s", tr_onnx_stored(weight));
    const char *name = tr_onnx_make(
        r, s, line ? "conv1d" : "conv2d", s->in[1], 1, &x, &value,
        "{out: %lld, kernel: %s, stride: %s, padding: %s, dilation: %s, groups: %lld, bias: %s%s}",
        (long long)weight->dims[0], tr_onnx_sizes_text(&w, w.kernel, text[0]),
        tr_onnx_sizes_text(&w, w.stride, text[1]), tr_onnx_padding_text(&w, text[2]),
        tr_onnx_sizes_text(&w, w.dilation, text[3]), (long long)groups, bias ? "true" : "false",
        tied);
    if (!name) return;
    if (!of_layer) tr_onnx_fill_weight(r, name, weight, false);
    if (bias) tr_onnx_fill_const(r, name, "bias", bias, false);
    tr_onnx_give(r, s, value);
}

static void read_conv_transpose(tr_onnx_reader *r, const tr_onnx_step *s)
{
    static const int64_t none[4] = {0};
    const tr_onnx_const *weight = tr_onnx_const_in(r, s, 1), *bias = tr_onnx_const_in(r, s, 2);
    const int64_t groups = tr_onnx_get_int(s, "group", 1);
    tr_onnx_window w = {.ceil = false};
    int64_t more[2] = {0};
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    const int n = tr_onnx_get_ints(s, "output_padding", 2, more);
    if (!weight || !weight->f || weight->ndim != 4 || (s->nin > 2 && s->in[2] >= 0 && !bias) ||
        of.layout != TR_LAYOUT_CHANNELS_LAST || groups < 1 || weight->dims[0] != of.dims[0] ||
        of.dims[0] % groups != 0 || weight->dims[1] > INT32_MAX / groups || (n >= 0 && n != 2) ||
        tr_onnx_get(s, "output_shape") || !tr_onnx_is(s, "auto_pad", "NOTSET", true) ||
        (bias && (!bias->f || bias->count != (size_t)(weight->dims[1] * groups)))) {
        tr_onnx_refuse(r, s,
                       "only an image with constant weights (in, out / group, height, width) "
                       "and pads is a layer");
        return;
    }
    w.kernel[0] = weight->dims[2];
    w.kernel[1] = weight->dims[3];
    if (!tr_onnx_window_of(r, s, &x, none, false, &w)) return;
    if (w.same[0] || w.same[1] || more[0] < 0 || more[0] >= w.stride[0] || more[1] < 0 ||
        more[1] >= w.stride[1]) {
        tr_onnx_refuse(r, s, "pads that differ at the two ends, or output_padding of a stride");
        return;
    }
    const char *name = tr_onnx_make(
        r, s, "conv_transpose2d", s->in[1], 1, &x, &value,
        "{out: %lld, kernel: [%lld, %lld], stride: [%lld, %lld], padding: [%lld, %lld], "
        "output_padding: [%lld, %lld], dilation: [%lld, %lld], groups: %lld, bias: %s}",
        (long long)(weight->dims[1] * groups), (long long)w.kernel[0], (long long)w.kernel[1],
        (long long)w.stride[0], (long long)w.stride[1], (long long)w.padding[0],
        (long long)w.padding[1], (long long)more[0], (long long)more[1], (long long)w.dilation[0],
        (long long)w.dilation[1], (long long)groups, bias ? "true" : "false");
    if (!name) return;
    tr_onnx_fill_const(r, name, "weight", weight, false);
    if (bias) tr_onnx_fill_const(r, name, "bias", bias, false);
    tr_onnx_give(r, s, value);
}

static const tr_onnx_operator operators[] = {{"Gemm", read_gemm},
                                             {"MatMul", read_matmul},
                                             {"Conv", read_conv},
                                             {"ConvTranspose", read_conv_transpose},
                                             {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"Add", match_linear, read_linear, true}, {0}};

const tr_onnx_family tr_onnx_products = {
    .layers = layers, .operators = operators, .patterns = patterns};
