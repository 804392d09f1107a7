/* Scaled dot-product attention of several heads (Vaswani et al. 2017), without parameters; heads of
 * keys and values shared by groups (Ainslie et al. 2023), sliding windows (Beltagy et al. 2020),
 * distances as biases (Press et al. 2022). The gradient computes the probabilities again from each
 * row's log-sum-exp (Dao et al. 2022), and dropout's mask from the places, so nothing of the size
 * queries x keys is kept. */
#include "runtime/graph/ops/registry.h"

#include <math.h>

static const tr_field fields[] = {
    TR_INT("heads", offsetof(tr_attention_attrs, heads), NULL, 1, 65536, NULL, "heads of queries"),
    TR_INT("kv_heads", offsetof(tr_attention_attrs, kv_heads), "0", 0, 65536, NULL,
           "heads of keys and values, a divisor of heads: each serves heads / kv_heads "
           "neighbouring heads of queries; 1: multi-query; 0: heads"),
    TR_BOOL("causal", offsetof(tr_attention_attrs, causal), "false",
            "query i sees keys 0 to i alone, also where there are more or fewer keys than queries"),
    TR_INT("window", offsetof(tr_attention_attrs, window), "0", 0, INT32_MAX, "positions",
           "query i sees keys j with abs(i - j) < window alone, so with causal itself and the "
           "window - "
           "1 before it; 0: any"),
    TR_REAL("dropout", offsetof(tr_attention_attrs, dropout), "0", 0, 1, NULL,
            "probability that a probability is dropped in training; below 1"),
    TR_BOOL("alibi", offsetof(tr_attention_attrs, alibi), "false",
            "take abs(i - j) times the head's slope off each score (ALiBi): 2^(-8 h / heads) for "
            "head h = 1, 2, ..., and as Press et al. say where heads is no power of two"),
    TR_REAL("scale", offsetof(tr_attention_attrs, scale), "0", 0, 1e6, NULL,
            "of scores; 0: 1 / sqrt(D) of heads of D values"),
    {0},
};

static tr_status finish(const tr_maker *mk, const tr_layer *l, void *at)
{
    (void)mk;
    tr_attention_attrs *a = at;
    if (a->kv_heads == 0) a->kv_heads = a->heads;
    if (a->heads % a->kv_heads != 0)
        return tr_layer_fail(l, TR_CONFIG, "kv_heads: %lld does not divide %lld heads",
                             (long long)a->kv_heads, (long long)a->heads);
    return a->dropout < 1 ? TR_OK
                          : tr_layer_fail(l, TR_CONFIG, "dropout: %g is not below 1", a->dropout);
}

static tr_status rows_of_heads(const tr_layer *l, int i, const char *what, int64_t heads)
{
    const tr_shape *s = &l->inputs[i];
    char text[TR_SHAPE_TEXT];
    if (s->ndim == 2 && s->dims[1] % heads == 0) return TR_OK;
    return tr_layer_fail(l, TR_SHAPE,
                         "%s: its input %d is %s, but it takes (positions, features) with features "
                         "a multiple of %lld",
                         what, i + 1, tr_shape_text(s, text), (long long)heads);
}

/* q, k, v of heads of one size, keys and values at the same positions. */
static tr_status check_apart(const tr_layer *l, const tr_attention_attrs *a)
{
    const tr_shape *q = &l->inputs[0], *k = &l->inputs[1], *v = &l->inputs[2];
    char one[TR_SHAPE_TEXT], other[TR_SHAPE_TEXT];
    tr_status st = TR_OK;
    TR_TRY(rows_of_heads(l, 0, "queries", a->heads));
    TR_TRY(rows_of_heads(l, 1, "keys", a->kv_heads));
    TR_TRY(rows_of_heads(l, 2, "values", a->kv_heads));
    if (!tr_shape_equal(k, v))
        st = tr_layer_fail(l, TR_SHAPE, "its keys are %s, but its values %s", tr_shape_text(k, one),
                           tr_shape_text(v, other));
    else if (q->dims[1] / a->heads != k->dims[1] / a->kv_heads)
        st = tr_layer_fail(l, TR_SHAPE,
                           "%lld heads of its queries %s have %lld values each, %lld of its keys "
                           "%s %lld",
                           (long long)a->heads, tr_shape_text(q, one),
                           (long long)(q->dims[1] / a->heads), (long long)a->kv_heads,
                           tr_shape_text(k, other), (long long)(k->dims[1] / a->kv_heads));
out:
    return st;
}

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    const tr_attention_attrs *a = l->attrs;
    const int64_t all = a->heads + 2 * a->kv_heads;
    const bool packed = l->nin < 3;
    tr_status st = TR_OK;
    l->output = l->inputs[0];
    if (packed) {
        TR_TRY(rows_of_heads(l, 0, "queries, keys and values", all));
        l->output.dims[1] = l->inputs[0].dims[1] / all * a->heads;
    } else {
        TR_TRY(check_apart(l, a));
    }
    if (l->nin % 2 == 1) return TR_OK;
    st = tr_layer_lengths(mk, l, l->nin - 1, l->inputs[packed ? 0 : 1].dims[0], "keys");
out:
    return st;
}

static const char *together(const tr_layer *l)
{
    return ((const tr_attention_attrs *)l->attrs)->causal ? NULL : "its attention is not causal";
}

/* Keys and values of the rows so far lie head by head, so that one head's are read in one piece. */
static int forward_held(tr_builder *b, const tr_layer *l)
{
    const tr_attention_attrs *a = l->attrs;
    const bool packed = l->nin < 3;
    int in[3];
    for (int i = 0; i < (packed ? 1 : 3); i++) in[i] = tr_build_input(b, l, i);
    const int y = tr_build_output(b, l);
    const tr_tensor t = *tr_build_tensor(b, y);
    const int64_t dims[4] = {t.dims[0], a->kv_heads, tr_build_cache(b), t.dims[2] / a->heads};
    const int keys = tr_build_held(b, l, "keys", t.dtype, 4, dims);
    const int values = tr_build_held(b, l, "values", t.dtype, 4, dims);
    tr_build_forward(b, l->def, l,
                     TR_IDS(in[0], packed ? -1 : in[1], packed ? -1 : in[2], -1, tr_build_past(b),
                            tr_build_count(b), keys, values),
                     TR_IDS(y));
    return y;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const tr_attention_attrs *a = l->attrs;
    const bool packed = l->nin < 3;
    int in[TR_MAX_IN], lse = -1;
    if (tr_build_past(b) >= 0) return forward_held(b, l);
    for (int i = 0; i < l->nin; i++) in[i] = tr_build_input(b, l, i);
    const int y = tr_build_output(b, l);
    const tr_tensor *t = tr_build_tensor(b, y);
    const int64_t dims[3] = {t->dims[0], a->heads, t->dims[1]};
    if (tr_build_train(b)) lse = tr_build_new(b, l->name, "lse", TR_F32, 3, dims);
    const int lengths = l->nin % 2 == 0 ? in[l->nin - 1] : -1;
    tr_build_forward(b, l->def, l, TR_IDS(in[0], packed ? -1 : in[1], packed ? -1 : in[2], lengths),
                     TR_IDS(y, lse));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    int grad[3], wanted = 0;
    for (int i = 0; i < 3; i++) wanted += op->in[i] >= 0 && tr_grad_wanted(b, op->in[i]);
    if (!wanted) return;
    const int dy = tr_grad_of(b, op->out[0]);
    for (int i = 0; i < 3; i++) grad[i] = op->in[i] < 0 ? -1 : tr_grad_new(b, op->in[i]);
    tr_build_backward(
        b, &tr_def_attention_grad, op,
        TR_IDS(dy, op->in[0], op->in[1], op->in[2], op->in[3], op->out[0], op->out[1]),
        TR_IDS(grad[0], grad[1], grad[2]));
}

tr_attention_shape tr_attention_of(const tr_graph *g, const tr_op *op)
{
    const tr_attention_attrs *a = op->attrs;
    const int first = op->def == &tr_def_attention_grad;
    const tr_tensor *q = &g->tensors[op->in[first]];
    const bool packed = op->in[first + 1] < 0;
    const tr_tensor *k = packed ? q : &g->tensors[op->in[first + 1]];
    const size_t heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads;
    const size_t width = (size_t)q->dims[2], D = width / (packed ? heads + 2 * kv_heads : heads);
    return (tr_attention_shape){
        .samples = (size_t)q->dims[0],
        .queries = (size_t)q->dims[1],
        .keys = (size_t)k->dims[1],
        .heads = heads,
        .kv_heads = kv_heads,
        .D = D,
        .q_pitch = width,
        .kv_pitch = (size_t)k->dims[2],
        .k_at = packed ? heads * D : 0,
        .v_at = packed ? (heads + kv_heads) * D : 0,
        .packed = packed,
        .q = first,
        .k = packed ? first : first + 1,
        .v = packed ? first : first + 2,
        .lengths = op->in[first + 3] < 0 ? -1 : first + 3,
        .keys_held = !first && op->nin > TR_ATTENTION_KEYS_HELD ? TR_ATTENTION_KEYS_HELD : -1,
        .scale = (float)(a->scale > 0 ? a->scale : 1 / sqrt((double)D))};
}

/* Pairs of a query and a key that it sees, of samples of full length, times what one costs. */
static double flops_of(const tr_graph *g, const tr_op *op, double products)
{
    const tr_attention_attrs *a = op->attrs;
    const tr_attention_shape s = tr_attention_of(g, op);
    double pairs = 0;
    if (s.keys_held >= 0) /* as many as there can be */
        pairs = (double)s.queries * (double)g->tensors[op->in[s.keys_held]].dims[2];
    for (size_t i = 0; s.keys_held < 0 && i < s.queries; i++) {
        const tr_key_range seen =
            tr_attention_keys((int64_t)i, (int64_t)s.keys, a->causal, a->window);
        pairs += (double)(seen.end - seen.begin);
    }
    return products * 2.0 * (double)(s.samples * s.heads * s.D) * pairs;
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op, 2); /* q k^T and p v */
}

static double flops_grad(const tr_graph *g, const tr_op *op)
{
    return flops_of(g, op, 5); /* q k^T again, dy v^T, and those of dq, dk, dv */
}

/* A head's slope goes by how many there are. */
static tr_channels channels(const tr_layer *l)
{
    return ((const tr_attention_attrs *)l->attrs)->alibi ? TR_CHANNELS_MIXED : TR_CHANNELS_HEADS;
}

static void heads(const tr_layer *l, tr_heads *out)
{
    const tr_attention_attrs *a = l->attrs;
    *out = (tr_heads){.heads = a->heads,
                      .kv_heads = a->kv_heads,
                      .size = l->output.dims[1] / a->heads,
                      .packed = l->nin < 3};
}

const tr_op_def tr_def_attention = {
    .name = "attention",
    .example = "attention: {heads: 4, kv_heads: 2, causal: true}",
    .doc =
        "Scaled dot-product attention: `softmax(q k^T / sqrt(D)) v` of each head, without "
        "parameters. Inputs: one of (positions, (heads + 2 kv_heads) D), which holds all heads' "
        "queries, then keys, then values; or three, queries (T, heads D), keys and values (S, "
        "kv_heads D). Behind them may stand one of the model's inputs, of shape (1): how many keys "
        "a sample has, a whole number from 0 to S; those from there on are masked. Output: (T, "
        "heads D). A query that sees no key gives 0 (PyTorch: NaN).",
    .fields = fields,
    .attrs_size = sizeof(tr_attention_attrs),
    .min_in = 1,
    .max_in = 4,
    .sequence = TR_SEQUENCE_ROWS,
    .rows = TR_ROWS_BEFORE,
    .together = together,
    .finish = finish,
    .infer = infer,
    .forward = forward,
    .gradient = gradient,
    .backward = &tr_def_attention_grad,
    .channels_of = channels,
    .heads = heads,
    .flops = flops};

const tr_op_def tr_def_attention_grad = {.name = "attention.grad", .flops = flops_grad};
