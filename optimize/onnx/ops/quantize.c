/* Rounding to 8 bits: the pair that runtimes take for quantized tensors (QDQ). */
#include "optimize/onnx/ops/ops.h"

#include "runtime/base/numbers.h"

static void write_fake_quantize(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                                const char *out)
{
    const tr_fake_quantize_attrs *a = l->attrs;
    const float *learned = a->learn_scale ? tr_network_param(w->n, l->name, TR_SCALE_ROW) : NULL;
    const char *scale =
        tr_onnx_scalar(w, "scale", learned ? (double)tr_learned_scale(*learned) : a->scale);
    const char *zero = tr_onnx_byte(w, "zero_point", a->is_signed, (int)a->zero_point);
    const char *q = NULL;
    tr_onnx_add(w, "QuantizeLinear", "steps", TR_NAMES(in[0], scale, zero), NULL, &q);
    tr_onnx_add(w, "DequantizeLinear", NULL, TR_NAMES(q, scale, zero), out, NULL);
}

/* By plain operators: DynamicQuantizeLinear has one range for a whole tensor, all samples of a
 * batch, and QuantizeLinear wants scales that are known. The arithmetic is the layer's, step by
 * step. */
static void write_dynamic_quantize(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                                   const char *out)
{
    static const int64_t of_image[] = {1, 2, 3}, of_row[] = {-1};
    const tr_dynamic_attrs *a = l->attrs;
    const bool image = l->inputs[0].ndim == 3;
    const size_t naxes = image ? TR_COUNT(of_image) : TR_COUNT(of_row);
    const int64_t *axes = image ? of_image : of_row;
    const char *x = in[0], *v = x;
    const char *steps = tr_onnx_scalar(w, "steps", (double)(a->is_signed ? 127 : 255)),
               *least = tr_onnx_scalar(w, "least", a->is_signed ? -127 : 0);
    if (a->is_signed) tr_onnx_add(w, "Abs", "magnitude", TR_NAMES(v), NULL, &v);
    if (w->opset < 18) {
        tr_onnx_node *most = tr_onnx_add(w, "ReduceMax", "most", TR_NAMES(v), NULL, &v);
        tr_onnx_ints(w, most, "axes", naxes, axes);
    } else {
        v = tr_onnx_chain(w, "ReduceMax", "most", v, tr_onnx_int64s(w, "axes", naxes, axes));
    }
    v = tr_onnx_chain(w, "Max", "positive", v, tr_onnx_scalar(w, "tiny", (double)1e-30f));
    const char *scale = tr_onnx_chain(w, "Div", "scale", v, steps);
    const char *inverse = tr_onnx_chain(w, "Div", "inverse", tr_onnx_scalar(w, "one", 1), scale);
    v = tr_onnx_chain(w, "Mul", "scaled", x, inverse);
    tr_onnx_add(w, "Clip", "clipped", TR_NAMES(v, least, steps), NULL, &v);
    tr_onnx_add(w, "Round", "rounded", TR_NAMES(v), NULL, &v);
    tr_onnx_add(w, "Mul", NULL, TR_NAMES(v, scale), out, NULL);
}

static const tr_onnx_layer layers[] = {
    {.layer = "fake_quantize", .write = write_fake_quantize, .fixed = tr_onnx_any_rows},
    {.layer = "dynamic_quantize", .write = write_dynamic_quantize, .fixed = tr_onnx_any_rows},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

/* QuantizeLinear and DequantizeLinear by one scale and zero point: operands x, scale, zero
 * point. */
static bool match_pair(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    const tr_onnx_step *q = s->nin > 1 ? tr_onnx_shared_by(r, s->in[0], "QuantizeLinear") : NULL;
    double a, b, za = 0, zb = 0;
    const int zero = s->nin > 2 ? s->in[2] : -1;
    if (!q || q->nin < 2 || !tr_onnx_scalar_of(r, s->in[1], &a) ||
        !tr_onnx_scalar_of(r, q->in[1], &b) || a != b)
        return false;
    if (zero >= 0 && !tr_onnx_scalar_of(r, zero, &za)) return false;
    if (q->nin > 2 && q->in[2] >= 0 && !tr_onnx_scalar_of(r, q->in[2], &zb)) return false;
    if (za != zb) return false;
    operands[0] = q->in[0];
    operands[1] = s->in[1];
    operands[2] = q->nin > 2 && q->in[2] >= 0 ? q->in[2] : -1;
    *n = 3;
    return true;
}

static void read_pair(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *zero = tr_onnx_const_at(r, s->operands[2]);
    double scale = 0, point = 0;
    char number[32];
    int x, value;
    if (!tr_onnx_operand_at(r, s, s->operands[0], &x, NULL)) return;
    tr_onnx_scalar_of(r, s->operands[1], &scale);
    tr_onnx_scalar_of(r, s->operands[2], &point);
    const bool is_signed = zero && zero->type == ONNX__TENSOR_PROTO__DATA_TYPE__INT8;
    if ((zero && !is_signed && zero->type != ONNX__TENSOR_PROTO__DATA_TYPE__UINT8) ||
        !(scale > 1e-30 && scale < 1e30) || point < (is_signed ? INT8_MIN : 0) ||
        point > (is_signed ? INT8_MAX : UINT8_MAX)) {
        tr_onnx_refuse(r, s, "only steps of 8 bits with one positive scale are a layer");
        return;
    }
    if (tr_onnx_make(r, s, "fake_quantize", -1, 1, &x, &value,
                     "{scale: %s, zero_point: %d, signed: %s}", tr_format_real(scale, number),
                     (int)point, is_signed ? "true" : "false"))
        tr_onnx_give(r, s, value);
}

/* Of a row of operators, each with one of its operands made by the one before. */
typedef struct {
    const tr_onnx_step *most, *clip;
    int x, scale;
} dynamic;

/* x / scale, as a product by the inverse of scale. */
static bool is_scaled(const tr_onnx_reader *r, int value, dynamic *d)
{
    double one;
    const tr_onnx_step *mul = tr_onnx_made_by(r, value, "Mul");
    const tr_onnx_step *div = mul && mul->nin == 2 ? tr_onnx_made_by(r, mul->in[1], "Div") : NULL;
    if (!div || div->nin != 2 || div->in[1] != d->scale ||
        !tr_onnx_scalar_of(r, div->in[0], &one) || one != 1)
        return false;
    d->x = mul->in[0];
    return true;
}

/* The largest of a row of `x`, or magnitude where `is_signed`, but for 0, by the number of
 * steps. */
static bool is_scale(const tr_onnx_reader *r, dynamic *d, double steps, bool is_signed)
{
    double by;
    const tr_onnx_step *div = tr_onnx_shared_by(r, d->scale, "Div");
    const tr_onnx_step *tiny = div && div->nin == 2 ? tr_onnx_made_by(r, div->in[0], "Max") : NULL;
    if (!tiny || !tr_onnx_scalar_of(r, div->in[1], &by) || by != steps || tiny->nin != 2)
        return false;
    d->most = tr_onnx_made_by(r, tr_onnx_beside(r, tiny, 1e-30), "ReduceMax");
    if (!d->most || d->most->nin < 1) return false;
    int of = d->most->in[0];
    if (is_signed) {
        const tr_onnx_step *abs = tr_onnx_made_by(r, of, "Abs");
        if (!abs || abs->nin != 1) return false;
        of = abs->in[0];
    }
    return of == d->x && tr_onnx_get_int(d->most, "keepdims", 1) == 1;
}

static bool match_dynamic_by(const tr_onnx_reader *r, const tr_onnx_step *s, int scaled, dynamic *d,
                             bool *is_signed)
{
    double least, most;
    const tr_onnx_step *round = tr_onnx_made_by(r, s->in[scaled], "Round");
    d->clip = round && round->nin == 1 ? tr_onnx_made_by(r, round->in[0], "Clip") : NULL;
    d->scale = s->in[1 - scaled];
    if (!d->clip || d->clip->nin != 3 || !tr_onnx_scalar_of(r, d->clip->in[1], &least) ||
        !tr_onnx_scalar_of(r, d->clip->in[2], &most))
        return false;
    *is_signed = least == -127 && most == 127;
    return (*is_signed || (least == 0 && most == 255)) && is_scaled(r, d->clip->in[0], d) &&
           is_scale(r, d, most, *is_signed);
}

static bool match_dynamic(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    dynamic d = {0};
    bool is_signed;
    for (int k = 0; s->nin == 2 && k < 2; k++) {
        if (!match_dynamic_by(r, s, k, &d, &is_signed)) continue;
        operands[0] = d.x;
        *n = 1;
        return true;
    }
    return false;
}

static void read_dynamic(tr_onnx_reader *r, const tr_onnx_step *s)
{
    dynamic d = {0};
    bool is_signed = false;
    int x, value, naxes;
    int64_t axes[4];
    if (!tr_onnx_operand_at(r, s, s->operands[0], &x, NULL)) return;
    for (int k = 0; k < 2 && !match_dynamic_by(r, s, k, &d, &is_signed); k++) continue;
    const int ndim = tr_onnx_shape(r, x).ndim + 1;
    naxes = tr_onnx_numbers(r, d.most, 1, "axes", TR_COUNT(axes), axes);
    const bool image = ndim == 4;
    bool fits = naxes == (image ? 3 : 1);
    for (int i = 0; fits && i < naxes; i++)
        fits = (axes[i] < 0 ? axes[i] + ndim : axes[i]) == (image ? i + 1 : ndim - 1);
    if (!fits) {
        tr_onnx_refuse(r, s, "only ranges of samples of images, or of rows, are a layer");
        return;
    }
    if (tr_onnx_make(r, s, "dynamic_quantize", -1, 1, &x, &value, "{signed: %s}",
                     is_signed ? "true" : "false"))
        tr_onnx_give(r, s, value);
}

static const tr_onnx_pattern patterns[] = {{"DequantizeLinear", match_pair, read_pair, false},
                                           {"Mul", match_dynamic, read_dynamic, false},
                                           {0}};

const tr_onnx_family tr_onnx_quantizers = {.layers = layers, .patterns = patterns};
