/* A graph in the making: what build.c, gradient.c and the passes share. Private. */
#ifndef TR_GRAPH_BUILDER_H
#define TR_GRAPH_BUILDER_H

#include "runtime/graph/ops/op.h"

#define TR_HELD_ALIGN 256 /* of the arena */

/* Room that one layer's forward or one op's gradient may use up. */
#define TR_BUILD_ROOM 32

/* One part of a tensor's gradient, in a list. */
typedef struct {
    int grad, next;
} tr_grad_part;

struct tr_builder {
    tr_graph *g;
    const tr_graph_options *o;
    bool sync;
    tr_status st; /* of sizes that do not fit: told once, at the next reservation */
    size_t cap_tensors, cap_ops;
    int *value;                               /* [inputs + layers] tensor of each value */
    int first_param, first_grad, first_state; /* tensors of row 0 */
    int *rounded; /* [rows] tensor of what layers read in a row's place; -1: the row itself */
    /* Backward: */
    size_t nforward; /* tensors of the forward pass */
    bool *wanted;    /* [nforward] its gradient is needed */
    int *parts;      /* [nforward] head of the list of its gradient's parts, -1 */
    int *nparts;     /* [nforward] */
    int *grad;       /* [nforward] the gradient, once summed */
    tr_grad_part *part;
    size_t npart, cap_part;
};

tr_status tr_build_reserve(tr_builder *b, size_t tensors, size_t ops);
tr_status tr_build_all_forward(tr_builder *b);
/* A layer's output as callers see it: a sequence's as it is written. Room for an op must be
 * there. */
int tr_build_result(tr_builder *b, size_t layer);
/* A sequence's dimensions in this graph, in `room` where it decodes: then it has so many rows. */
const int64_t *tr_build_rows(const tr_builder *b, const int64_t *sample, int64_t *room);
/* What a teacher gives: a tensor of the type, dims and layout of `like`. */
int tr_build_given(tr_builder *b, const char *name, int like);
/* distill.c: what the teacher gives and the losses that compare with it, behind the model's own. */
tr_status tr_build_distill(tr_builder *b);
/* gradient.c: appends the loss's gradient and all backward ops. */
tr_status tr_differentiate(tr_builder *b);

/* passes/passes.c: those of b->o->passes; `before`: that run before gradients are made. */
tr_status tr_passes_over_graph(tr_builder *b, bool before);
/* What every graph needs at its end. */
tr_status tr_pass_buckets(tr_builder *b);
tr_status tr_pass_adds(tr_builder *b);
tr_status tr_pass_roles(tr_builder *b);
void tr_pass_empty_share(tr_builder *b);

#endif
