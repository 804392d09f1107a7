/* Rows of (rows, features) set in front, or taken out: the class token (Dosovitskiy et al. 2021), and one row of all.
 * Taking rows out is padding by negative numbers, by the kernels of resample.c, which see rows as the height of an
 * image of width 1. */
#include "runtime/graph/ops/registry.h"

static tr_status take_rows(const tr_layer *l)
{
    return tr_layer_rank(l, 2, 2, "(rows, features)");
}

/* ---- The class token ------------------------------------------------------------------------- */

/* Of the output's gradient: all but the first row; the first row. */
static const tr_resample_attrs behind_first = {.kind = TR_RESAMPLE_CONSTANT, .before = {-1, 0}};
static const tr_resample_attrs first_row = {.kind = TR_RESAMPLE_CONSTANT};

static tr_status infer_token(tr_maker *mk, tr_layer *l)
{
    tr_status st = TR_OK;
    TR_TRY(take_rows(l));
    l->output.dims[0]++;
    TR_TRY(tr_layer_param(
        mk, l,
        &(tr_param_decl){
            .name = "weight", .ndim = 1, .dims = {l->output.dims[1]}, .init = TR_INIT_NORMAL}));
out:
    return st;
}

static void token_gradient(tr_builder *b, const tr_op *op)
{
    const int x = op->in[0], w = op->in[1], dy = tr_grad_of(b, op->out[0]);
    const tr_tensor *t = tr_build_tensor(b, x);
    if (tr_grad_learned(b, w)) {
        /* as images of one pixel, whose sums over samples are a channel's bias */
        const int64_t dims[] = {t->dims[0], t->dims[2], 1, 1};
        const int row = tr_build_image(b, op->layer, "row", t->dtype, dims);
        tr_build_backward(b, &tr_def_class_token_row, op, TR_IDS(dy), TR_IDS(row))->attrs =
            &first_row;
        tr_build_backward(b, &tr_def_channel_bias_grad, op, TR_IDS(row),
                          TR_IDS(tr_grad_param(b, w)));
    }
    if (tr_grad_wanted(b, x))
        tr_build_backward(b, &tr_def_class_token_grad, op, TR_IDS(dy), TR_IDS(tr_grad_new(b, x)))
            ->attrs = &behind_first;
}

static bool cut_token(const tr_layer *l, bool held)
{
    (void)l, (void)held;
    return true;
}

const tr_op_def tr_def_class_token = {
    .name = "class_token",
    .doc = "A learned row before those of (rows, features), as ViT's: (rows + 1, features). "
           "Parameter: weight (features), initially normal with deviation 0.02.",
    .learned = true,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_token,
    .cut = cut_token,
    .operands = 2,
    .gradient = token_gradient,
    .channels = TR_CHANNELS_EACH};

const tr_op_def tr_def_class_token_grad = {.name = "class_token.grad"};

const tr_op_def tr_def_class_token_row = {.name = "class_token.row"};

/* ---- One row --------------------------------------------------------------------------------- */

typedef struct {
    tr_resample_attrs a;
    int64_t index;
} select_attrs;

static const tr_field select_fields[] = {
    TR_INT("index", offsetof(select_attrs, index), NULL, -INT32_MAX, INT32_MAX, NULL,
           "which: 0 the first, -1 the last"),
    {0},
};

static tr_status infer_select(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    select_attrs *a = l->attrs;
    tr_status st = TR_OK;
    TR_TRY(take_rows(l));
    const int64_t rows = l->inputs[0].dims[0], at = a->index < 0 ? a->index + rows : a->index;
    if (at < 0 || at >= rows)
        return tr_layer_fail(l, TR_SHAPE, "index %lld: there are %lld rows", (long long)a->index,
                             (long long)rows);
    a->a = (tr_resample_attrs){.kind = TR_RESAMPLE_CONSTANT, .before = {-at, 0}};
    l->output = (tr_shape){.ndim = 1, .dims = {l->inputs[0].dims[1]}};
out:
    return st;
}

static void select_gradient(tr_builder *b, const tr_op *op)
{
    if (tr_grad_wanted(b, op->in[0]))
        tr_build_backward(b, &tr_def_select_grad, op, TR_IDS(tr_grad_of(b, op->out[0])),
                          TR_IDS(tr_grad_new(b, op->in[0])));
}

static bool cut_select(const tr_layer *l, bool held)
{
    const int64_t index = ((const select_attrs *)l->attrs)->index;
    return index >= 0 || (held && index == -1);
}

static int64_t selected(const tr_op *op)
{
    return -((const tr_resample_attrs *)op->attrs)->before[0];
}

const tr_op_def tr_def_select = {
    .name = "select",
    .example = "select: {index: -1}",
    .doc = "One row of (rows, features): (features). The class token is row 0; of a language model "
           "the last row knows all tokens.",
    .fields = select_fields,
    .attrs_size = sizeof(select_attrs),
    .min_in = 1,
    .max_in = 1,
    .infer = infer_select,
    .cut = cut_select,
    .operands = 1,
    .gradient = select_gradient,
    .takes_row = selected,
    .channels = TR_CHANNELS_EACH};

const tr_op_def tr_def_select_grad = {.name = "select.grad"};
