/* Images of another size: Pad, Resize, and what stands for adaptive pooling. */
#include "optimize/onnx/ops/ops.h"

#include <math.h>

#include "runtime/base/numbers.h"

static const char *const pad_modes[] = {"constant", "reflect", "edge"};

static void write_pad(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out)
{
    const tr_resample_attrs *a = l->attrs;
    int64_t pads[8] = {0}; /* all beginnings, then all ends */
    for (int i = 0; i < 2; i++) {
        pads[2 + i] = a->before[i];
        pads[6 + i] = l->output.dims[1 + i] - l->inputs[0].dims[1 + i] - a->before[i];
    }
    const char *operands[] = {in[0], tr_onnx_int64s(w, "pads", TR_COUNT(pads), pads),
                              a->value != 0 ? tr_onnx_scalar(w, "value", a->value) : NULL};
    tr_onnx_node *n = tr_onnx_add(w, "Pad", NULL, a->value != 0 ? 3 : 2, operands, out, NULL);
    tr_onnx_word(w, n, "mode", pad_modes[a->kind - TR_RESAMPLE_CONSTANT]);
}

/* Every pixel comes from where the layer takes it, also where readers divide by the scale. */
static bool same_pixels(float scale, int64_t size, int64_t result)
{
    for (int64_t o = 0; o < result; o++)
        if ((int64_t)floorf((float)o / scale) != o * size / result) return false;
    return true;
}

/* A scale whose product with the size is not below the result's: readers multiply as floats, onnx's
 * shape inference exactly. The next one that suits both, where it keeps the nearest pixels. */
static float scale_of(int64_t size, int64_t result, bool nearest)
{
    float s = (float)result / (float)size;
    while (floorf(s * (float)size) < (float)result) s = nextafterf(s, INFINITY);
    if ((double)s * (double)size >= (double)result) return s;
    const float next = nextafterf(s, INFINITY);
    return nearest && !same_pixels(next, size, result) ? s : next;
}

static void write_upsample(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                           const char *out)
{
    const tr_resample_attrs *a = l->attrs;
    const bool nearest = a->kind == TR_RESAMPLE_NEAREST;
    const int64_t four = 4;
    float scales[4] = {1, 1};
    for (int i = 0; i < 2; i++)
        scales[2 + i] = scale_of(l->inputs[0].dims[1 + i], l->output.dims[1 + i], nearest);
    const char *operands[] = {in[0], "", tr_onnx_floats(w, "scales", 1, &four, scales)};
    tr_onnx_node *n = tr_onnx_add(w, "Resize", NULL, 3, operands, out, NULL);
    tr_onnx_word(w, n, "mode", nearest ? "nearest" : "linear");
    tr_onnx_word(w, n, "coordinate_transformation_mode",
                 nearest            ? "asymmetric"
                 : a->align_corners ? "align_corners"
                                    : "half_pixel");
    if (nearest) tr_onnx_word(w, n, "nearest_mode", "floor");
}

/* What place i of a side counts in result o, of an adaptive pooling. */
static float share(int64_t size, int64_t result, int64_t o, int64_t i)
{
    const int64_t begin = o * size / result, end = ((o + 1) * size + result - 1) / result;
    return i >= begin && i < end ? 1 / (float)(end - begin) : 0;
}

/* The weights of one side's averages, result x size or turned. */
static const char *averages(tr_onnx_writer *w, const tr_layer *l, int axis, bool turned)
{
    const int64_t size = l->inputs[0].dims[1 + axis], result = l->output.dims[1 + axis];
    const int64_t dims[] = {turned ? size : result, turned ? result : size};
    float *v = tr_pool_get(&w->pool, (size_t)(size * result), sizeof *v);
    if (!v) return NULL;
    for (int64_t o = 0; o < result; o++)
        for (int64_t i = 0; i < size; i++)
            v[turned ? i * result + o : o * size + i] = share(size, result, o, i);
    return tr_onnx_floats(w, turned ? "columns" : "rows", 2, dims, v);
}

/* Even windows are those of an average pooling; others are products with the two sides' weights, as
 * ONNX has no such operator. */
static void write_adaptive(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                           const char *out)
{
    int64_t window[2];
    bool even = true;
    for (int i = 0; i < 2; i++) {
        window[i] = l->inputs[0].dims[1 + i] / l->output.dims[1 + i];
        even = even && window[i] * l->output.dims[1 + i] == l->inputs[0].dims[1 + i];
    }
    if (even) {
        tr_onnx_node *n = tr_onnx_add(w, "AveragePool", NULL, TR_NAMES(in[0]), out, NULL);
        tr_onnx_ints(w, n, "kernel_shape", 2, window);
        tr_onnx_ints(w, n, "strides", 2, window);
        return;
    }
    const char *y, *columns = averages(w, l, 1, true), *rows = averages(w, l, 0, false);
    if (!columns || !rows) return;
    tr_onnx_add(w, "MatMul", "columns_mean", TR_NAMES(in[0], columns), NULL, &y);
    tr_onnx_add(w, "MatMul", NULL, TR_NAMES(rows, y), out, NULL);
}

static const tr_onnx_layer layers[] = {{.layer = "adaptive_avgpool2d", .write = write_adaptive},
                                       {.layer = "pad", .write = write_pad},
                                       {.layer = "upsample", .write = write_upsample},
                                       {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

const char *tr_onnx_make_pad(tr_onnx_reader *r, const tr_onnx_step *s, const int64_t pads[4], int x,
                             int *value)
{
    return tr_onnx_make(r, s, "pad", TR_ONNX_BESIDE, 1, &x, value,
                        "{padding: [%lld, %lld, %lld, %lld]}", (long long)pads[1],
                        (long long)pads[3], (long long)pads[0], (long long)pads[2]);
}

/* Zeros around an image are left to what is behind, as a convolution brings them along; else a
 * layer. */
static void read_pad(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t pads[TR_ONNX_RANK], before[4];
    double number = tr_onnx_get_real(s, "value", 0);
    const int n = tr_onnx_numbers(r, s, 1, "pads", TR_ONNX_RANK, pads);
    int x, value, mode = 0;
    if (!tr_onnx_operand(r, s, 0, &x, before)) return;
    while (mode < 3 && !tr_onnx_is(s, "mode", pad_modes[mode], mode == 0)) mode++;
    bool good = n == 8 && mode < 3 && (s->nin < 4 || s->in[3] < 0) && pads[0] == 0 &&
                pads[1] == 0 && pads[4] == 0 && pads[5] == 0 &&
                tr_onnx_shape(r, x).layout == TR_LAYOUT_CHANNELS_LAST && s->nout == 1 &&
                s->out[0] >= 0;
    bool grows = true;
    for (int i = 0; i < 8 && good; i++) {
        good = pads[i] >= -INT16_MAX && pads[i] <= INT16_MAX;
        grows = grows && pads[i] >= 0;
    }
    if (good && s->nin > 2 && s->in[2] >= 0) good = tr_onnx_scalar_of(r, s->in[2], &number);
    if (!good) {
        tr_onnx_refuse(r, s, "only by constant numbers of an image's pixels");
        return;
    }
    if (mode == 0 && number == 0 && grows) {
        tr_onnx_pass(r, s, 0);
        const int64_t more[4] = {pads[2], pads[3], pads[6], pads[7]};
        for (int i = 0; i < 4; i++) r->values[s->out[0]].padding[i] = before[i] + more[i];
        return;
    }
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    char text[32];
    if (tr_onnx_make(r, s, "pad", -1, 1, &x, &value,
                     "{padding: [%lld, %lld, %lld, %lld], mode: %s, value: %s}", (long long)pads[3],
                     (long long)pads[7], (long long)pads[2], (long long)pads[6],
                     mode == 2 ? "replicate" : pad_modes[mode],
                     tr_format_real(tr_onnx_short(number), text)))
        tr_onnx_give(r, s, value);
}

static bool is_average(const tr_onnx_const *c, bool turned)
{
    if (!c || !c->f || c->ndim != 2) return false;
    const int64_t size = c->dims[!turned], result = c->dims[turned];
    for (int64_t o = 0; o < result; o++)
        for (int64_t i = 0; i < size; i++)
            if (c->f[turned ? i * result + o : o * size + i] != share(size, result, o, i))
                return false;
    return true;
}

/* rows (x columns), of averages, as an adaptive pooling is written. */
static bool match_adaptive(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    const tr_onnx_step *of = s->nin == 2 ? tr_onnx_made_by(r, s->in[1], "MatMul") : NULL;
    if (!of || !is_average(tr_onnx_const_in(r, s, 0), false) ||
        !is_average(tr_onnx_const_in(r, of, 1), true))
        return false;
    operands[0] = of->in[0];
    operands[1] = s->in[0];
    operands[2] = of->in[1];
    *n = 3;
    return true;
}

static void read_adaptive(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int64_t *rows = tr_onnx_const_at(r, s->operands[1])->dims,
                  *columns = tr_onnx_const_at(r, s->operands[2])->dims;
    int x, value;
    if (!tr_onnx_operand_at(r, s, s->operands[0], &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (of.layout != TR_LAYOUT_CHANNELS_LAST || of.ndim != 3 || of.dims[1] != rows[1] ||
        of.dims[2] != columns[0])
        tr_onnx_refuse(r, s, "averages of %lld x %lld pixels, only of an image of that size",
                       (long long)rows[1], (long long)columns[0]);
    else if (tr_onnx_make(r, s, "adaptive_avgpool2d", -1, 1, &x, &value, "{out: [%lld, %lld]}",
                          (long long)rows[0], (long long)columns[1]))
        tr_onnx_give(r, s, value);
}

/* The result's height and width, from sizes or scales. */
static bool result_of(const tr_onnx_reader *r, const tr_onnx_step *s, const tr_shape *x,
                      int64_t size[2], bool *whole)
{
    const tr_onnx_const *scales = tr_onnx_const_in(r, s, 2), *sizes = tr_onnx_const_in(r, s, 3);
    const bool by_size = sizes && sizes->i && sizes->count == 4;
    if (!by_size &&
        (!scales || !scales->f || scales->count != 4 || scales->f[0] != 1 || scales->f[1] != 1))
        return false;
    if (by_size && sizes->i[1] != x->dims[0]) return false;
    *whole = true;
    for (int i = 0; i < 2; i++) {
        const double to = by_size ? (double)sizes->i[2 + i]
                                  : floor((double)(scales->f[2 + i] * (float)x->dims[1 + i]));
        if (!(to >= 1 && to <= INT16_MAX)) return false;
        size[i] = (int64_t)to;
        *whole = *whole && size[i] % x->dims[1 + i] == 0;
    }
    return true;
}

/* Where pixels come from, in the way the layer finds them; NULL: in another one. */
static const char *mode_of(const tr_onnx_step *s, bool whole)
{
    static const char at[] = "coordinate_transformation_mode";
    if (tr_onnx_is(s, "mode", "nearest", true)) {
        const bool plain =
            tr_onnx_is(s, at, "asymmetric", false) && tr_onnx_is(s, "nearest_mode", "floor", false);
        /* of whole factors the centers' way is the same */
        const bool centers = whole &&
                             (tr_onnx_is(s, at, "half_pixel", true) ||
                              tr_onnx_is(s, at, "pytorch_half_pixel", false)) &&
                             tr_onnx_is(s, "nearest_mode", "round_prefer_floor", true);
        return plain || centers ? "nearest" : NULL;
    }
    if (!tr_onnx_is(s, "mode", "linear", false) || tr_onnx_get_int(s, "antialias", 0) != 0)
        return NULL;
    if (tr_onnx_is(s, at, "align_corners", false)) return "bilinear, align_corners: true";
    const bool centers =
        tr_onnx_is(s, at, "half_pixel", true) || tr_onnx_is(s, at, "pytorch_half_pixel", false);
    return centers ? "bilinear" : NULL;
}

static void read_resize(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int64_t size[2];
    bool whole;
    int x, value;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (of.layout != TR_LAYOUT_CHANNELS_LAST || !result_of(r, s, &of, size, &whole) ||
        tr_onnx_get(s, "axes")) {
        tr_onnx_refuse(r, s, "only an image to constant sizes or by constant scales");
        return;
    }
    const char *mode = mode_of(s, whole);
    if (!mode)
        tr_onnx_refuse(r, s, "pixels that come from elsewhere than PyTorch's");
    else if (tr_onnx_make(r, s, "upsample", -1, 1, &x, &value, "{size: [%lld, %lld], mode: %s}",
                          (long long)size[0], (long long)size[1], mode))
        tr_onnx_give(r, s, value);
}

static const tr_onnx_operator operators[] = {
    {"Pad", read_pad}, {"Resize", read_resize}, {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {{"MatMul", match_adaptive, read_adaptive, false}, {0}};

const tr_onnx_family tr_onnx_resamplers = {
    .layers = layers, .operators = operators, .patterns = patterns};
