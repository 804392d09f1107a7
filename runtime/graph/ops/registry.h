/* The families of ops. */
#ifndef TR_GRAPH_REGISTRY_H
#define TR_GRAPH_REGISTRY_H

#include "runtime/graph/ops/op.h"

#define TR_OP_FAMILIES(X)                                                                          \
    X(linear)                                                                                      \
    X(conv2d)                                                                                      \
    X(batchnorm)                                                                                   \
    X(layernorm)                                                                                   \
    X(activation)                                                                                  \
    X(softmax)                                                                                     \
    X(pool2d)                                                                                      \
    X(flatten)                                                                                     \
    X(dropout)                                                                                     \
    X(embedding)                                                                                   \
    X(add)                                                                                         \
    X(concat)                                                                                      \
    X(loss)

#define X(family) extern const tr_op_def tr_ops_##family[];
TR_OP_FAMILIES(X)
#undef X

#endif
