/* batchnorm by its running statistics; layernorm, which has an operator from opset 17 on. */
#include "optimize/onnx/ops/ops.h"

static void write_batchnorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_batchnorm_attrs *a = l->attrs;
    tr_onnx_node *n = tr_onnx_add(w, "BatchNormalization", NULL,
                                  TR_NAMES(in[0], tr_onnx_param(w, 0), tr_onnx_param(w, 1),
                                           tr_onnx_state(w, 0), tr_onnx_state(w, 1)),
                                  out, NULL);
    tr_onnx_real(w, n, "epsilon", a->eps);
    tr_onnx_real(w, n, "momentum", 1 - a->momentum); /* of the old statistics */
}

/* Mean over the last dimension; axes are an operand from opset 18 on. */
static const char *mean_of(tr_onnx_writer *w, const char *what, const char *x)
{
    const int64_t last = -1;
    const char *y, *axes = w->opset >= 18 ? tr_onnx_int64s(w, "axes", 1, &last) : NULL;
    tr_onnx_node *n =
        tr_onnx_add(w, "ReduceMean", what, axes ? 2 : 1, (const char *[]){x, axes}, NULL, &y);
    if (!axes) tr_onnx_ints(w, n, "axes", 1, &last);
    tr_onnx_int(w, n, "keepdims", 1);
    return y;
}

static void write_layernorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_layernorm_attrs *a = l->attrs;
    const char *weight = tr_onnx_param(w, 0), *bias = tr_onnx_param(w, 1);
    if (w->opset >= 17) {
        tr_onnx_node *n =
            tr_onnx_add(w, "LayerNormalization", NULL, TR_NAMES(in[0], weight, bias), out, NULL);
        tr_onnx_int(w, n, "axis", -1);
        tr_onnx_real(w, n, "epsilon", a->eps);
        return;
    }
    const char *d = tr_onnx_chain(w, "Sub", "centered", in[0], mean_of(w, "mean", in[0]));
    const char *var = mean_of(w, "variance", tr_onnx_chain(w, "Mul", "squared", d, d));
    const char *sum = tr_onnx_chain(w, "Add", "above", var, tr_onnx_scalar(w, "eps", a->eps));
    const char *y =
        tr_onnx_chain(w, "Div", "normal", d, tr_onnx_chain(w, "Sqrt", "deviation", sum, NULL));
    tr_onnx_add(w, "Add", NULL, TR_NAMES(tr_onnx_chain(w, "Mul", "scaled", y, weight), bias), out,
                NULL);
}

static const tr_onnx_layer layers[] = {{.layer = "batchnorm", .write = write_batchnorm},
                                       {.layer = "layernorm", .write = write_layernorm},
                                       {0}};

const tr_onnx_family tr_onnx_norms = {.layers = layers};
