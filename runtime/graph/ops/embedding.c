/* Rows of a table, looked up by number (PyTorch's Embedding). The numbers are one of the model's
 * inputs: that an embedding reads it makes it one of ids, which the loader gives as int32. */
#include "runtime/graph/ops/registry.h"

typedef struct {
    tr_embedding_attrs a;
    double std;
} attributes;

static const tr_field fields[] = {
    TR_INT("num", offsetof(attributes, a.num), NULL, 1, INT32_MAX, NULL,
           "rows of the table: ids are whole numbers from 0 to num - 1"),
    TR_INT("dim", offsetof(attributes, a.dim), NULL, 1, INT32_MAX, NULL, "features of a row"),
    TR_REAL("std", offsetof(attributes, std), "1", 0, 1e3, NULL,
            "deviation of the initial values; 0.02 where an output layer has the same weight"),
    {0},
};

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const attributes *given = l->attrs;
    const tr_embedding_attrs *a = &given->a;
    tr_status st = TR_OK;
    TR_TRY(tr_layer_ids(mk, l, 0, a->num));
    TR_TRY(tr_layer_rank(l, 1, 1, "(positions)"));
    l->output = (tr_shape){.ndim = 2, .dims = {l->inputs[0].dims[0], a->dim}};
    TR_TRY(tr_layer_param(mk, l,
                          &(tr_param_decl){.name = "weight",
                                           .ndim = 2,
                                           .dims = {a->num, a->dim},
                                           .init = given->std > 0 ? TR_INIT_NORMAL : TR_INIT_ZEROS,
                                           .std = given->std,
                                           .decay = true}));
out:
    return st;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    tr_build_backward(b, &tr_def_embedding_grad, op, TR_IDS(tr_grad_of(b, op->out[0]), op->in[0]),
                      TR_IDS(tr_grad_param(b, op->in[1])));
}

const tr_op_def tr_def_embedding = {
    .name = "embedding",
    .example = "embedding: {num: 50, dim: 16, from: words}",
    .doc = "(positions) to (positions, dim): row `x` of a table for each whole number `x` of the "
           "sample. It reads one of the model's inputs, which no layer of another type then may "
           "read; the input's elements must be whole numbers from 0 to `num` - 1, and "
           "data.normalize and data.augment leave them alone. Parameters: weight (num, dim), "
           "initially normal with deviation `std`.",
    .fields = fields,
    .attrs_size = sizeof(attributes),
    .learned = true,
    .tied = true,
    .min_in = 1,
    .max_in = 1,
    .rows = TR_ROWS_APART,
    .infer = infer,
    .operands = 2,
    .gradient = gradient,
    .channels = TR_CHANNELS_ROWS,
    .width = "dim"};

const tr_op_def tr_def_embedding_grad = {.name = "embedding.grad", .flops = tr_flops_elements};
