/* Values of 8 bits: to and from them, and their products, which answer bit for bit as the CPU's
 * (kernels/cpu/int8): sums of integers are exact in any order, and what follows them is the same
 * arithmetic.
 *
 * A product is a matrix product by cuBLASLt, int8 into int32, between two kernels of our own
 * (loops/int8.cu):
 *
 *     x --rows--> int8 (rows, width) --cuBLASLt--> int32 (rows, outputs) --store--> y
 *
 * - Tensor cores multiply signed by signed. What is unsigned (behind a ReLU) has 128 taken away as
 *   its rows are made, padding included, and 128 times the sum of an output's weights is added to
 *   its sums: exact, so the model's scales stay what they are on a CPU.
 * - Rows are the windows of a convolution (im2col). A linear layer, or a window of one place with
 *   stride 1, has them already: where x is signed and a row whole 16 bytes nothing is copied. Else
 *   a row, and so the number of outputs, is padded to a multiple of 16, so any shape goes; the
 *   library's least is 4.
 * - Pieces of rows at a time, so that both arrays stay in the second-level cache (PIECE: an H100
 *   has 50 MB).
 * - Where the library has nothing (before compute capability 7.5) sums are a kernel of our own, and
 *   slow.
 *
 * Not by cuDNN: asked by an H100's properties alone, 9.19 names for int8 into int32 engines 28 and
 * 0, and two more (60, 69) where the result is int8, with one scale for all outputs; which of them
 * use tensor cores it does not say, and none was timed. Convolutions in groups stay float
 * (passes/int8.c). */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/blas/blas.h"
#include "kernels/cuda/loops/int8.h"
#include "kernels/cuda/loops/quantize.h"

#include <stdio.h>
#include <string.h>

/* ---- To 8 bits and back ---- */

typedef struct {
    tr_cuda_kernel head;
    size_t count;
    bool is_signed;
    float factor;
} steps_kernel;

static tr_status run_quantize(tr_kernel *base, const tr_run *run)
{
    const steps_kernel *k = (const steps_kernel *)base;
    (void)run;
    return tr_cuda_to_steps(k->head.cuda->stream, k->head.dtype, k->is_signed, k->factor,
                            k->head.b.in[0], k->head.b.out[0], k->count);
}

static tr_status run_dequantize(tr_kernel *base, const tr_run *run)
{
    const steps_kernel *k = (const steps_kernel *)base;
    (void)run;
    return tr_cuda_from_steps(k->head.cuda->stream, k->head.dtype, k->is_signed, k->factor,
                              k->head.b.in[0], k->head.b.out[0], k->count);
}

/* `values`: the tensor of activations' type; `steps`: that of 8 bits. */
static tr_status prepare_steps(tr_cuda *cuda, const tr_tensor *values, const tr_tensor *steps,
                               bool back, tr_kernel **out)
{
    steps_kernel *k = NULL;
    tr_status st = tr_cuda_kernel_open(cuda, values, "own", back ? run_dequantize : run_quantize,
                                       sizeof *k, &k);
    if (st != TR_OK) return st;
    k->count = values->count;
    k->is_signed = steps->dtype == TR_I8;
    k->factor = back ? steps->scale : 1.0f / steps->scale;
    *out = &k->head.base;
    return TR_OK;
}

tr_status tr_cuda_quantize(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare_steps(cuda, tr_cuda_in(g, op, 0), tr_cuda_out(g, op, 0), false, out);
}

tr_status tr_cuda_dequantize(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare_steps(cuda, tr_cuda_out(g, op, 0), tr_cuda_in(g, op, 0), true, out);
}

/* ---- Products ---- */

enum { X, WEIGHT, SCALE, BIAS, RESIDUAL };
enum { ALIGN = 256, PIECE = 32 << 20 /* bytes of a piece's rows and sums */ };

/* What the packed weights depend on. The bias is the layer's. */
typedef struct {
    char what[8];
    int32_t layer;
    float x_scale, y_scale;
} format;

typedef struct {
    tr_cuda_kernel head;
    void (*close_head)(tr_kernel *);
    tr_cuda_product *
        product[2]; /* of whole pieces, of the last, shorter one; NULL: our own, or there is none */
    char impl[96];
    tr_cuda_window window;
    tr_cuda_int8_result result;
    bool rows_as_they_are;
    size_t rows, piece, places, width; /* piece: rows at a time */
    size_t at_sums, at_product;        /* in the workspace, behind the rows */
    format format;
} product_kernel;

static size_t up(size_t n)
{
    return tr_align_up(n, TR_INT8_ALIGN);
}

static size_t packed_bytes(const product_kernel *k)
{
    const size_t outputs = k->result.outputs;
    return tr_align_up(outputs * k->width, ALIGN) + outputs * (2 * sizeof(float) + sizeof(int32_t));
}

static tr_cuda_int8_weights parts(const product_kernel *k, void *packed)
{
    const size_t outputs = k->result.outputs;
    float *behind = (float *)((char *)packed + tr_align_up(outputs * k->width, ALIGN));
    return (tr_cuda_int8_weights){.weights = packed,
                                  .factor = behind,
                                  .shift = behind + outputs,
                                  .sums = (int32_t *)(behind + 2 * outputs)};
}

static tr_status pack(tr_kernel *base, int i)
{
    const product_kernel *k = (const product_kernel *)base;
    const tr_binding *b = &k->head.b;
    const tr_cuda_int8_weights to = parts(k, b->packed[i]);
    return tr_cuda_int8_pack(k->head.cuda->stream, b->in[WEIGHT], b->in[SCALE], b->in[BIAS],
                             k->format.x_scale, k->format.y_scale, k->result.out,
                             k->window.channels, k->places, k->result.outputs, k->width, &to);
}

static tr_status multiply(const product_kernel *k, const void *rows, const int8_t *weights,
                          int32_t *sums, size_t n)
{
    tr_cuda_product *p = k->product[n < k->piece];
    if (!p)
        return tr_cuda_int8_dots(k->head.cuda->stream, rows, weights, sums, n, k->result.outputs,
                                 k->width);
    return tr_cuda_product_run(
        p, &(tr_cuda_product_args){.a = rows,
                                   .b = weights,
                                   .d = sums,
                                   .alpha = 1,
                                   .workspace = (char *)k->head.b.workspace + k->at_product});
}

static tr_status run_product(tr_kernel *base, const tr_run *run)
{
    const product_kernel *k = (const product_kernel *)base;
    const tr_binding *b = &k->head.b;
    const cudaStream_t stream = k->head.cuda->stream;
    const size_t size = tr_dtype_size(k->result.type);
    tr_cuda_int8_result r = k->result;
    int32_t *sums = (int32_t *)((char *)b->workspace + k->at_sums);
    tr_status st = TR_OK;
    (void)run;
    r.acc = sums;
    r.w = parts(k, b->packed[0]);
    for (size_t at = 0; at < k->rows; at += k->piece) {
        const size_t n = k->rows - at < k->piece ? k->rows - at : k->piece;
        const char *rows = k->rows_as_they_are ? (char *)b->in[X] + at * k->width : b->workspace;
        if (!k->rows_as_they_are)
            TR_TRY(tr_cuda_window_rows(stream, &k->window, r.flipped, b->in[X], b->workspace, at, n,
                                       k->width));
        TR_TRY(multiply(k, rows, r.w.weights, sums, n));
        r.y = (char *)b->out[0] + at * r.out * size;
        r.residual = b->in[RESIDUAL] ? (char *)b->in[RESIDUAL] + at * r.out : NULL;
        TR_TRY(tr_cuda_int8_store(stream, &r, n));
    }
out:
    return st;
}

static void close_product(tr_kernel *base)
{
    product_kernel *k = (product_kernel *)base;
    for (size_t i = 0; i < TR_COUNT(k->product); i++) tr_cuda_product_close(k->product[i]);
    k->close_head(base);
}

static bool is_linear(const tr_op *op)
{
    return tr_op_place(op->def) == TR_OP_linear_int8;
}

static void set_window(product_kernel *k, const tr_graph *g, const tr_op *op)
{
    const tr_tensor *x = tr_cuda_in(g, op, X), *y = tr_cuda_out(g, op, 0),
                    *weight = tr_cuda_in(g, op, WEIGHT);
    const tr_conv2d_attrs *a = op->attrs;
    const bool linear = is_linear(op);
    tr_cuda_window *w = &k->window;
    w->channels = (unsigned)weight->dims[1];
    k->rows = y->count / (size_t)weight->dims[0];
    for (int i = 0; i < 2; i++) {
        w->size[i] = linear ? i ? (int)k->rows : 1 : (int)x->dims[2 + i];
        w->result[i] = linear ? w->size[i] : (int)y->dims[2 + i];
        w->kernel[i] = linear ? 1 : (int)a->kernel[i];
        w->stride[i] = linear ? 1 : (int)a->stride[i];
        w->padding[i] = linear ? 0 : (int)a->padding[i];
        w->dilation[i] = linear ? 1 : (int)a->dilation[i];
    }
    k->places = (size_t)w->kernel[0] * (size_t)w->kernel[1];
}

/* Rows of the product are x's own. */
static bool same_rows(const tr_cuda_window *w)
{
    return w->kernel[0] * w->kernel[1] == 1 && w->stride[0] * w->stride[1] == 1 &&
           w->padding[0] + w->padding[1] == 0;
}

static bool eight_bits(const tr_tensor *t)
{
    return t->dtype == TR_U8 || t->dtype == TR_I8;
}

static tr_status check(const tr_graph *g, const tr_op *op)
{
    tr_status st = TR_OK;
    const tr_tensor *x = tr_cuda_in(g, op, X), *y = tr_cuda_out(g, op, 0),
                    *residual = tr_cuda_in(g, op, RESIDUAL);
    TR_TRY(tr_cuda_check_count(op, x->count, "of a product of 8 bits"));
    TR_TRY(tr_cuda_check_count(op, y->count, "of a product of 8 bits"));
    TR_NEED(eight_bits(x) && (!residual || eight_bits(residual)), TR_INTERNAL,
            "layer %s: a product of 8 bits of %s", op->layer, tr_dtype_name(x->dtype));
    TR_NEED(is_linear(op) || (x->layout == TR_LAYOUT_CHANNELS_LAST && y->layout == x->layout),
            TR_UNSUPPORTED, "layer %s: a convolution of what is not stored channels-last",
            op->layer);
out:
    return st;
}

/* Products for pieces, and the workspace. */
static tr_status cut(product_kernel *k)
{
    tr_status st = TR_OK;
    const tr_backend_options *o = &k->head.cuda->o;
    const size_t outputs = k->result.outputs,
                 row = outputs * sizeof(int32_t) + (k->rows_as_they_are ? 0 : k->width),
                 most = o->workspace < PIECE ? o->workspace : PIECE;
    k->piece = most / row < ALIGN ? ALIGN : most / row / ALIGN * ALIGN;
    if (k->piece > k->rows) k->piece = k->rows;
    k->at_sums = k->rows_as_they_are ? 0 : tr_align_up(k->piece * k->width, ALIGN);
    k->at_product = k->at_sums + tr_align_up(k->piece * outputs * sizeof(int32_t), ALIGN);
    size_t scratch = 0;
    const size_t rows[] = {k->piece, k->rows % k->piece};
    for (size_t i = 0; i < TR_COUNT(rows) && rows[i] > 0; i++) {
        const tr_cuda_problem q = {.m = (int64_t)rows[i],
                                   .n = (int64_t)outputs,
                                   .k = (int64_t)k->width,
                                   .lda = (int64_t)k->width,
                                   .ldb = (int64_t)k->width,
                                   .ldd = (int64_t)outputs,
                                   .tb = true,
                                   .type = TR_I8,
                                   .out = TR_I32,
                                   .align_a = TR_INT8_ALIGN,
                                   .align_b = ALIGN,
                                   .align_d = ALIGN};
        TR_TRY(tr_cuda_product_open(k->head.cuda, &q, &k->product[i]));
        const size_t wanted = k->product[i] ? tr_cuda_product_workspace(k->product[i]) : 0;
        if (wanted > scratch) scratch = wanted;
    }
    k->head.base.workspace = k->at_product + scratch;
out:
    return st;
}

static void name(product_kernel *k)
{
    const tr_cuda_product *p = k->product[0];
    snprintf(k->impl, sizeof k->impl, "int8: %s%s%s",
             p ? tr_cuda_product_impl(p) : "own sums (no product in the library)",
             k->rows_as_they_are ? "" : ", own rows", k->result.flipped ? " of x less 128" : "");
    k->head.base.impl = k->impl;
    if (p) k->head.base.choice = tr_cuda_product_choice(p);
}

tr_status tr_cuda_product_int8(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *x = tr_cuda_in(g, op, X), *y = tr_cuda_out(g, op, 0),
                    *weight = tr_cuda_in(g, op, WEIGHT), *residual = tr_cuda_in(g, op, RESIDUAL);
    const float y_scale = eight_bits(y) ? y->scale : 1;
    product_kernel *k = NULL;
    TR_TRY(check(g, op));
    TR_TRY(tr_cuda_kernel_open_steps(cuda, y, "cuBLASLt", run_product, sizeof *k, &k));
    k->close_head = k->head.base.close;
    k->head.base.close = close_product;
    set_window(k, g, op);
    k->result = (tr_cuda_int8_result){.residual_signed = residual && residual->dtype == TR_I8,
                                      .relu = op->act == TR_ACT_RELU,
                                      .flipped = x->dtype == TR_U8,
                                      .residual_scale = residual ? residual->scale / y_scale : 0,
                                      .type = y->dtype,
                                      .out = (size_t)weight->dims[0],
                                      .outputs = up((size_t)weight->dims[0])};
    k->width = up(k->places * k->window.channels);
    k->rows_as_they_are =
        same_rows(&k->window) && !k->result.flipped && k->window.channels % TR_INT8_ALIGN == 0;
    TR_TRY(cut(k));
    memcpy(k->format.what, "steps", sizeof "steps");
    k->format.layer = op->layer_index;
    k->format.x_scale = x->scale;
    k->format.y_scale = y_scale;
    k->head.base.npacked = 1;
    k->head.base.packed[0] = (tr_packing){.param = weight->index,
                                          .nbytes = packed_bytes(k),
                                          .format = &k->format,
                                          .format_size = sizeof k->format};
    k->head.base.pack = pack;
    name(k);
out:
    if (st != TR_OK && k) close_product(&k->head.base);
    if (st == TR_OK) *out = &k->head.base;
    return st;
}
