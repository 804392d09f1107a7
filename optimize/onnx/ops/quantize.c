/* Rounding to 8 bits: the pair that runtimes take for quantized tensors (QDQ). */
#include "optimize/onnx/ops/ops.h"

static void write_fake_quantize(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                                const char *out)
{
    const tr_fake_quantize_attrs *a = l->attrs;
    const char *scale = tr_onnx_scalar(w, "scale", a->scale);
    const char *zero = tr_onnx_byte(w, "zero_point", a->is_signed, (int)a->zero_point);
    const char *q = NULL;
    tr_onnx_add(w, "QuantizeLinear", "steps", TR_NAMES(in[0], scale, zero), NULL, &q);
    tr_onnx_add(w, "DequantizeLinear", NULL, TR_NAMES(q, scale, zero), out, NULL);
}

static const tr_onnx_layer layers[] = {{.layer = "fake_quantize", .write = write_fake_quantize},
                                       {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

/* QuantizeLinear and DequantizeLinear by one scale and zero point: operands x, scale, zero point. */
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

static const tr_onnx_pattern patterns[] = {{"DequantizeLinear", match_pair, read_pair},
                                           {NULL, NULL, NULL}};

const tr_onnx_family tr_onnx_quantizers = {.layers = layers, .patterns = patterns};
