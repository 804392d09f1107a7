/* Rotary position embedding (Su et al. 2021): pairs of a head's values turned by an angle that
 * grows with the position, so that products of queries and keys depend on their distance. */
#include "runtime/graph/ops/registry.h"

#include <math.h>

static const char *const styles[] = {"half", "interleaved", NULL};

static const tr_field fields[] = {
    TR_INT("heads", offsetof(tr_rotary_attrs, heads), NULL, 1, 65536, NULL,
           "heads, each of features / heads values"),
    TR_INT("dim", offsetof(tr_rotary_attrs, dim), "0", 0, INT32_MAX, NULL,
           "a head's first values, an even number, that are turned; the rest stays; 0: all"),
    TR_REAL("base", offsetof(tr_rotary_attrs, base), "10000", 1, 1e12, NULL,
            "pair k is turned by position * base^(-2k/dim)"),
    TR_CHOICE("style", offsetof(tr_rotary_attrs, style), styles, "half",
              "pairs: half: values k and k + dim/2 (Llama, GPT-NeoX); interleaved: 2k and 2k + 1 "
              "(the paper, GPT-J)"),
    {0},
};

static tr_status infer(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    tr_rotary_attrs *a = l->attrs;
    tr_status st = TR_OK;
    char text[TR_SHAPE_TEXT];
    TR_TRY(tr_layer_rank(l, 2, 2, "(positions, features)"));
    l->output = l->inputs[0];
    const int64_t width = l->inputs[0].dims[1], D = width / a->heads;
    if (width % a->heads != 0)
        return tr_layer_fail(l, TR_SHAPE, "heads: %lld does not divide the features of %s",
                             (long long)a->heads, tr_shape_text(&l->inputs[0], text));
    const int64_t dim = a->dim ? a->dim : D;
    if (dim % 2 != 0 || dim > D)
        return tr_layer_fail(l, TR_SHAPE,
                             "dim: expected an even number up to the %lld values of a head, not "
                             "%lld",
                             (long long)D, (long long)dim);
    a->dim = dim;
out:
    return st;
}

static int forward(tr_builder *b, const tr_layer *l)
{
    const int x = tr_build_input(b, l, 0), y = tr_build_output(b, l), past = tr_build_past(b);
    tr_build_forward(b, l->def, l, past < 0 ? 1 : 2, (const int[]){x, past}, TR_IDS(y));
    return y;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, &tr_def_rotary_grad, op, TR_IDS(tr_grad_of(b, op->out[0])),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

void tr_rotary_table(const tr_rotary_attrs *a, size_t positions, float *turn)
{
    const size_t pairs = (size_t)a->dim / 2;
    for (size_t i = 0; i < positions; i++)
        for (size_t k = 0; k < pairs; k++) {
            const double angle = (double)i * pow(a->base, -2.0 * (double)k / (double)a->dim);
            turn[2 * i * pairs + k] = (float)cos(angle);
            turn[2 * i * pairs + pairs + k] = (float)sin(angle);
        }
}

static double flops(const tr_graph *g, const tr_op *op)
{
    return 3.0 * (double)g->tensors[op->in[0]].count;
}

static void heads(const tr_layer *l, tr_heads *out)
{
    const tr_rotary_attrs *a = l->attrs;
    *out = (tr_heads){.heads = a->heads, .size = l->output.dims[1] / a->heads, .turned = a->dim};
}

const tr_op_def tr_def_rotary = {
    .name = "rotary",
    .example = "rotary: {heads: 4}",
    .doc = "Rotary position embedding of (positions, heads D): queries or keys on their way to "
           "attention. Position i counts from 0.",
    .fields = fields,
    .attrs_size = sizeof(tr_rotary_attrs),
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_ROWS,
    .rows = TR_ROWS_BEFORE,
    .infer = infer,
    .forward = forward,
    .gradient = gradient,
    .share = TR_SHARE_FIRST,
    .channels = TR_CHANNELS_HEADS,
    .heads = heads,
    .flops = flops};

const tr_op_def tr_def_rotary_grad = {
    .name = "rotary.grad", .share = TR_SHARE_FIRST, .flops = flops};
