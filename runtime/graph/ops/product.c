/* What linear and conv2d share: each output is a sum of inputs times weights, one for each element
 * of weight[o, ...]. Operands: x, weight, [bias]; gradients as ops.h lists them. */
#include "runtime/graph/ops/registry.h"

/* Two operations for each element of y and each weight of its output. */
static double flops_of(const tr_graph *g, int y, int weight)
{
    const tr_tensor *w = &g->tensors[weight];
    return 2.0 * (double)g->tensors[y].count * (double)(w->count / (size_t)w->dims[0]);
}

double tr_flops_product(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->out[0], op->in[1]);
}

double tr_flops_product_grad_input(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->in[0], op->in[1]);
}

double tr_flops_product_grad_weight(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->in[1], op->out[0]);
}

void tr_grad_product(tr_builder *b, const tr_op *op, const tr_op_def *grad_input,
                     const tr_op_def *grad_weight)
{
    const int dy = tr_grad_of(b, op->out[0]), x = op->in[0], weight = op->in[1], bias = op->in[2];
    /* The weight's gradient first: its bucket can leave earlier, and x may die here. */
    if (tr_grad_learned(b, weight) || tr_grad_learned(b, bias)) {
        const int dweight = tr_grad_param(b, weight), dbias = tr_grad_param(b, bias);
        tr_build_backward(b, grad_weight, op, TR_IDS(x, dy), TR_IDS(dweight, dbias));
    }
    if (tr_grad_wanted(b, x))
        tr_build_backward(b, grad_input, op, TR_IDS(dy, weight), TR_IDS(tr_grad_new(b, x)));
}
