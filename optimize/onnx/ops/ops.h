/* How ONNX says each layer, and what layers each ONNX operator is: a family of both a file. Private. */
#ifndef TR_ONNX_OPS_H
#define TR_ONNX_OPS_H

#include "optimize/onnx/writer.h"
#include "runtime/graph/ops.h"

typedef struct {
    const char *layer; /* its type; NULL ends a list */
    /* in: names of the layer's inputs; out: of its output. */
    void (*write)(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out);
    const char *reason; /* why there is no `write` */
} tr_onnx_layer;

typedef struct {
    const tr_onnx_layer *layers;
} tr_onnx_family;

#define TR_ONNX_FAMILIES(X) X(products) X(norms) X(activations) X(pools) X(shapes) X(arithmetic)
#define X(name)             extern const tr_onnx_family tr_onnx_##name;
TR_ONNX_FAMILIES(X)
#undef X

/* NULL: nobody has heard of it. */
const tr_onnx_layer *tr_onnx_layer_of(const char *type);

#endif
