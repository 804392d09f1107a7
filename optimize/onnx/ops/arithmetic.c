/* Sums and products of layers. */
#include "optimize/onnx/ops/ops.h"

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

static const tr_onnx_layer layers[] = {
    {.layer = "add", .write = write_add}, {.layer = "mul", .write = write_mul}, {0}};

const tr_onnx_family tr_onnx_arithmetic = {.layers = layers};
