/* The table of passes over a graph, and running those that are asked for. Their order matters: sums
 * go into products first, so that an activation behind a sum finds its way into the same op;
 * memory is shared last, when it is known who reads what. */
#include "runtime/graph/passes/passes.h"

#include <string.h>

#define TRAIN    (1u << TR_MODE_TRAIN)
#define EVALUATE (1u << TR_MODE_EVALUATE)
#define INFER    (1u << TR_MODE_INFER)

typedef struct {
    tr_graph_pass pass;
    tr_pass_fn *run;
    bool before; /* gradients are made */
} entry;

static const entry table[TR_GRAPH_PASSES] = {
    [TR_PASS_ROW] =
        {{"row",
          "Where of a sequence one row is read alone, what computes rows apart computes "
          "that one.",
          TRAIN | EVALUATE | INFER},
         .run = tr_graph_pass_row,
         .before = true},
    [TR_PASS_UNREAD] = {{"unread", "Ops that no wanted output needs are left out.", INFER},
                        .run = tr_graph_pass_unread},
    [TR_PASS_COMMON] = {{"common", "Of equal ops on the same tensors one is computed.",
                         EVALUATE | INFER},
                        .run = tr_graph_pass_common},
    [TR_PASS_RESIDUAL] =
        {{"residual", "A sum goes into the product or batchnorm that makes one of its operands.",
          TRAIN | EVALUATE | INFER},
         .run = tr_graph_pass_residual},
    [TR_PASS_ACTIVATION] = {{"activation",
                             "An activation goes into the product, batchnorm or sum before it.",
                             TRAIN | EVALUATE | INFER},
                            .run = tr_graph_pass_activation},
    [TR_PASS_GRADIENT] = {{"gradient",
                           "A mask and a sum of gradients go into the batchnorm gradient behind "
                           "them.",
                           TRAIN},
                          .run = tr_graph_pass_gradient},
    [TR_PASS_INT8] = {{"int8",
                       "A product between `fake_quantize` layers is computed in 8 bits, and its "
                       "result stays in 8 bits where only such products read it.",
                       INFER},
                      .run = tr_graph_pass_int8},
    [TR_PASS_RECOMPUTE] =
        {{"recompute",
          "Where `train.recompute` asks for it: what a block's backward pass reads "
          "is computed again before it, not kept.",
          TRAIN},
         .run = tr_graph_pass_recompute},
    [TR_PASS_ACTIVATION_GRADIENT] =
        {{"activation_gradient",
          "The gradient of an activation goes into the product that makes what it starts from.",
          TRAIN},
         .run = tr_graph_pass_activation_gradient},
    [TR_PASS_ALIGN_ROWS] = {{"align_rows",
                             "Rows of logits of 16 bits begin at multiples of as many bytes as "
                             "products on the device like.",
                             TRAIN | EVALUATE},
                            .run = tr_graph_pass_align_rows},
    [TR_PASS_VIEWS] = {{"views", "A flatten that changes no order has its input's bytes.",
                        TRAIN | EVALUATE | INFER},
                       .run = tr_graph_pass_views},
    [TR_PASS_IN_PLACE] =
        {{"in_place",
          "An elementwise op writes over an operand that nobody reads afterwards; so do "
          "a recurrence's gates, and their gradient.",
          TRAIN | EVALUATE | INFER},
         .run = tr_graph_pass_in_place},
    [TR_PASS_RESIDUAL_IN_PLACE] = {{"residual_in_place",
                                    "An op with a residual that nobody reads afterwards adds to it "
                                    "where it lies.",
                                    INFER},
                                   .run = tr_graph_pass_residual_in_place},
    [TR_PASS_CONCAT_IN_PLACE] =
        {{"concat_in_place",
          "Operands of a concat are made where its result has them, and not copied.",
          EVALUATE | INFER},
         .run = tr_graph_pass_concat_in_place},
};

const tr_graph_pass *tr_graph_pass_at(tr_graph_pass_id pass)
{
    return &table[pass].pass;
}

tr_graph_pass_id tr_graph_pass_named(const char *name)
{
    int i = 0;
    while (i < TR_GRAPH_PASSES && strcmp(table[i].pass.name, name) != 0) i++;
    return (tr_graph_pass_id)i;
}

tr_status tr_graph_passes_of(const tr_node *list, const char *key, unsigned *out)
{
    const char *names[TR_GRAPH_PASSES];
    bool named[TR_GRAPH_PASSES];
    for (int i = 0; i < TR_GRAPH_PASSES; i++) names[i] = table[i].pass.name;
    const tr_status st =
        tr_node_names(list, key, "pass over a graph", names, TR_GRAPH_PASSES, named);
    *out = 0;
    for (int i = 0; i < TR_GRAPH_PASSES; i++) *out |= named[i] ? TR_PASS_IS(i) : 0;
    return st;
}

tr_status tr_graph_passes_skipped(const tr_config *c, unsigned *out)
{
    return tr_graph_passes_of(c->run.skip_passes, "run.skip_passes", out);
}

unsigned tr_graph_skip(const tr_config *c)
{
    unsigned skip;
    return tr_graph_passes_skipped(c, &skip) == TR_OK ? skip : 0;
}

tr_status tr_passes_over_graph(tr_builder *b, bool before)
{
    tr_status st = TR_OK;
    const unsigned wanted = b->o->passes & ~b->g->model->skip_passes;
    for (int i = 0; i < TR_GRAPH_PASSES; i++)
        if (table[i].before == before && wanted & TR_PASS_IS(i) &&
            table[i].pass.modes & 1u << b->g->mode)
            TR_TRY(table[i].run(b, &b->g->found[i]));
out:
    return st;
}
