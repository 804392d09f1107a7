/* The definition of every op of the list. */
#ifndef TR_GRAPH_REGISTRY_H
#define TR_GRAPH_REGISTRY_H

#include "runtime/graph/ops/list.h"
#include "runtime/graph/ops/op.h"

#define X(op, kernel) extern const tr_op_def tr_def_##op;
TR_OPS(X)
#undef X

extern const tr_op_def *const tr_losses[]; /* by tr_loss_kind */
/* What compares a model with its teacher (tr_distill): logits, features. Attributes:
 * tr_distill_attrs. */
enum { TR_TAUGHT_LOGITS, TR_TAUGHT_FEATURE };
extern const tr_op_def *const tr_taught_losses[];

#endif
