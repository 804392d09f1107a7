/* A row of (rows, features) set in front, the class token (Dosovitskiy et al. 2021), and one row
 * made of all: one of them, or their mean, of those that a sample's length counts. Taking the class
 * token out again is padding by negative numbers, by the kernels of resample.c, which see rows as
 * the height of an image of width 1. */
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

/* ---- One row of all -------------------------------------------------------------------------- */

typedef struct {
    tr_rows_attrs a;
    int64_t index; /* as written */
} rows_attrs;

static const tr_field select_fields[] = {
    TR_INT("index", offsetof(rows_attrs, index), NULL, -INT32_MAX, INT32_MAX, NULL,
           "which: 0 the first, -1 the last; with lengths below 0"),
    {0},
};

static tr_status infer_row(tr_maker *mk, tr_layer *l)
{
    tr_status st = TR_OK;
    TR_TRY(take_rows(l));
    if (l->nin > 1) TR_TRY(tr_layer_lengths(mk, l, 1, l->inputs[0].dims[0], "rows"));
    l->output = (tr_shape){.ndim = 1, .dims = {l->inputs[0].dims[1]}};
out:
    return st;
}

/* Without lengths all samples have the row that an index below 0 means. With them it may be one
 * that none has, as where data.buckets cuts rows off. */
static tr_status infer_select(tr_maker *mk, tr_layer *l)
{
    rows_attrs *a = l->attrs;
    tr_status st = TR_OK;
    TR_TRY(infer_row(mk, l));
    const int64_t rows = l->inputs[0].dims[0], at = a->index < 0 ? a->index + rows : a->index;
    if (l->nin == 1 && (at < 0 || at >= rows))
        return tr_layer_fail(l, TR_SHAPE, "index %lld: there are %lld rows: expected %lld to %lld",
                             (long long)a->index, (long long)rows, -(long long)rows,
                             (long long)rows - 1);
    if (l->nin > 1 && a->index >= 0)
        return tr_layer_fail(l, TR_CONFIG,
                             "index %lld: from the first row on lengths mean nothing: expected an "
                             "index below 0, which counts from a sample's end",
                             (long long)a->index);
    a->a.at = l->nin > 1 ? a->index : at;
out:
    return st;
}

static tr_status infer_mean(tr_maker *mk, tr_layer *l)
{
    ((rows_attrs *)l->attrs)->a.mean = true;
    return infer_row(mk, l);
}

static void row_gradient(tr_builder *b, const tr_op *op)
{
    if (tr_grad_wanted(b, op->in[0]))
        tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0]), op->in[1]),
                          TR_IDS(tr_grad_new(b, op->in[0])));
}

static bool cut_select(const tr_layer *l, bool held)
{
    const int64_t index = ((const rows_attrs *)l->attrs)->index;
    return index >= 0 || l->nin > 1 || (held && index == -1);
}

static bool cut_mean(const tr_layer *l, bool held)
{
    (void)held;
    return l->nin > 1;
}

/* Below 0 with lengths: it is another one of each sample. */
static int64_t selected(const tr_op *op)
{
    return ((const tr_rows_attrs *)op->attrs)->at;
}

/* Of the mean, one for each value of the rows. */
static double flops_rows(const tr_graph *g, const tr_op *op)
{
    const size_t in = g->tensors[op->in[0]].count, out = g->tensors[op->out[0]].count;
    return (double)(in > out ? in : out);
}

#define ROW                                                                                        \
    .attrs_size = sizeof(rows_attrs), .min_in = 1, .max_in = 2, .operands = 2,                     \
    .gradient = row_gradient, .channels = TR_CHANNELS_EACH

const tr_op_def tr_def_select = {
    .name = "select",
    .example = "select: {index: -1}",
    .doc = "One row of (rows, features): (features). The class token is row 0; of a language model "
           "the last row knows all tokens. A second input in `from`, of shape (1), holds the "
           "samples' lengths, 0 to rows: -1 is a sample's last row that counts, and one that it "
           "has not is 0.",
    ROW,
    .fields = select_fields,
    .infer = infer_select,
    .cut = cut_select,
    .takes_row = selected,
    .backward = &tr_def_select_grad};

const tr_op_def tr_def_select_grad = {.name = "select.grad"};

const tr_op_def tr_def_mean_rows = {
    .name = "mean_rows",
    .doc = "The mean of the rows of (rows, features): (features). A second input in `from`, of "
           "shape (1), holds the samples' lengths, 0 to rows: the mean of so many first rows, 0 of "
           "none.",
    ROW,
    .infer = infer_mean,
    .cut = cut_mean,
    .flops = flops_rows,
    .backward = &tr_def_mean_rows_grad};

const tr_op_def tr_def_mean_rows_grad = {.name = "mean_rows.grad", .flops = flops_rows};
