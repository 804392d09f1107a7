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
                                       {.layer = "softmax", .write = write_softmax},
                                       {0}};

const tr_onnx_family tr_onnx_activations = {.layers = layers};
