/* lstm_layer and gru_layer as LSTM and GRU. Both go from row to row in front of the batch, so that
 * the layer's rows are turned before and behind; their gates stand in another order than PyTorch's,
 * and biases are one operand. */
#include "optimize/onnx/ops/recurrent.h"

#include <string.h>

/* Which of PyTorch's gates (i f g o; r z n) stands at each place of theirs (i o f c; z r h). */
static const size_t lstm_gates[] = {0, 3, 1, 2}, gru_gates[] = {1, 0, 2};

void tr_onnx_reorder(size_t gates, const float *from, float *to, size_t size, bool back)
{
    const size_t *order = gates == TR_LSTM_GATES ? lstm_gates : gru_gates;
    for (size_t k = 0; k < gates; k++)
        memcpy(to + (back ? order[k] : k) * size, from + (back ? k : order[k]) * size,
               size * sizeof *to);
}

/* The layer's parameters from the i-th on, `n` of them side by side, as one operand of one
 * direction. */
static const char *operand(tr_onnx_writer *w, const tr_layer *l, const char *what, int i, int n)
{
    const tr_recurrent_attrs *a = l->attrs;
    const tr_param *first = &w->n->model->params[l->params[i]];
    const size_t gates = (size_t)(a->product.out / a->hidden), each = first->count;
    const int64_t dims[3] = {1, first->dims[0] * n, first->ndim > 1 ? first->dims[1] : 1};
    float *v = tr_pool_get(&w->pool, (size_t)n * each, sizeof *v);
    for (int k = 0; v && k < n; k++)
        tr_onnx_reorder(gates, w->n->params + w->n->model->params[l->params[i + k]].offset,
                        v + (size_t)k * each, each / gates, false);
    return v ? tr_onnx_values(w, what, first->ndim + 1, dims, v) : NULL;
}

/* The samples' lengths, (batch, 1) whole numbers of 64 bits, as these operators take them: (batch)
 * of 32. */
static const char *lengths_of(tr_onnx_writer *w, const char *in)
{
    const int64_t flat = -1;
    const char *y;
    tr_onnx_int(w,
                tr_onnx_add(w, "Cast", "lengths32",
                            TR_NAMES(tr_onnx_reshaped(w, "lengths", in, 1, &flat, NULL)), NULL, &y),
                "to", ONNX__TENSOR_PROTO__DATA_TYPE__INT32);
    return y;
}

/* Rows of samples, and behind a sample's end its last state: (1, batch, hidden). */
static void hold(tr_onnx_writer *w, const tr_layer *l, const char *lengths, const char *rows,
                 const char *last, const char *out)
{
    const int64_t dims[] = {-1, 1, 1};
    const char *state = tr_onnx_transposed(w, "state", last, 3, tr_onnx_rows_first);
    const char *there =
        tr_onnx_chain(w, "Less", "there",
                      tr_onnx_positions(w, "places", l->output.dims[0], true, tr_onnx_along(w, 0)),
                      tr_onnx_reshaped(w, "ends", lengths, TR_COUNT(dims), dims, NULL));
    tr_onnx_add(w, "Where", NULL, TR_NAMES(there, rows, state), out, NULL);
}

static void write_recurrent(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_recurrent_attrs *a = l->attrs;
    const bool gru = a->product.out == a->hidden * TR_GRU_GATES;
    const int64_t kept = tr_onnx_along(w, 0) ? 0 : l->output.dims[0];
    const int64_t dims[3] = {0, kept, a->hidden}; /* 0: as it is */
    const char *x, *y, *turned, *last = NULL, *rows;
    tr_onnx_ints(w, tr_onnx_add(w, "Transpose", "rows_first", TR_NAMES(in[0]), NULL, &x), "perm", 3,
                 tr_onnx_rows_first);
    const char *operands[] = {x, operand(w, l, "W", 0, 1), operand(w, l, "R", 1, 1),
                              a->product.bias ? operand(w, l, "B", 2, 2) : "",
                              l->nin > 1 ? lengths_of(w, in[1]) : NULL};
    tr_onnx_node *n = tr_onnx_add(w, gru ? "GRU" : "LSTM", "rows",
                                  l->nin > 1        ? 5
                                  : a->product.bias ? 4
                                                    : 3,
                                  operands, NULL, &y);
    if (a->hold) last = tr_onnx_more(w, n, "state_rows_first");
    tr_onnx_int(w, n, "hidden_size", a->hidden);
    tr_onnx_word(w, n, "direction", a->reverse ? "reverse" : "forward");
    if (gru) tr_onnx_int(w, n, "linear_before_reset", 1);
    tr_onnx_ints(w, tr_onnx_add(w, "Transpose", "batch_first", TR_NAMES(y), NULL, &turned), "perm",
                 4, tr_onnx_batch_first);
    rows = tr_onnx_reshaped(w, "batch_rows", turned, 3, dims, a->hold ? NULL : out);
    if (a->hold) hold(w, l, in[1], rows, last, out);
}

const tr_onnx_layer tr_onnx_recurrent_layers[] = {
    {.layer = "lstm_layer", .write = write_recurrent, .fixed = tr_onnx_any_rows},
    {.layer = "gru_layer", .write = write_recurrent, .fixed = tr_onnx_any_rows},
    {0}};
