/* What moves or picks elements: flatten, concat, embedding; dropout, which does nothing when a model is
 * evaluated. */
#include "optimize/onnx/ops/ops.h"

/* Shapes are channels first in both, so the order of features is the same. */
static void write_flatten(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    (void)l;
    tr_onnx_int(w, tr_onnx_add(w, "Flatten", NULL, TR_NAMES(in[0]), out, NULL), "axis", 1);
}

static void write_concat(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const tr_concat_attrs *a = l->attrs;
    tr_onnx_int(w, tr_onnx_add(w, "Concat", NULL, l->nin, in, out, NULL), "axis", a->axis);
}

static void write_embedding(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    (void)l;
    tr_onnx_int(w, tr_onnx_add(w, "Gather", NULL, TR_NAMES(tr_onnx_param(w, 0), in[0]), out, NULL),
                "axis", 0);
}

static void write_dropout(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    (void)l;
    tr_onnx_add(w, "Identity", NULL, TR_NAMES(in[0]), out, NULL);
}

static const tr_onnx_layer layers[] = {{.layer = "flatten", .write = write_flatten},
                                       {.layer = "concat", .write = write_concat},
                                       {.layer = "embedding", .write = write_embedding},
                                       {.layer = "dropout", .write = write_dropout},
                                       {0}};

const tr_onnx_family tr_onnx_shapes = {.layers = layers};
