/* A sample's elements in another shape (reshape) or with its dimensions in another order
 * (permute), both as PyTorch counts them: dimensions plain, the last one innermost, however a
 * tensor is stored. Where the stored order stays it is only another view of the same bytes. */
#include "runtime/graph/ops/registry.h"

#include <string.h>

/* Three dimensions are an image, wherever they come from; two that keep the channels of what is
 * stored channels-last are a sequence (channels, length), stored so too. */
static tr_tensor_layout reshaped_layout(const tr_shape *x, const tr_shape *y)
{
    const bool sequence =
        y->ndim == 2 && x->layout == TR_LAYOUT_CHANNELS_LAST && x->dims[0] == y->dims[0];
    return y->ndim == 3 || sequence ? TR_LAYOUT_CHANNELS_LAST : TR_LAYOUT_PLAIN;
}

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0])),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* A tensor's dimensions but the samples, the outermost stored first. */
static int stored_order(const tr_tensor *t, int order[TR_MAX_DIMS])
{
    const bool last = t->layout == TR_LAYOUT_CHANNELS_LAST;
    int n = 0;
    for (int i = last ? 2 : 1; i < t->ndim; i++) order[n++] = i;
    if (last) order[n++] = 1;
    return n;
}

/* Stored as its dimensions are counted. */
static bool in_order(const tr_tensor *t)
{
    return t->layout != TR_LAYOUT_CHANNELS_LAST || t->dims[1] == 1 ||
           t->count == (size_t)(t->dims[0] * t->dims[1]);
}

/* Where a sample's dimension lies in a tensor of samples of so many: the length of a sequence
 * behind a height of 1. */
static int dim_of(const tr_tensor *t, int sample, int i)
{
    return i == 2 && sample == 2 && t->layout == TR_LAYOUT_CHANNELS_LAST ? 3 : i;
}

/* For what an op writes: the dimension of what it reads that each dimension is; false: a reshape.
 * A sequence's height is the samples. */
static bool source_of(const tr_op *op, const tr_tensor *x, const tr_tensor *y,
                      int source[TR_MAX_DIMS])
{
    const tr_permute_attrs *a = op->attrs;
    int sample = 1;
    if (op->def == &tr_def_reshape || op->def == &tr_def_reshape_grad) return false;
    while (sample < TR_MAX_DIMS - 1 && a->dims[sample + 1]) sample++;
    for (int i = 0; i < TR_MAX_DIMS; i++) source[i] = 0;
    for (int i = 1; i <= sample; i++) {
        const int from = (int)a->dims[i];
        if (op->def == &tr_def_permute)
            source[dim_of(y, sample, i)] = dim_of(x, sample, from);
        else
            source[dim_of(y, sample, from)] = dim_of(x, sample, i);
    }
    return true;
}

static size_t product(const tr_tensor *t, const int *order, int n)
{
    size_t all = 1;
    for (int i = 0; i < n; i++) all *= (size_t)t->dims[order[i]];
    return all;
}

/* Dimensions of one place set aside. */
static int thicker(const tr_tensor *x, int *order, int n)
{
    int left = 0;
    for (int i = 0; i < n; i++)
        if (x->dims[order[i]] != 1) order[left++] = order[i];
    return left;
}

/* The stored order turned at one point. */
static bool turned(const tr_tensor *x, const tr_tensor *y, const int *source, tr_transposition *t)
{
    int a[TR_MAX_DIMS], b[TR_MAX_DIMS] = {0}, n = stored_order(x, a), cut = 0;
    const int thick = thicker(y, b, stored_order(y, b));
    for (int i = 0; i < thick; i++) b[i] = source[b[i]];
    n = thicker(x, a, n);
    while (cut < n && a[cut] != b[0]) cut++;
    for (int i = 0; i < n; i++)
        if (b[i] != a[(cut + i) % n]) return false;
    t->rows = product(x, a, cut);
    t->cols = product(x, a + cut, n - cut);
    return true;
}

bool tr_rearrange_of(const tr_graph *g, const tr_op *op, tr_transposition *out)
{
    const tr_tensor *x = &g->tensors[op->in[0]], *y = &g->tensors[op->out[0]];
    int source[TR_MAX_DIMS];
    tr_transposition t = {.samples = (size_t)x->dims[0], .rows = 1};
    const size_t count = x->count / (t.samples ? t.samples : 1);
    t.cols = count;
    *out = t;
    if (source_of(op, x, y, source)) {
        out->rows = out->cols = 1;
        return turned(x, y, source, out);
    }
    const bool from = !in_order(x), to = !in_order(y);
    if (from && to) return x->dims[1] == y->dims[1]; /* of equally many channels: nothing moves */
    if (from || to) {
        const size_t channels = (size_t)(from ? x : y)->dims[1];
        out->rows = from ? count / channels : channels;
        out->cols = from ? channels : count / channels;
    }
    return true;
}

void tr_rearrange_table(const tr_graph *g, const tr_op *op, int32_t *table)
{
    const tr_tensor *x = &g->tensors[op->in[0]], *y = &g->tensors[op->out[0]];
    int source[TR_MAX_DIMS], order[TR_MAX_DIMS];
    size_t step[TR_MAX_DIMS] = {0},
           at[TR_MAX_DIMS] = {0}; /* elements of x from one place on to the next */
    const bool permutes = source_of(op, x, y, source);
    const size_t count = x->count / (size_t)(x->dims[0] ? x->dims[0] : 1);
    int n = stored_order(x, order);
    for (size_t i = (size_t)n, all = 1; i-- > 0; all *= (size_t)x->dims[order[i]])
        step[order[i]] = all;
    n = stored_order(y, order);
    for (size_t i = 0; i < count; i++) {
        size_t from = 0, flat = 0;
        for (int d = 1; d < y->ndim; d++) {
            flat = flat * (size_t)y->dims[d] + at[d];
            if (permutes) from += at[d] * step[source[d]];
        }
        for (int d = x->ndim - 1; d > 0 && !permutes; flat /= (size_t)x->dims[d--])
            from += flat % (size_t)x->dims[d] * step[d];
        table[i] = (int32_t)from;
        for (int d = n - 1; d >= 0 && ++at[order[d]] == (size_t)y->dims[order[d]]; d--)
            at[order[d]] = 0;
    }
}

static bool view(const tr_graph *g, const tr_op *op)
{
    tr_transposition t;
    return tr_rearrange_of(g, op, &t) && (t.rows == 1 || t.cols == 1);
}

static tr_status check_count(const tr_layer *l)
{
    size_t count;
    if (tr_shape_count(&l->inputs[0], &count) && count <= INT32_MAX) return TR_OK;
    return tr_layer_fail(l, TR_SHAPE, "its input is too large");
}

/* ---- Reshape --------------------------------------------------------------------------------- */

typedef struct {
    tr_ints dims;
} reshape_attrs;

static const tr_field reshape_fields[] = {
    TR_INTS("dims", offsetof(reshape_attrs, dims), NULL, -1, INT32_MAX, NULL,
            "of one sample: [channels, height, width]; one of them may be -1: what is left"),
    {0},
};

static tr_status infer_reshape(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    const tr_ints *dims = &((const reshape_attrs *)l->attrs)->dims;
    size_t count = 0, all = 1;
    int open = -1;
    tr_status st = TR_OK;
    TR_TRY(check_count(l));
    if (dims->count > TR_MAX_DIMS - 1) {
        st = tr_layer_fail(l, TR_SHAPE, "a sample has at most %d dimensions", TR_MAX_DIMS - 1);
        goto out;
    }
    tr_shape_count(&l->inputs[0], &count);
    l->output = (tr_shape){.ndim = (int)dims->count};
    bool fits = true;
    for (int i = 0; i < l->output.ndim; i++) {
        l->output.dims[i] = dims->v[i];
        if (dims->v[i] == -1 && open < 0)
            open = i;
        else
            fits = fits && dims->v[i] > 0 && tr_mul_size(all, (size_t)dims->v[i], &all);
    }
    fits = fits && (open >= 0 ? count % all == 0 : count == all);
    if (fits && open >= 0) l->output.dims[open] = (int64_t)(count / all);
    l->output.layout = reshaped_layout(&l->inputs[0], &l->output);
    char a[TR_SHAPE_TEXT], b[TR_SHAPE_TEXT];
    if (!fits)
        st = tr_layer_fail(l, TR_SHAPE, "%s cannot be reshaped to %s",
                           tr_shape_text(&l->inputs[0], a), tr_shape_text(&l->output, b));
out:
    return st;
}

static bool same_shape(const tr_layer *l)
{
    return tr_shape_equal(&l->inputs[0], &l->output);
}

static void dims_option(const int64_t *dims, int n, tr_merged *out)
{
    char *to = out->options[out->noptions++];
    const size_t size = sizeof out->options[0];
    size_t at = (size_t)snprintf(to, size, "dims=[");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(to + at, size - at, "%s%lld", i ? ", " : "", (long long)dims[i]);
    snprintf(to + at, size - at, "]");
}

/* Only the last shape counts, if it is stored the same of the first one's input. */
static bool reshape_merged(const tr_layer *first, const tr_layer *second, tr_merged *out)
{
    if ((first->def != &tr_def_reshape && first->def != &tr_def_flatten) ||
        reshaped_layout(&first->inputs[0], &second->output) != second->output.layout)
        return false;
    dims_option(second->output.dims, second->output.ndim, out);
    return true;
}

const tr_op_def tr_def_reshape = {
    .name = "reshape",
    .example = "reshape: {dims: [64, -1]}",
    .doc =
        "A sample's elements, in PyTorch's order, as another shape. Three dimensions are an image.",
    .fields = reshape_fields,
    .attrs_size = sizeof(reshape_attrs),
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_EITHER,
    .infer = infer_reshape,
    .operands = 1,
    .gradient = gradient,
    .backward = &tr_def_reshape_grad,
    .share = TR_SHARE_VIEW,
    .moves = true,
    .same = same_shape,
    .merged = reshape_merged,
    .view = view};

const tr_op_def tr_def_reshape_grad = {
    .name = "reshape.grad", .share = TR_SHARE_VIEW, .view = view};

const tr_op_def *tr_op_same_elements(void)
{
    return &tr_def_reshape;
}

/* ---- Permute --------------------------------------------------------------------------------- */

typedef struct {
    tr_permute_attrs a;
    tr_ints dims;
} permute_attrs;

static const tr_field permute_fields[] = {
    TR_INTS(
        "dims", offsetof(permute_attrs, dims), NULL, 1, TR_MAX_DIMS - 1, NULL,
        "for each dimension of the result that of the input, counted as PyTorch's permute does: "
        "0 would be the samples; [2, 3, 1] makes (height, width, channels)"),
    {0},
};

static tr_status infer_permute(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    permute_attrs *a = l->attrs;
    const tr_shape *x = &l->inputs[0];
    unsigned seen = 0;
    tr_status st = TR_OK;
    TR_TRY(check_count(l));
    for (size_t i = 0; i < a->dims.count && (int)i < x->ndim; i++) {
        a->a.dims[1 + i] = a->dims.v[i];
        seen |= 1u << a->dims.v[i];
        if (a->dims.v[i] <= x->ndim) l->output.dims[i] = x->dims[a->dims.v[i] - 1];
    }
    l->output.layout = x->ndim == 3 ? TR_LAYOUT_CHANNELS_LAST : TR_LAYOUT_PLAIN;
    char text[TR_SHAPE_TEXT];
    if ((int)a->dims.count != x->ndim || seen != (1u << (x->ndim + 1)) - 2)
        st = tr_layer_fail(l, TR_CONFIG, "dims: expected each of 1 to %d once for samples of %s",
                           x->ndim, tr_shape_text(x, text));
out:
    return st;
}

static bool same_order(const tr_layer *l)
{
    const tr_permute_attrs *a = l->attrs;
    bool same = tr_shape_equal(&l->inputs[0], &l->output);
    for (int i = 0; i < l->output.ndim; i++) same = same && a->dims[1 + i] == 1 + i;
    return same;
}

static bool permute_merged(const tr_layer *first, const tr_layer *second, tr_merged *out)
{
    const tr_permute_attrs *a = first->attrs, *b = second->attrs;
    int64_t dims[TR_MAX_DIMS] = {0};
    if (first->def != &tr_def_permute) return false;
    for (int i = 0; i < second->output.ndim; i++) dims[i] = a->dims[b->dims[1 + i]];
    dims_option(dims, second->output.ndim, out);
    return true;
}

/* Channels stay channels. */
static bool keeps_channels(const tr_layer *l)
{
    const tr_permute_attrs *a = l->attrs;
    const bool image = l->inputs[0].layout == TR_LAYOUT_CHANNELS_LAST;
    const int axis = image ? 1 : l->output.ndim;
    return l->inputs[0].layout == l->output.layout && a->dims[axis] == axis;
}

static tr_channels channels(const tr_layer *l)
{
    return keeps_channels(l) ? TR_CHANNELS_EACH : TR_CHANNELS_MIXED;
}

static unsigned commutes(const tr_layer *l)
{
    return keeps_channels(l) ? TR_COMMUTES_ALL : 0;
}

const tr_op_def tr_def_permute = {
    .name = "permute",
    .example = "permute: {dims: [2, 3, 1]}",
    .doc = "A sample's dimensions in another order. Three dimensions are an image.",
    .fields = permute_fields,
    .attrs_size = sizeof(permute_attrs),
    .min_in = 1,
    .max_in = 1,
    .sequence = TR_SEQUENCE_EITHER,
    .infer = infer_permute,
    .operands = 1,
    .gradient = gradient,
    .backward = &tr_def_permute_grad,
    .share = TR_SHARE_VIEW,
    .moves = true,
    .channels_of = channels,
    .commutes_of = commutes,
    .same = same_order,
    .merged = permute_merged,
    .view = view};

const tr_op_def tr_def_permute_grad = {
    .name = "permute.grad", .share = TR_SHARE_VIEW, .view = view};
