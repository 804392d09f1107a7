/* Linear layers as matrix products: y = act(x W^T + b), dx = dy W, dW = dy^T x. Every operand stays
 * in its stored layout (transposes are strides), so float32 reads the master weights themselves;
 * bfloat16 reads one plain bfloat16 copy of them, shared by the forward and the backward product. Where
 * weights stay as they are (infer), the product chooses their layout, and they are packed once.
 * The bias rides on the product; weight gradients go straight to their slot. Where the matrix is part fixed signs
 * (tr_linear_matrix) it is made once an update, and the gradient is the product of the learned part's columns alone. */
#include "kernels/cpu/onednn/onednn.h"

typedef struct {
    int64_t rows, in, out;
    tr_dtype type; /* of activations */
    tr_linear_matrix matrix;
} shape;

/* `x_like` has the matrix's columns last, or its rows. */
static shape shape_of(const tr_graph *g, const tr_op *op, int x_like, const tr_tensor *weight,
                      bool columns)
{
    const tr_tensor *t = &g->tensors[x_like];
    const tr_linear_matrix m = tr_linear_matrix_of(op, weight);
    return (shape){.rows = (int64_t)t->count / (columns ? m.in : m.out),
                   .in = m.in,
                   .out = m.out,
                   .type = t->dtype,
                   .matrix = m};
}

static bool sketched(const tr_op *op)
{
    const tr_linear_attrs *a = op->attrs;
    return a && a->sketch.side != TR_SKETCH_NONE;
}

/* `plain`: the parameter's own layout and type; `stored`: the same in the type of activations. */
static tr_status set_weights(tr_dnnl_kernel *k, tr_dnnl_call *call, const tr_dnnl_array *plain,
                             const tr_dnnl_array *stored, const tr_op *op, const tr_tensor *weight)
{
    if (sketched(op)) return tr_dnnl_sketch(k, call, DNNL_ARG_WEIGHTS, stored, op, weight);
    return tr_dnnl_weights(k, call, DNNL_ARG_WEIGHTS, plain, 1, weight->index);
}

tr_status tr_cpu_linear(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *weight = &g->tensors[op->in[1]];
    const bool with_bias = op->nin > 2 && op->in[2] >= 0;
    const shape s = shape_of(g, op, op->in[0], weight, true);
    const tr_dnnl_array x = tr_dnnl_matrix(s.rows, s.in, s.in, 1, s.type);
    const tr_dnnl_array master = tr_dnnl_matrix(s.in, s.out, 1, s.in, TR_F32);
    const tr_dnnl_array stored = tr_dnnl_matrix(s.in, s.out, 1, s.in, s.type);
    const tr_dnnl_array w = g->mode == TR_MODE_INFER ? tr_dnnl_any(stored, s.type) : stored;
    const tr_dnnl_array b = tr_dnnl_matrix(1, s.out, s.out, 1, TR_F32);
    const tr_dnnl_array y = tr_dnnl_matrix(s.rows, s.out, s.out, 1, s.type);
    const tr_dnnl_post post = {.act = tr_dnnl_post_act(g, op)};
    tr_dnnl_kernel *k = NULL;
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;

    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(tr_dnnl_matmul(cpu, &x, &w, with_bias ? &b : NULL, &y, &post, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(set_weights(k, call, &master, &stored, op, weight));
    if (with_bias) TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_BIAS, TR_AT_IN, 2));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    tr_dnnl_activate(k, g, op);
    tr_dnnl_finish(k, tr_dnnl_impl(pd));
out:
    return tr_dnnl_hand_over(k, st, out);
}

tr_status tr_cpu_linear_grad_input(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *weight = &g->tensors[op->in[1]];
    const shape s = shape_of(g, op, op->in[0], weight, false);
    const tr_dnnl_array dy = tr_dnnl_matrix(s.rows, s.out, s.out, 1, s.type);
    const tr_dnnl_array w = tr_dnnl_matrix(s.out, s.in, s.in, 1, s.type);
    const tr_dnnl_array master = tr_dnnl_matrix(s.out, s.in, s.in, 1, TR_F32);
    const tr_dnnl_array dx = tr_dnnl_matrix(s.rows, s.in, s.in, 1, s.type);
    tr_dnnl_kernel *k = NULL;
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;

    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(tr_dnnl_matmul(cpu, &dy, &w, NULL, &dx, NULL, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(set_weights(k, call, &master, &w, op, weight));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    tr_dnnl_finish(k, tr_dnnl_impl(pd));
out:
    return tr_dnnl_hand_over(k, st, out);
}

tr_status tr_cpu_linear_grad_weight(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *dweight = &g->tensors[op->out[0]];
    const shape s = shape_of(g, op, op->in[0], dweight, true);
    const tr_linear_matrix *m = &s.matrix;
    const int64_t out_rows = m->learned[0], columns = m->learned[1];
    const tr_dnnl_array dyt = tr_dnnl_matrix(out_rows, s.rows, 1, s.out, s.type);
    const tr_dnnl_array x = tr_dnnl_matrix(s.rows, columns, s.in, 1, s.type);
    const tr_dnnl_array dw = tr_dnnl_matrix(out_rows, columns, columns, 1, TR_F32);
    const size_t at_dy = (size_t)m->at[0] * tr_dtype_size(s.type);
    const size_t at_x = (size_t)m->at[1] * tr_dtype_size(s.type);
    tr_dnnl_kernel *k = NULL;
    dnnl_primitive_desc_t pd = NULL;

    TR_TRY(tr_dnnl_open(cpu, &k));
    for (int add = 0; add < 2; add++) {
        const tr_dnnl_post post = {.sum = add};
        tr_dnnl_call *call;
        TR_TRY(tr_dnnl_matmul(cpu, &dyt, &x, NULL, &dw, &post, &pd));
        TR_TRY(tr_dnnl_call_add(k, add ? TR_CALL_ADD : TR_CALL_OVERWRITE, pd, &call));
        TR_TRY(tr_dnnl_arg_part(k, call, DNNL_ARG_SRC, TR_AT_IN, 1, at_dy));
        TR_TRY(tr_dnnl_arg_part(k, call, DNNL_ARG_WEIGHTS, TR_AT_IN, 0, at_x));
        TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    }
    if (op->nout > 1 && op->out[1] >= 0) tr_dnnl_bias_gradient(k, s.rows, s.out, s.type);
    tr_dnnl_finish(k, tr_dnnl_impl(pd));
out:
    return tr_dnnl_hand_over(k, st, out);
}
