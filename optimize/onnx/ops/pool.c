/* Pooling: MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool, ReduceMax, ReduceMean. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

void tr_onnx_write_window(tr_onnx_writer *w, tr_onnx_node *n, bool line, const int64_t kernel[2],
                          const int64_t stride[2], const int64_t padding[2], const int64_t extra[2])
{
    const size_t axes = line ? 1 : 2;
    int64_t pads[4];
    for (size_t i = 0; i < axes; i++) {
        pads[i] = padding[line + i];
        pads[axes + i] = padding[line + i] + extra[line + i];
    }
    tr_onnx_ints(w, n, "kernel_shape", axes, kernel + line);
    tr_onnx_ints(w, n, "strides", axes, stride + line);
    tr_onnx_ints(w, n, "pads", 2 * axes, pads);
}

static tr_onnx_node *write_window(tr_onnx_writer *w, const char *type, const tr_layer *l,
                                  const char *in, const char *out)
{
    const tr_pool2d_attrs *a = l->attrs;
    tr_onnx_node *n = tr_onnx_add(w, type, NULL, TR_NAMES(in), out, NULL);
    tr_onnx_write_window(w, n, l->inputs[0].ndim == 2, a->kernel, a->stride, a->padding, a->extra);
    if (a->ceil_mode) tr_onnx_int(w, n, "ceil_mode", 1);
    return n;
}

static void write_max(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    write_window(w, "MaxPool", l, in[0], out);
}

static void write_average(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                          const char *out)
{
    const tr_pool2d_attrs *a = l->attrs;
    tr_onnx_int(w, write_window(w, "AveragePool", l, in[0], out), "count_include_pad",
                a->count_include_pad);
}

static void write_global_max(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                             const char *out)
{
    (void)l;
    tr_onnx_add(w, "GlobalMaxPool", NULL, TR_NAMES(in[0]), out, NULL);
}

static void write_global(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    (void)l;
    tr_onnx_add(w, "GlobalAveragePool", NULL, TR_NAMES(in[0]), out, NULL);
}

static const tr_onnx_layer layers[] = {
    {.layer = "maxpool1d", .write = write_max},
    {.layer = "avgpool1d", .write = write_average},
    {.layer = "maxpool2d", .write = write_max},
    {.layer = "avgpool2d", .write = write_average},
    {.layer = "global_maxpool", .write = write_global_max, .columns = true},
    {.layer = "global_avgpool", .write = write_global, .columns = true},
    {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

enum { WIDEST = INT16_MAX };

/* A pair; absent: `otherwise` for both. Of a sequence one number, and 1 for the height. */
static bool pair(const tr_onnx_step *s, const char *name, bool line, int64_t otherwise,
                 int64_t least, int64_t out[2])
{
    out[0] = 1;
    const int n = tr_onnx_get_ints(s, name, line ? 1 : 2, out + line);
    if (n < 0) out[0] = out[1] = otherwise;
    if (line) out[0] = 1;
    for (int i = 0; i < 2; i++)
        if (out[i] < least || out[i] > WIDEST) return false;
    return n < 0 || n == (line ? 1 : 2);
}

/* Height, or a sequence's 1, and width or length. */
static int64_t size_of(const tr_shape *x, int axis)
{
    const int at = x->ndim - 2 + axis;
    return at > 0 ? x->dims[at] : 1;
}

/* top, left, bottom, right */
static bool pads_of(const tr_onnx_step *s, const tr_shape *x, const tr_onnx_window *w,
                    int64_t pads[4])
{
    const bool upper = tr_onnx_is(s, "auto_pad", "SAME_UPPER", false);
    if (!upper && !tr_onnx_is(s, "auto_pad", "SAME_LOWER", false)) {
        const int n = tr_onnx_get_ints(s, "pads", w->line ? 2 : 4, pads);
        if (n < 0) memset(pads, 0, 4 * sizeof *pads);
        if (n == 2 && w->line) pads[3] = pads[1], pads[1] = pads[0], pads[0] = pads[2] = 0;
        return n < 0 || n == (w->line ? 2 : 4);
    }
    for (int i = 0; i < 2; i++) {
        const int64_t span = w->dilation[i] * (w->kernel[i] - 1) + 1, size = size_of(x, i);
        const int64_t last = size > 0 ? (size - 1) / w->stride[i] * w->stride[i] : 0;
        const int64_t all = last + span > size ? last + span - size : 0;
        pads[i] = upper ? all / 2 : all - all / 2;
        pads[2 + i] = all - pads[i];
    }
    return true;
}

/* Whether windows that are counted up are more than those that fit. */
static bool is_more(const tr_onnx_window *w, const tr_shape *x, int i)
{
    const int64_t size = size_of(x, i), room = size + 2 * w->padding[i] - w->kernel[i];
    /* the last one must begin before the padding at the end */
    return room % w->stride[i] != 0 &&
           (room / w->stride[i] + 1) * w->stride[i] < size + w->padding[i];
}

/* Whether layers have such pads: as many at both ends, or one more at the end for `same`. */
static bool fits(tr_onnx_window *w, const int64_t pads[4])
{
    bool all = true;
    for (int i = 0; i < 2; i++) {
        const int64_t span = w->dilation[i] * (w->kernel[i] - 1);
        w->padding[i] = pads[i];
        w->same[i] =
            w->stride[i] == 1 && span % 2 == 1 && pads[i] == span / 2 && pads[2 + i] == pads[i] + 1;
        all = all && (w->same[i] || pads[i] == pads[2 + i]);
    }
    return all;
}

bool tr_onnx_window_of(tr_onnx_reader *r, const tr_onnx_step *s, int *x, const int64_t padded[4],
                       bool zeros, tr_onnx_window *w)
{
    int64_t pads[4];
    tr_shape of = tr_onnx_shape(r, *x);
    const bool line = w->line = of.ndim == 2;
    bool good = (line || of.layout == TR_LAYOUT_CHANNELS_LAST) &&
                pair(s, "kernel_shape", line, 0, w->kernel[0] ? 0 : 1, pads) &&
                pair(s, "strides", line, 1, 1, w->stride) &&
                pair(s, "dilations", line, 1, 1, w->dilation);
    for (int i = 0; i < 2 && good; i++) {
        if (w->kernel[i] == 0) w->kernel[i] = pads[i];
        good = w->kernel[i] >= 1 && w->kernel[i] <= WIDEST;
    }
    good = good && pads_of(s, &of, w, pads);
    for (int i = 0; i < 4 && good; i++) {
        good = pads[i] >= 0 && pads[i] <= WIDEST && padded[i] >= 0 && padded[i] <= WIDEST;
        pads[i] += good ? padded[i] : 0;
    }
    if (!good) {
        tr_onnx_refuse(
            r, s,
            "windows other than over the two dimensions of an image or the length of a sequence");
        return false;
    }
    if (!fits(w, pads)) {
        if (!zeros || line) {
            tr_onnx_refuse(r, s, "pads (%lld, %lld, %lld, %lld) differ at the two ends",
                           (long long)pads[0], (long long)pads[1], (long long)pads[2],
                           (long long)pads[3]);
            return false;
        }
        if (!tr_onnx_make_pad(r, s, pads, *x, x)) return false;
        of = tr_onnx_shape(r, *x);
        for (int i = 0; i < 2; i++) w->padding[i] = w->same[i] = 0;
    }
    if (tr_onnx_get_int(s, "ceil_mode", 0) != 0) w->ceil = is_more(w, &of, 0) || is_more(w, &of, 1);
    return true;
}

const char *tr_onnx_padding_text(const tr_onnx_window *w, char text[TR_ONNX_PADDING])
{
    char side[2][TR_ONNX_PADDING / 2 - 4];
    for (int i = 0; i < 2; i++)
        if (w->same[i])
            snprintf(side[i], sizeof side[i], "same");
        else
            snprintf(side[i], sizeof side[i], "%lld", (long long)w->padding[i]);
    if (w->line)
        snprintf(text, TR_ONNX_PADDING, "%s", side[1]);
    else
        snprintf(text, TR_ONNX_PADDING, "[%s, %s]", side[0], side[1]);
    return text;
}

const char *tr_onnx_sizes_text(const tr_onnx_window *w, const int64_t v[2],
                               char text[TR_ONNX_PADDING])
{
    if (w->line)
        snprintf(text, TR_ONNX_PADDING, "%lld", (long long)v[1]);
    else
        snprintf(text, TR_ONNX_PADDING, "[%lld, %lld]", (long long)v[0], (long long)v[1]);
    return text;
}

static const char *make_window(tr_onnx_reader *r, const tr_onnx_step *s, const char *type, int x,
                               const tr_onnx_window *w, const char *more, int *value)
{
    char padding[TR_ONNX_PADDING], kernel[TR_ONNX_PADDING], stride[TR_ONNX_PADDING];
    return tr_onnx_make(r, s, type, -1, 1, &x, value, "{kernel: %s, stride: %s, padding: %s%s%s}",
                        tr_onnx_sizes_text(w, w->kernel, kernel),
                        tr_onnx_sizes_text(w, w->stride, stride), tr_onnx_padding_text(w, padding),
                        w->ceil ? ", ceil_mode: true" : "", more);
}

static bool is_dense(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_window *w)
{
    if (w->dilation[0] == 1 && w->dilation[1] == 1 && 2 * w->padding[0] <= w->kernel[0] &&
        2 * w->padding[1] <= w->kernel[1])
        return true;
    tr_onnx_refuse(r, s, "windows with gaps, or padding over half of the kernel");
    return false;
}

static void read_max(tr_onnx_reader *r, const tr_onnx_step *s)
{
    static const int64_t none[4] = {0};
    tr_onnx_window w = {.ceil = false};
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (!tr_onnx_window_of(r, s, &x, none, false, &w) || !is_dense(r, s, &w)) return;
    if (make_window(r, s, w.line ? "maxpool1d" : "maxpool2d", x, &w, "", &value))
        tr_onnx_give(r, s, value);
}

/* Windows of one pixel are none. */
static bool does_nothing(const tr_onnx_window *w)
{
    for (int i = 0; i < 2; i++)
        if (w->kernel[i] != 1 || w->stride[i] != 1 || w->padding[i] != 0) return false;
    return true;
}

static bool has_pads(const tr_onnx_window *w)
{
    bool any = false;
    for (int i = 0; i < 2; i++) any = any || w->padding[i] > 0 || w->same[i];
    return any;
}

/* Zeros from before count as the image's pixels do; the node's own as it says. */
static void read_average(tr_onnx_reader *r, const tr_onnx_step *s)
{
    static const int64_t none[4] = {0};
    const bool counts = tr_onnx_get_int(s, "count_include_pad", 0) != 0;
    tr_onnx_window w = {.ceil = false};
    int64_t padding[4];
    int x, value;
    bool leaves_out = false;
    if (!tr_onnx_operand(r, s, 0, &x, padding)) return;
    if (!counts) {
        tr_onnx_window own = {.ceil = false};
        if (!tr_onnx_window_of(r, s, &x, none, false, &own)) return;
        leaves_out = has_pads(&own);
    }
    if (leaves_out && !tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (!tr_onnx_window_of(r, s, &x, leaves_out ? none : padding, !leaves_out, &w) ||
        !is_dense(r, s, &w))
        return;
    const char *more = leaves_out ? ", count_include_pad: false" : "";
    if (does_nothing(&w))
        tr_onnx_give(r, s, x);
    else if (make_window(r, s, w.line ? "avgpool1d" : "avgpool2d", x, &w, more, &value))
        tr_onnx_give(r, s, value);
}

/* One window over all of an image; with `flat` the features that are left. */
static void make_global(tr_onnx_reader *r, const tr_onnx_step *s, const char *type, bool flat)
{
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (of.ndim != 2 && of.layout != TR_LAYOUT_CHANNELS_LAST) {
        tr_onnx_refuse(r, s, "pooling of what is no image and no sequence");
        return;
    }
    if (!tr_onnx_make(r, s, type, -1, 1, &x, &value, NULL)) return;
    x = value;
    if (flat && !tr_onnx_make(r, s, "flatten", -1, 1, &x, &value, NULL)) return;
    tr_onnx_give(r, s, value);
}

static void read_global(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make_global(r, s, "global_avgpool", false);
}

static void read_global_max(tr_onnx_reader *r, const tr_onnx_step *s)
{
    make_global(r, s, "global_maxpool", false);
}

bool tr_onnx_are_sides(const int64_t axes[2])
{
    const bool height[2] = {axes[0] == 2 || axes[0] == -2, axes[1] == 2 || axes[1] == -2},
               width[2] = {axes[0] == 3 || axes[0] == -1, axes[1] == 3 || axes[1] == -1};
    return (height[0] && width[1]) || (width[0] && height[1]);
}

typedef struct {
    const char *name, *pool;
    bool most; /* not the mean */
} reduction;

/* Of (rows, features), over the rows; kept: one row of them is left. */
static void over_rows(tr_onnx_reader *r, const tr_onnx_step *s, const reduction *of, bool kept)
{
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape shape = tr_onnx_shape(r, x);
    if (shape.ndim != 2) {
        tr_onnx_refuse(r, s, "the %s over the rows of what has none", of->name);
        return;
    }
    if (of->most) {
        if (!tr_onnx_make(r, s, "permute", -1, 1, &x, &value, "{dims: [2, 1]}")) return;
        x = value;
    }
    if (!tr_onnx_make(r, s, of->most ? of->pool : "mean_rows", -1, 1, &x, &value, NULL)) return;
    x = value;
    if ((kept || of->most) &&
        !tr_onnx_make(r, s, "reshape", -1, 1, &x, &value,
                      kept ? "{dims: [1, %lld]}" : "{dims: [%lld]}", (long long)shape.dims[1]))
        return;
    tr_onnx_give(r, s, value);
}

/* Of (channels, length), over the length. */
static void over_length(tr_onnx_reader *r, const tr_onnx_step *s, const reduction *of, bool kept)
{
    int x;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (tr_onnx_shape(r, x).ndim == 2)
        make_global(r, s, of->pool, !kept);
    else
        tr_onnx_refuse(r, s, "the %s over the length of what is no sequence", of->name);
}

/* Over height and width, over rows, or over a sequence's length. */
static void reduce(tr_onnx_reader *r, const tr_onnx_step *s, const reduction *of)
{
    int64_t axes[2];
    const int n = tr_onnx_numbers(r, s, 1, "axes", 2, axes);
    const bool kept = tr_onnx_get_int(s, "keepdims", 1) != 0;
    if (n == 2 && tr_onnx_are_sides(axes))
        make_global(r, s, of->pool, !kept);
    else if (n == 1 && (axes[0] == 1 || axes[0] == -2))
        over_rows(r, s, of, kept);
    else if (n == 1 && (axes[0] == 2 || axes[0] == -1))
        over_length(r, s, of, kept);
    else
        tr_onnx_refuse(r, s,
                       "only the %s over an image's height and width, over rows or over a "
                       "sequence's length is a layer",
                       of->name);
}

static void read_mean(tr_onnx_reader *r, const tr_onnx_step *s)
{
    reduce(r, s, &(reduction){.name = "mean", .pool = "global_avgpool"});
}

static void read_most(tr_onnx_reader *r, const tr_onnx_step *s)
{
    reduce(r, s, &(reduction){.name = "maximum", .pool = "global_maxpool", .most = true});
}

static const tr_onnx_operator operators[] = {{"MaxPool", read_max},
                                             {"AveragePool", read_average},
                                             {"GlobalAveragePool", read_global},
                                             {"GlobalMaxPool", read_global_max},
                                             {"ReduceMax", read_most},
                                             {"ReduceMean", read_mean},
                                             {NULL, NULL}};

const tr_onnx_family tr_onnx_pools = {.layers = layers, .operators = operators};
