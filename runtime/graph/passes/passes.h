/* Passes over a graph, and what they share: who makes and who reads each tensor. */
#ifndef TR_GRAPH_PASSES_H
#define TR_GRAPH_PASSES_H

#include "runtime/graph/builder.h"

typedef struct {
    int *producer; /* op that writes it first, -1: given */
    int *readers;  /* operands that read it, all ops counted, and the graph's outputs */
    int *first;    /* first op that reads it; -1: none */
} tr_uses;

tr_status tr_uses_open(const tr_graph *g, tr_uses *u);
void tr_uses_close(tr_uses *u);
/* Takes ops without a definition out of the list. */
void tr_ops_compact(tr_graph *g);
/* A forward or backward sum of two that is there (not taken out). */
bool tr_is_sum_of_two(const tr_op *op, tr_phase phase);

/* Each adds to *found how often it did what it is for. */
typedef tr_status tr_pass_fn(tr_builder *b, size_t *found);
tr_pass_fn tr_graph_pass_row, tr_graph_pass_unread, tr_graph_pass_common, tr_graph_pass_residual,
    tr_graph_pass_activation, tr_graph_pass_gradient, tr_graph_pass_int8, tr_graph_pass_recompute,
    tr_graph_pass_activation_gradient, tr_graph_pass_align_rows, tr_graph_pass_views,
    tr_graph_pass_in_place, tr_graph_pass_residual_in_place, tr_graph_pass_concat_in_place;

#endif
