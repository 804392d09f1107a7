/* Pooling: MaxPool, AveragePool, GlobalAveragePool. */
#include "optimize/onnx/ops/ops.h"

static tr_onnx_node *write_window(tr_onnx_writer *w, const char *type, const tr_pool2d_attrs *a,
                                  const char *in, const char *out)
{
    tr_onnx_node *n = tr_onnx_add(w, type, NULL, TR_NAMES(in), out, NULL);
    tr_onnx_ints(w, n, "kernel_shape", 2, a->kernel);
    tr_onnx_ints(w, n, "strides", 2, a->stride);
    tr_onnx_ints(w, n, "pads", 4,
                 (const int64_t[]){a->padding[0], a->padding[1], a->padding[0], a->padding[1]});
    return n;
}

static void write_max(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    write_window(w, "MaxPool", l->attrs, in[0], out);
}

static void write_average(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    const tr_pool2d_attrs *a = l->attrs;
    tr_onnx_int(w, write_window(w, "AveragePool", a, in[0], out), "count_include_pad",
                a->count_include_pad);
}

static void write_global(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    (void)l;
    tr_onnx_add(w, "GlobalAveragePool", NULL, TR_NAMES(in[0]), out, NULL);
}

static const tr_onnx_layer layers[] = {{.layer = "maxpool2d", .write = write_max},
                                       {.layer = "avgpool2d", .write = write_average},
                                       {.layer = "global_avgpool", .write = write_global},
                                       {0}};

const tr_onnx_family tr_onnx_pools = {.layers = layers};
