/* One layer and direction of an LSTM (Hochreiter and Schmidhuber 1997, with forget gates: Gers et
 * al. 2000) or a GRU (Cho et al. 2014, as cuDNN and PyTorch have it: the reset gate scales the
 * state's product), batch first. Two ops: the product of all rows' inputs at once, which is a
 * linear one, and the recurrence. Its gradient gives that of the inputs' product and the states
 * before each row, so that the recurrent weight's gradient is one product over all rows, too. */
#include "runtime/graph/ops/registry.h"

static const tr_field fields[] = {
    TR_INT("hidden", offsetof(tr_recurrent_attrs, hidden), NULL, 1, INT32_MAX / 4, NULL,
           "features of the state, and of a row that comes out"),
    TR_BOOL("reverse", offsetof(tr_recurrent_attrs, reverse), "false",
            "from the last row to the first"),
    TR_BOOL("bias", offsetof(tr_recurrent_attrs, product.bias), "true",
            "add learned biases, one to each product"),
    TR_BOOL("hold", offsetof(tr_recurrent_attrs, hold), "false",
            "with lengths, forwards: rows from a sample's length on give its last state, not 0, so "
            "that the last row has it of every sample"),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    tr_recurrent_attrs *a = at;
    (void)mk;
    a->product.out = a->hidden * (l->def == &tr_def_lstm_layer ? TR_LSTM_GATES : TR_GRU_GATES);
    return TR_OK;
}

/* U(+-1 / sqrt(hidden)), all of them, as PyTorch's. */
static tr_status parameter(tr_maker *mk, tr_layer *l, const char *name, int64_t cols)
{
    const tr_recurrent_attrs *a = l->attrs;
    return tr_layer_param(mk, l,
                          &(tr_param_decl){.name = name,
                                           .ndim = cols ? 2 : 1,
                                           .dims = {a->product.out, cols},
                                           .init = TR_INIT_KAIMING,
                                           .fan_in = (double)a->hidden,
                                           .fan_out = (double)a->product.out,
                                           .decay = cols > 0});
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const tr_recurrent_attrs *a = l->attrs;
    tr_status st = TR_OK;
    if (a->hold && (a->reverse || l->nin < 2))
        return tr_layer_fail(l, TR_CONFIG,
                             a->reverse ? "hold: backwards a sample begins at its last row"
                                        : "hold: it has no lengths: a second input in `from`");
    TR_TRY(tr_layer_rank(l, 2, 2, "(rows, features)"));
    l->output = l->inputs[0];
    l->output.dims[1] = a->hidden;
    if (l->nin > 1) TR_TRY(tr_layer_lengths(mk, l, 1, l->inputs[0].dims[0], "rows"));
    TR_TRY(parameter(mk, l, "weight_ih", l->inputs[0].dims[1]));
    TR_TRY(parameter(mk, l, "weight_hh", a->hidden));
    if (!a->product.bias) return TR_OK;
    TR_TRY(parameter(mk, l, "bias_ih", 0));
    TR_TRY(parameter(mk, l, "bias_hh", 0));
out:
    return st;
}

static const char *together(const tr_layer *l)
{
    return ((const tr_recurrent_attrs *)l->attrs)->reverse
               ? "it goes from the last row to the first"
               : NULL;
}

static bool holds(const tr_layer *l)
{
    return ((const tr_recurrent_attrs *)l->attrs)->hold;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const tr_recurrent_attrs *a = l->attrs;
    const bool lstm = l->def == &tr_def_lstm_layer, bias = a->product.bias;
    const int x = tr_build_input(b, l, 0), y = tr_build_output(b, l);
    const tr_tensor t = *tr_build_tensor(b, y);
    const int64_t wide[3] = {t.dims[0], t.dims[1], a->product.out};
    const int product = tr_build_new(b, l->name, "product", t.dtype, 3, wide);
    int gates = -1, kept = -1;
    tr_build_forward(b, &tr_def_linear, l,
                     TR_IDS(x, tr_build_param(b, l, 0), bias ? tr_build_param(b, l, 2) : -1),
                     TR_IDS(product));
    if (tr_build_train(b)) {
        gates = tr_build_new(b, l->name, "gates", t.dtype, 3, wide);
        kept = tr_build_like(b, l->name, lstm ? "cells" : "recurrent", lstm ? TR_F32 : t.dtype, y);
    }
    const int weight = tr_build_param(b, l, 1), second = bias ? tr_build_param(b, l, 3) : -1;
    if (tr_build_past(b) >= 0) { /* the lengths are those of this run's rows */
        const int64_t dims[2] = {t.dims[0], a->hidden};
        const int h = tr_build_held(b, l, "h", t.dtype, 2, dims);
        const int state = tr_build_held(b, l, "state", TR_F32, 2, dims);
        tr_build_forward(b, l->def, l, TR_IDS(product, weight, second, tr_build_count(b), h, state),
                         TR_IDS(y, -1, -1));
        return y;
    }
    tr_build_forward(b, l->def, l,
                     TR_IDS(product, weight, second, l->nin > 1 ? tr_build_input(b, l, 1) : -1),
                     TR_IDS(y, gates, kept));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    const int x = op->in[0], weight = op->in[1], bias = op->in[2], y = op->out[0];
    const bool lstm = op->def == &tr_def_lstm_layer;
    const bool learned = tr_grad_learned(b, weight) || tr_grad_learned(b, bias);
    const tr_dtype type = tr_build_tensor(b, x)->dtype;
    int dx = tr_grad_new(b, x), before = -1, dproduct = -1;
    if (dx < 0) dx = tr_build_like(b, op->layer, "dx", type, x); /* the recurrence needs it */
    if (learned) {
        before = tr_build_like(b, op->layer, "before", type, y);
        dproduct = lstm ? dx : tr_build_like(b, op->layer, "dproduct", type, x);
    }
    tr_build_backward(b, op->def->backward, op,
                      TR_IDS(tr_grad_of(b, y), y, op->out[1], op->out[2], weight, op->in[3]),
                      TR_IDS(dx, before, lstm ? -1 : dproduct));
    if (learned)
        tr_build_backward(b, &tr_def_linear_grad_weight, op, TR_IDS(before, dproduct),
                          TR_IDS(tr_grad_param(b, weight), tr_grad_param(b, bias)));
}

/* The product with the state, and some ten operations for each gate; the gradient's product has the
 * same size. */
static double flops_of(const tr_graph *g, int y, int weight)
{
    return (2.0 * (double)g->tensors[y].dims[2] + 10.0) * (double)g->tensors[weight].dims[0] *
           (double)(g->tensors[y].dims[0] * g->tensors[y].dims[1]);
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->out[0], op->in[1]);
}

static double grad_flops(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op->in[1], op->in[4]);
}

#define LENGTHS                                                                                    \
    "A second input in `from`, of shape (1), holds the samples' lengths, 0 to rows: rows from "    \
    "there on give 0 and leave the state; backwards a sample begins at its last row."
#define RECURRENT                                                                                  \
    .fields = fields, .attrs_size = sizeof(tr_recurrent_attrs), .learned = true,                   \
    .rounds = 1u << 0 | 1u << 1, /* the weights */                                                 \
        .min_in = 1, .max_in = 2, .finish = finish, .infer = infer, .forward = forward,            \
    .gradient = gradient, .width = "hidden", .flops = flops, .recurs = 1, .rows = TR_ROWS_BEFORE,  \
    .together = together, .holds = holds, /* gates over the inputs' product */                     \
        .share = TR_SHARE_FIRST, .over = {.out = 1, .in = 0}

#define GRADIENT_OVER_GATES .share = TR_SHARE_FIRST, .over = {.out = 0, .in = 2}

const tr_op_def tr_def_lstm_layer = {
    .name = "lstm_layer",
    .example = "lstm_layer: {hidden: 8}",
    .doc =
        "One layer and direction of an LSTM over (rows, features), from a state of zeros: (rows, "
        "hidden). `lstm` stands for several. Parameters, as PyTorch's with gates i, f, g, o: "
        "weight_ih (4 hidden, features), weight_hh (4 hidden, hidden), bias_ih, bias_hh "
        "(4 hidden), initially uniform within 1 / sqrt(hidden). " LENGTHS,
    RECURRENT,
    .backward = &tr_def_lstm_layer_grad};

const tr_op_def tr_def_lstm_layer_grad = {
    .name = "lstm_layer.grad", .flops = grad_flops, .recurs = 4, GRADIENT_OVER_GATES};

const tr_op_def tr_def_gru_layer = {
    .name = "gru_layer",
    .example = "gru_layer: {hidden: 8}",
    .doc = "One layer and direction of a GRU over (rows, features), from a state of zeros: (rows, "
           "hidden). `gru` stands for several. Parameters, as PyTorch's with gates r, z, n: "
           "weight_ih (3 hidden, features), weight_hh (3 hidden, hidden), bias_ih, bias_hh "
           "(3 hidden), initially uniform within 1 / sqrt(hidden). " LENGTHS,
    RECURRENT,
    .backward = &tr_def_gru_layer_grad};

const tr_op_def tr_def_gru_layer_grad = {
    .name = "gru_layer.grad", .flops = grad_flops, .recurs = 4, GRADIENT_OVER_GATES};
