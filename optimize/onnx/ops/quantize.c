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

const tr_onnx_family tr_onnx_quantizers = {.layers = layers};
