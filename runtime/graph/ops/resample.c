/* Images of another size, made of weighted sums of places: adaptive average pooling, padding,
 * upsampling. Rows and columns go apart, so two short lists of taps say it all; the gradient's
 * lists are theirs turned around. */
#include "runtime/graph/ops/registry.h"

#include <math.h>

#include "runtime/base/numbers.h"

/* ---- Taps ------------------------------------------------------------------------------------ */

/* Contiguous places that one place of the result is made of; all weights are the first, but the
 * last. */
typedef struct {
    int64_t begin, end;
    float first, last;
} window;

/* As PyTorch finds them, in float32 (aten/src/ATen/native/UpSample.h). */
static window nearest(int64_t size, int64_t result, int64_t o)
{
    const float scale = (float)size / (float)result;
    int64_t at = (int64_t)floorf((float)o * scale);
    if (at > size - 1) at = size - 1;
    return (window){at, at + 1, 1, 1};
}

static window bilinear(int64_t size, int64_t result, bool align_corners, int64_t o)
{
    float at;
    if (align_corners)
        at = result > 1 ? (float)o * ((float)(size - 1) / (float)(result - 1)) : 0;
    else
        at = ((float)o + 0.5f) * ((float)size / (float)result) - 0.5f;
    if (at < 0) at = 0;
    int64_t low = (int64_t)at;
    if (low > size - 1) low = size - 1;
    const float part = at - (float)low;
    if (low == size - 1 || part <= 0) return (window){low, low + 1, 1, 1};
    return (window){low, low + 2, 1 - part, part};
}

static window padded(const tr_resample_attrs *a, int axis, int64_t size, int64_t o)
{
    int64_t at = o - a->before[axis];
    const bool outside = at < 0 || at >= size;
    if (outside && a->kind == TR_RESAMPLE_CONSTANT) return (window){0, 0, 0, 0};
    if (outside && a->kind == TR_RESAMPLE_REPLICATE) at = at < 0 ? 0 : size - 1;
    if (outside && a->kind == TR_RESAMPLE_REFLECT) at = at < 0 ? -at : 2 * (size - 1) - at;
    return (window){at, at + 1, 1, 1};
}

static window window_of(const tr_resample_attrs *a, int axis, int64_t size, int64_t result,
                        int64_t o)
{
    if (a->kind == TR_RESAMPLE_NEAREST) return nearest(size, result, o);
    if (a->kind == TR_RESAMPLE_BILINEAR) return bilinear(size, result, a->align_corners, o);
    if (a->kind != TR_RESAMPLE_AVERAGE) return padded(a, axis, size, o);
    const int64_t begin = o * size / result, end = ((o + 1) * size + result - 1) / result;
    return (window){begin, end, 1 / (float)(end - begin), 1 / (float)(end - begin)};
}

static float weight_at(const window *w, int64_t i)
{
    return i == w->end - 1 ? w->last : w->first;
}

static bool is_gradient(const tr_op *op)
{
    return op->def == &tr_def_adaptive_avgpool2d_grad || op->def == &tr_def_pad_grad ||
           op->def == &tr_def_upsample_grad || op->def == &tr_def_select_grad;
}

tr_status tr_resample_taps(const tr_graph *g, const tr_op *op, int axis, tr_taps *out)
{
    const tr_resample_attrs *a = op->attrs;
    const bool back = is_gradient(op);
    const int64_t read = tr_places_of(&g->tensors[op->in[0]]).size[axis],
                  written = tr_places_of(&g->tensors[op->out[0]]).size[axis];
    const int64_t size = back ? written : read, result = back ? read : written;
    tr_taps t = {.size = (size_t)written};
    size_t heads = (t.size + 2) / 2 * 2; /* the taps behind them are aligned */
    for (int64_t o = 0; o < result; o++) {
        const window w = window_of(a, axis, size, result, o);
        t.count += (size_t)(w.end - w.begin);
    }
    if (t.size > INT32_MAX - 2 || t.count > INT32_MAX)
        return TR_FAIL(TR_UNSUPPORTED, "layer %s: an image of %zu places a side", op->layer,
                       t.size);
    t.begin = tr_alloc(TR_MEM_OTHER, heads + 2 * t.count, sizeof *t.begin);
    if (!t.begin) return tr_last_status();
    t.taps = (tr_tap *)(t.begin + heads);
    /* how many each has, one place later; where each begins; and, as they are filled in, ends */
    for (int64_t o = 0; o < result; o++) {
        const window w = window_of(a, axis, size, result, o);
        for (int64_t i = w.begin; i < w.end; i++) t.begin[(back ? i : o) + 1]++;
    }
    for (size_t i = 0; i < t.size; i++) t.begin[i + 1] += t.begin[i];
    for (int64_t o = 0; o < result; o++) {
        const window w = window_of(a, axis, size, result, o);
        for (int64_t i = w.begin; i < w.end; i++)
            t.taps[t.begin[back ? i : o]++] = (tr_tap){(int32_t)(back ? o : i), weight_at(&w, i)};
    }
    for (size_t i = t.size; i > 0; i--) t.begin[i] = t.begin[i - 1];
    t.begin[0] = 0;
    *out = t;
    return TR_OK;
}

float tr_resample_value(const tr_op *op)
{
    const tr_resample_attrs *a = op->attrs;
    return is_gradient(op) || a->kind != TR_RESAMPLE_CONSTANT ? 0 : (float)a->value;
}

/* ---- What the three share -------------------------------------------------------------------- */

static void gradient(tr_builder *b, const tr_op *op)
{
    if (!tr_grad_wanted(b, op->in[0])) return;
    tr_build_backward(b, op->def->backward, op, TR_IDS(tr_grad_of(b, op->out[0])),
                      TR_IDS(tr_grad_new(b, op->in[0])));
}

/* One operation for each place of the larger side. */
static double flops(const tr_graph *g, const tr_op *op)
{
    const size_t in = g->tensors[op->in[0]].count, out = g->tensors[op->out[0]].count;
    return (double)(in > out ? in : out);
}

/* Of equal sizes each window is one place; a pad of equal size might still move. */
static bool same(const tr_layer *l)
{
    const tr_resample_attrs *a = l->attrs;
    return tr_shape_equal(&l->inputs[0], &l->output) && a->before[0] == 0 && a->before[1] == 0;
}

#define RESAMPLE(op_name, text, ...)                                                               \
    {                                                                                              \
        .name = op_name, .doc = text, .min_in = 1, .max_in = 1, .operands = 1,                     \
        .gradient = gradient, .flops = flops, .channels = TR_CHANNELS_EACH, .same = same,          \
        __VA_ARGS__                                                                                \
    }

/* ---- Adaptive average pooling ---------------------------------------------------------------- */

typedef struct {
    tr_resample_attrs a;
    tr_ints out;
} adaptive_attrs;

static const tr_field adaptive_fields[] = {
    TR_INTS("out", offsetof(adaptive_attrs, out), NULL, 1, INT16_MAX, "pixels",
            "the result's size: one, or [height, width]"),
    {0},
};

static tr_status infer_adaptive(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    adaptive_attrs *a = l->attrs;
    int64_t out[2];
    tr_status st = TR_OK;
    TR_TRY(tr_layer_image(l));
    TR_TRY(tr_layer_pair(l, "out", &a->out, out));
    a->a.kind = TR_RESAMPLE_AVERAGE;
    for (int i = 0; i < 2; i++) l->output.dims[1 + i] = out[i];
out:
    return st;
}

static const tr_op_def *plain_adaptive(const tr_layer *l)
{
    return l->output.dims[1] == 1 && l->output.dims[2] == 1 ? &tr_def_global_avgpool : NULL;
}

const tr_op_def tr_def_adaptive_avgpool2d =
    RESAMPLE("adaptive_avgpool2d",
             "Averages of windows that are chosen for the result's size, as PyTorch's "
             "AdaptiveAvgPool2d: from `floor(i * size / out)` to `ceil((i + 1) * size / out)`.",
             .example = "adaptive_avgpool2d: {out: [4, 4]}", .fields = adaptive_fields,
             .attrs_size = sizeof(adaptive_attrs), .infer = infer_adaptive,
             .backward = &tr_def_adaptive_avgpool2d_grad, .commutes = TR_COMMUTES_ALL,
             .plain = plain_adaptive);

const tr_op_def tr_def_adaptive_avgpool2d_grad = {.name = "adaptive_avgpool2d.grad",
                                                  .flops = flops};

/* ---- Padding --------------------------------------------------------------------------------- */

typedef struct {
    tr_resample_attrs a;
    tr_ints padding;
    int mode;
} pad_attrs;

static const char *const pad_modes[] = {"constant", "reflect", "replicate", NULL};
static const tr_field pad_fields[] = {
    TR_INTS("padding", offsetof(pad_attrs, padding), NULL, -INT16_MAX, INT16_MAX, "pixels",
            "[left, right, top, bottom], as PyTorch's F.pad, or one for all sides; a negative one "
            "cuts off"),
    TR_CHOICE("mode", offsetof(pad_attrs, mode), pad_modes, "constant",
              "constant: `value`; reflect: the image, mirrored at its outermost pixels; replicate: "
              "the outermost pixels"),
    TR_REAL("value", offsetof(pad_attrs, a.value), "0", -1e30, 1e30, NULL, "of mode constant"),
    {0},
};

static tr_status infer_pad(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    pad_attrs *a = l->attrs;
    const tr_ints *p = &a->padding;
    tr_status st = TR_OK;
    TR_TRY(tr_layer_image(l));
    if (p->count != 1 && p->count != 4) {
        st = tr_layer_fail(l, TR_CONFIG,
                           "padding: one number or [left, right, top, bottom], not %zu numbers",
                           p->count);
        goto out;
    }
    a->a.kind = TR_RESAMPLE_CONSTANT + a->mode;
    for (int i = 0; i < 2; i++) {
        const int64_t before = p->v[p->count == 1 ? 0 : 2 - 2 * i],
                      after = p->v[p->count == 1 ? 0 : 3 - 2 * i], size = l->inputs[0].dims[1 + i];
        if (a->a.kind == TR_RESAMPLE_REFLECT && (before >= size || after >= size)) {
            st = tr_layer_fail(l, TR_SHAPE, "%lld pixels cannot be reflected %lld times",
                               (long long)size, (long long)(before > after ? before : after));
            goto out;
        }
        a->a.before[i] = before;
        l->output.dims[1 + i] = size + before + after;
        if (l->output.dims[1 + i] >= 1) continue;
        st = tr_layer_fail(l, TR_SHAPE, "nothing is left of %lld pixels", (long long)size);
        goto out;
    }
out:
    return st;
}

/* Pixels put on a side, 0 to 3: top, bottom, left, right; below 0: cut off. */
static int64_t put_on(const tr_layer *l, int side)
{
    const tr_resample_attrs *a = l->attrs;
    const int axis = side / 2;
    return side % 2 ? l->output.dims[1 + axis] - l->inputs[0].dims[1 + axis] - a->before[axis]
                    : a->before[axis];
}

static bool puts_any(const tr_layer *l)
{
    bool any = false;
    for (int side = 0; side < 4; side++) any = any || put_on(l, side) > 0;
    return any;
}

/* What the second one puts there is what the first would have put there, had it put more. What
 * mirrors mirrors more than the image then, where another did so before. */
static bool continues(const tr_layer *first, const tr_layer *second)
{
    const pad_attrs *a = first->attrs, *b = second->attrs;
    if (!puts_any(first) || !puts_any(second)) return true;
    return a->a.kind == b->a.kind && a->a.kind != TR_RESAMPLE_REFLECT &&
           (a->a.kind != TR_RESAMPLE_CONSTANT || a->a.value == b->a.value);
}

static bool pad_merged(const tr_layer *first, const tr_layer *second, tr_merged *out)
{
    if (first->def != &tr_def_pad || !continues(first, second)) return false;
    const pad_attrs *says = puts_any(first) ? first->attrs : second->attrs;
    int64_t sum[4];
    for (int side = 0; side < 4; side++) {
        /* pixels that were cut off do not come back */
        if (put_on(first, side) < 0 && put_on(second, side) > 0) return false;
        sum[side] = put_on(first, side) + put_on(second, side);
        if (sum[side] > INT16_MAX || sum[side] < -INT16_MAX) return false;
    }
    char number[32];
    out->noptions = 3;
    snprintf(out->options[0], sizeof out->options[0], "padding=[%lld, %lld, %lld, %lld]",
             (long long)sum[2], (long long)sum[3], (long long)sum[0], (long long)sum[1]);
    snprintf(out->options[1], sizeof out->options[1], "mode=%s", pad_modes[says->mode]);
    snprintf(out->options[2], sizeof out->options[2], "value=%s",
             tr_format_real(says->a.value, number));
    return true;
}

bool tr_layer_zeros_around(const tr_layer *l, int64_t around[4])
{
    const tr_resample_attrs *a = l->attrs;
    if (l->def != &tr_def_pad || a->kind != TR_RESAMPLE_CONSTANT || a->value != 0) return false;
    for (int side = 0; side < 4; side++) {
        around[side] = put_on(l, side);
        if (around[side] < 0) return false;
    }
    return true;
}

/* Zeros are scaled, too, but not shifted. */
static unsigned commutes_pad(const tr_layer *l)
{
    const tr_resample_attrs *a = l->attrs;
    if (a->kind != TR_RESAMPLE_CONSTANT) return TR_COMMUTES_ALL;
    return a->value == 0 ? TR_COMMUTES_POSITIVE | TR_COMMUTES_SCALE : 0;
}

const tr_op_def tr_def_pad =
    RESAMPLE("pad", "Pixels put around an image, or cut off.",
             .example = "pad: {padding: [1, 1, 2, 2], mode: reflect}", .fields = pad_fields,
             .attrs_size = sizeof(pad_attrs), .infer = infer_pad, .backward = &tr_def_pad_grad,
             .commutes_of = commutes_pad, .merged = pad_merged);

const tr_op_def tr_def_pad_grad = {.name = "pad.grad", .flops = flops};

/* ---- Upsampling ------------------------------------------------------------------------------ */

typedef struct {
    tr_resample_attrs a;
    tr_ints scale, size;
    int mode;
} upsample_attrs;

static const char *const upsample_modes[] = {"nearest", "bilinear", NULL};
static const tr_field upsample_fields[] = {
    TR_INTS("scale", offsetof(upsample_attrs, scale), "", 1, INT16_MAX, NULL,
            "times the input's size: one factor, or [height, width]"),
    TR_INTS("size", offsetof(upsample_attrs, size), "", 1, INT16_MAX, "pixels",
            "instead of `scale`: the result's size, [height, width]"),
    TR_CHOICE("mode", offsetof(upsample_attrs, mode), upsample_modes, "nearest",
              "where pixels come from"),
    TR_BOOL("align_corners", offsetof(upsample_attrs, a.align_corners), "false",
            "bilinear: the corners' centers meet; else their edges do"),
    {0},
};

static tr_status infer_upsample(tr_maker *mk, tr_layer *l)
{
    (void)mk;
    upsample_attrs *a = l->attrs;
    const bool by_scale = a->scale.count > 0;
    int64_t pair[2];
    tr_status st = TR_OK;
    TR_TRY(tr_layer_image(l));
    if (by_scale == (a->size.count > 0)) {
        st = tr_layer_fail(l, TR_CONFIG, "it takes either scale or size");
        goto out;
    }
    if (a->a.align_corners && a->mode == 0) {
        st = tr_layer_fail(l, TR_CONFIG, "align_corners is of mode bilinear");
        goto out;
    }
    TR_TRY(tr_layer_pair(l, by_scale ? "scale" : "size", by_scale ? &a->scale : &a->size, pair));
    a->a.kind = TR_RESAMPLE_NEAREST + a->mode;
    for (int i = 0; i < 2; i++)
        l->output.dims[1 + i] = by_scale ? l->inputs[0].dims[1 + i] * pair[i] : pair[i];
out:
    return st;
}

const tr_op_def tr_def_upsample =
    RESAMPLE("upsample", "An image of another size, as PyTorch's Upsample.",
             .example = "upsample: {scale: 2, mode: bilinear}", .fields = upsample_fields,
             .attrs_size = sizeof(upsample_attrs), .infer = infer_upsample,
             .backward = &tr_def_upsample_grad, .commutes = TR_COMMUTES_ALL);

const tr_op_def tr_def_upsample_grad = {.name = "upsample.grad", .flops = flops};
