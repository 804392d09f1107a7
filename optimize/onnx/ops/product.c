/* linear and conv2d: Gemm, MatMul, Conv. */
#include "optimize/onnx/ops/ops.h"

/* Gemm takes matrices; rows of features go through MatMul, whose second operand is in x out. */
static void write_linear(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const tr_linear_attrs *a = l->attrs;
    const char *weight = tr_onnx_param(w, 0), *bias = a->bias ? tr_onnx_param(w, 1) : NULL;
    const char *turned, *y;
    if (l->inputs[0].ndim == 1) {
        const char *operands[] = {in[0], weight, bias};
        tr_onnx_node *n = tr_onnx_add(w, "Gemm", NULL, bias ? 3 : 2, operands, out, NULL);
        tr_onnx_int(w, n, "transB", 1);
        return;
    }
    tr_onnx_node *n = tr_onnx_add(w, "Transpose", "weight_T", TR_NAMES(weight), NULL, &turned);
    tr_onnx_ints(w, n, "perm", 2, (const int64_t[]){1, 0});
    tr_onnx_add(w, "MatMul", bias ? "product" : NULL, TR_NAMES(in[0], turned), bias ? NULL : out,
                &y);
    if (bias) tr_onnx_add(w, "Add", NULL, TR_NAMES(y, bias), out, NULL);
}

static void write_conv2d(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const tr_conv2d_attrs *a = l->attrs;
    const char *operands[] = {in[0], tr_onnx_param(w, 0), a->bias ? tr_onnx_param(w, 1) : NULL};
    tr_onnx_node *n = tr_onnx_add(w, "Conv", NULL, a->bias ? 3 : 2, operands, out, NULL);
    tr_onnx_ints(w, n, "kernel_shape", 2, a->kernel);
    tr_onnx_ints(w, n, "strides", 2, a->stride);
    tr_onnx_ints(w, n, "pads", 4,
                 (const int64_t[]){a->padding[0], a->padding[1], a->padding[0], a->padding[1]});
    tr_onnx_ints(w, n, "dilations", 2, a->dilation);
    tr_onnx_int(w, n, "group", a->groups);
}

static const tr_onnx_layer layers[] = {
    {.layer = "linear", .write = write_linear}, {.layer = "conv2d", .write = write_conv2d}, {0}};

const tr_onnx_family tr_onnx_products = {.layers = layers};
