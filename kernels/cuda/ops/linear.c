/* Linear layers as matrix products: y = act(x W^T + b), dx = dy W, dW = dy^T x, db = column sums of
 * dy. Rows are all dimensions but the last. No operand is moved: transposes are the product's.
 * float32 reads the master weights themselves; 16-bit types read one copy of them, refreshed once
 * an update and shared by the forward and the backward product, and one of the bias where it rides
 * on a 16-bit product: cuBLASLt wants it in the output's type. Weight gradients go in float32
 * straight to their slot, added there by beta = 1.
 *
 * The bias and the tanh GELU ride on the product; in training the GELU is an op of its own, as its
 * operand is kept: cuBLASLt's epilogue that writes both (GELU_AUX_BIAS) rounds 16-bit sums before
 * it adds the bias (seen with 13.1 on an H200), and won nothing there. On the input's gradient the
 * GELU's derivative rides (TR_PASS_ACTIVATION_GRADIENT); where the library cannot, as for features
 * that are no multiple of 8, a kernel of our own follows. Any other activation is one behind the
 * product: ReLU for the sake of NaN (blas.h), in place; the others, which would round a 16-bit
 * result twice, from a float32 product in the workspace. The bias gradient rides on the weight's
 * product where the library has that for the types and the mode is not deterministic (its order of
 * summation is not documented); else it is a column sum of our own.
 *
 * Logits whose rows stand apart (TR_PASS_ALIGN_ROWS): packed copies have rows of zeros behind their
 * own, up to a multiple of EIGHT, so that the forward product makes whole rows and the input's
 * gradient sums over whole rows, which end with zeros. The weight's gradient has no room for more
 * rows: those behind the last multiple of EIGHT are a product of their own.
 *
 * A matrix that is part fixed signs (tr_linear_matrix) is a packed copy in float32, too, made once
 * an update; its gradient is the product of the learned part's rows and columns alone. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/ops/linear.h"

#include "kernels/cuda/blas/blas.h"
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/epilogue.h"
#include "kernels/cuda/loops/linear.h"
#include "kernels/cuda/loops/sketch.h"

#include <stdio.h>

enum {
    ALIGN_ARENA = 256, /* activations and staged batches */
    ALIGN_FLAT = 64,   /* parameters and gradients: multiples of 16 float32 in their buffers */
    ALIGN_SCRATCH = 256,
    EIGHT = 8 /* elements of 16 bits in 16 bytes */
};

typedef struct {
    tr_cuda_kernel head;
    void (*close_head)(tr_kernel *);
    tr_cuda_product *product;
    tr_cuda_product *rest; /* of a weight gradient: its last rows; NULL: the product is all */
    char impl[64];
    int64_t rows, in, out;
    int64_t pitch; /* of y, or dy: elements from one row to the next; out or more */
    tr_linear_matrix matrix;
    tr_sketch sketch;
    struct {
        int64_t type, side, terms, rank, seed;
    } made;        /* the format of a matrix with signs */
    bool half;     /* 16-bit activations, and packed copies */
    bool sketched; /* the matrix is part signs: a packed copy */
    bool bias;     /* the layer has one */
    /* Forward. */
    bool bias_rides; /* with the product */
    bool wide;       /* the product is in float32 in the workspace */
    tr_act after;    /* what our own kernel applies; with the bias unless that rides */
    bool finish;     /* our own kernel runs */
    /* Input gradient: the activation whose derivative at in[2] is multiplied by a kernel of our
     * own, as the library cannot. */
    tr_act behind;
    /* Weight gradient. */
    bool dbias, sum_rides;
    size_t at_product; /* offset in the workspace */
} linear_kernel;

/* Formats of the packed copies, compared as bytes: by type. */
static const int32_t formats[] = {[TR_F32] = TR_F32, [TR_BF16] = TR_BF16, [TR_F16] = TR_F16};

static void close_kernel(tr_kernel *base)
{
    linear_kernel *k = (linear_kernel *)base;
    tr_cuda_product_close(k->product);
    tr_cuda_product_close(k->rest);
    k->close_head(base);
}

/* `x_like` has the matrix's columns as features, or its rows; `y`: y or dy. */
static tr_status open_kernel(tr_cuda *cuda, const tr_graph *g, const tr_op *op, int x_like,
                             const tr_tensor *y, const tr_tensor *weight, bool columns,
                             tr_status (*run)(tr_kernel *, const tr_run *), linear_kernel **out)
{
    const tr_tensor *x = tr_cuda_in(g, op, x_like);
    const tr_linear_attrs *a = op->attrs;
    linear_kernel *k = NULL;
    const tr_status st = tr_cuda_kernel_open(cuda, x, "cuBLASLt", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->close_head = k->head.base.close;
    k->head.base.close = close_kernel;
    k->matrix = tr_linear_matrix_of(op, weight);
    k->out = k->matrix.out;
    k->in = k->matrix.in;
    k->rows = (int64_t)x->count / (columns ? k->in : k->out);
    k->pitch = y->pitch > 0 ? y->pitch : k->out;
    k->half = x->dtype != TR_F32;
    k->bias = a && a->bias;
    if (a) k->sketch = a->sketch;
    k->sketched = k->sketch.side != TR_SKETCH_NONE;
    k->made.type = x->dtype;
    k->made.side = k->sketch.side;
    k->made.terms = k->sketch.terms;
    k->made.rank = k->sketch.rank;
    k->made.seed = k->sketch.seed;
    *out = k;
    return TR_OK;
}

static void name(linear_kernel *k, const char *more)
{
    snprintf(k->impl, sizeof k->impl, "%s%s", tr_cuda_product_impl(k->product), more);
    k->head.base.impl = k->impl;
    k->head.base.choice = tr_cuda_product_choice(k->product);
}

bool tr_cuda_linear_fills(const tr_kernel *k)
{
    return tr_cuda_product_fills(((const linear_kernel *)k)->product);
}

/* Ours first, then the product's. */
static void reserve(linear_kernel *k, size_t ours)
{
    k->at_product = tr_align_up(ours, ALIGN_SCRATCH);
    const size_t product = tr_cuda_product_workspace(k->product),
                 rest = k->rest ? tr_cuda_product_workspace(k->rest) : 0;
    k->head.base.workspace = k->at_product + (product > rest ? product : rest);
}

static void *scratch(const linear_kernel *k, size_t at)
{
    return k->head.b.workspace ? (char *)k->head.b.workspace + at : NULL;
}

/* ---- The packed copies ---- */

enum { WEIGHT, BIAS }; /* places; their operands come behind the first */

static tr_status pack(tr_kernel *base, int i)
{
    const linear_kernel *k = (const linear_kernel *)base;
    const tr_binding *b = &k->head.b;
    if (i == WEIGHT && k->sketched) {
        const bool down = k->sketch.side == TR_SKETCH_DOWN;
        const tr_linear_matrix *m = &k->matrix;
        const tr_cuda_sketch_args a = {
            .learned = b->in[1],
            .rows = (size_t)m->out,
            .width = (size_t)m->in,
            .learned_rows = (size_t)m->learned[0],
            .column = (size_t)m->at[1],
            .first_signs = down ? (size_t)m->learned[0] : 0,
            .key = tr_philox_key((uint64_t)k->sketch.seed, TR_RNG_SKETCH, down ? 0 : 1),
            .unit = tr_sketch_unit(&k->sketch)};
        return tr_cuda_sketch(k->head.cuda->stream, k->head.dtype, &a, b->packed[i]);
    }
    const tr_dtype type = *(const int32_t *)base->packed[i].format;
    const size_t size = tr_dtype_size(type), all = base->packed[i].nbytes;
    const size_t own = (size_t)(i == WEIGHT ? k->out * k->in : k->out) * size;
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_cast(k->head.cuda->stream, type, b->in[1 + i], b->packed[i], own / size));
    if (all > own)
        TR_CUDA_TRY(
            cudaMemsetAsync((char *)b->packed[i] + own, 0, all - own, k->head.cuda->stream));
out:
    return st;
}

/* The next one: rows of `each` values, with some of zeros. */
static void want_packed(linear_kernel *k, const tr_tensor *param, tr_dtype type, size_t each)
{
    tr_kernel *base = &k->head.base;
    const size_t rows = tr_align_up((size_t)k->out, EIGHT);
    base->packed[base->npacked++] = (tr_packing){.param = param->index,
                                                 .nbytes = rows * each * tr_dtype_size(type),
                                                 .format = &formats[type],
                                                 .format_size = sizeof formats[0]};
    base->pack = pack;
}

static void want_weights(linear_kernel *k, const tr_tensor *param)
{
    tr_kernel *base = &k->head.base;
    if (!k->sketched) {
        if (k->half) want_packed(k, param, k->head.dtype, (size_t)k->in);
        return;
    }
    base->packed[base->npacked++] =
        (tr_packing){.param = param->index,
                     .nbytes = (size_t)k->out * (size_t)k->in * tr_dtype_size(k->head.dtype),
                     .format = &k->made,
                     .format_size = sizeof k->made};
    base->pack = pack;
}

static bool packs_weights(const linear_kernel *k)
{
    return k->half || k->sketched;
}

static const void *weights(const linear_kernel *k)
{
    return packs_weights(k) ? k->head.b.packed[WEIGHT] : k->head.b.in[1];
}

static uint32_t weights_align(const linear_kernel *k)
{
    return packs_weights(k) ? ALIGN_ARENA : ALIGN_FLAT;
}

/* Of what begins so many elements behind an activation's first. */
static uint32_t part_align(const linear_kernel *k, int64_t elements)
{
    const size_t at = (size_t)elements * tr_dtype_size(k->head.dtype);
    uint32_t align = ALIGN_ARENA;
    while (at % align != 0) align /= 2;
    return align;
}

/* ---- Forward ---- */

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    const linear_kernel *k = (const linear_kernel *)base;
    const tr_binding *b = &k->head.b;
    tr_status st = TR_OK;
    (void)run;
    void *y = b->out[0], *z = k->wide ? scratch(k, 0) : y;
    tr_cuda_product_args a = {
        .a = b->in[0], .b = weights(k), .d = z, .alpha = 1, .workspace = scratch(k, k->at_product)};
    const void *bias = base->npacked > BIAS ? b->packed[BIAS] : b->in[2];
    if (k->bias_rides) a.vector = (void *)(uintptr_t)bias;
    TR_TRY(tr_cuda_product_run(k->product, &a));
    if (k->finish)
        TR_TRY(tr_cuda_epilogue(k->head.cuda->stream, k->after, k->wide ? TR_F32 : k->head.dtype,
                                k->head.dtype, z, k->bias && !k->bias_rides ? bias : NULL, NULL, y,
                                (size_t)k->rows, (size_t)k->pitch));
out:
    return st;
}

static tr_product_epilogue epilogue_of(bool bias, bool gelu)
{
    if (!gelu) return bias ? TR_EPILOGUE_BIAS : TR_EPILOGUE_NONE;
    return bias ? TR_EPILOGUE_GELU_BIAS : TR_EPILOGUE_GELU;
}

/* The product with these riding on it; none where the library cannot. Our own kernel does the
 * rest. */
static tr_status try_forward(tr_cuda *cuda, linear_kernel *k, tr_cuda_problem *q, tr_act act,
                             bool bias, bool gelu)
{
    k->after = gelu ? TR_ACT_NONE : act;
    k->bias_rides = bias;
    const bool rounds = k->after != TR_ACT_NONE && k->after != TR_ACT_RELU;
    k->wide = k->half && (rounds || bias != k->bias);
    q->out = k->wide ? TR_F32 : k->head.dtype;
    q->epilogue = epilogue_of(bias, gelu);
    return tr_cuda_product_open(cuda, q, &k->product);
}

/* The product with as much as the library takes. */
static tr_status choose_forward(tr_cuda *cuda, linear_kernel *k, tr_act act)
{
    tr_status st = TR_OK;
    const tr_dtype type = k->head.dtype;
    tr_cuda_problem q = {.m = k->rows,
                         .n = k->pitch,
                         .k = k->in,
                         .lda = k->in,
                         .ldb = k->in,
                         .ldd = k->pitch,
                         .tb = true,
                         .type = type,
                         .align_a = ALIGN_ARENA,
                         .align_b = weights_align(k),
                         .align_d = ALIGN_ARENA,
                         .align_vector = ALIGN_FLAT};
    TR_TRY(try_forward(cuda, k, &q, act, k->bias, act == TR_ACT_GELU_TANH));
    if (!k->product) TR_TRY(try_forward(cuda, k, &q, act, k->bias, false));
    if (!k->product) TR_TRY(try_forward(cuda, k, &q, act, false, false));
    k->finish = k->after != TR_ACT_NONE || k->wide || k->bias_rides != k->bias;
    TR_NEED(!k->finish || k->rows <= INT32_MAX / k->pitch, TR_UNSUPPORTED,
            "an activation of %lld x %lld elements behind a product", (long long)k->rows,
            (long long)k->pitch);
out:
    return st;
}

tr_status tr_cuda_linear(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    linear_kernel *k = NULL;
    const tr_tensor *weight = tr_cuda_in(g, op, 1);
    TR_TRY(open_kernel(cuda, g, op, 0, tr_cuda_out(g, op, 0), weight, true, run_forward, &k));
    k->bias = tr_cuda_in(g, op, 2) != NULL;
    want_weights(k, weight);
    TR_TRY(choose_forward(cuda, k, op->act));
    if (k->half && k->bias_rides && !k->wide)
        want_packed(k, tr_cuda_in(g, op, 2), k->head.dtype, 1);
    else if (k->bias && k->pitch > k->out)
        want_packed(k, tr_cuda_in(g, op, 2), TR_F32, 1);
    reserve(k, k->wide ? (size_t)k->rows * (size_t)k->pitch * sizeof(float) : 0);
    const bool bias = k->bias && !k->bias_rides;
    if (k->after == TR_ACT_NONE)
        name(k, bias ? ", own bias" : "");
    else
        name(k, bias ? ", own bias and activation" : ", own activation");
out:
    if (st != TR_OK && k) close_kernel(&k->head.base);
    if (st == TR_OK) *out = &k->head.base;
    return st;
}

/* ---- Input gradient ---- */

static tr_status run_grad_input(tr_kernel *base, const tr_run *run)
{
    const linear_kernel *k = (const linear_kernel *)base;
    const tr_binding *b = &k->head.b;
    const bool behind = k->behind != TR_ACT_NONE;
    tr_status st = TR_OK;
    (void)run;
    TR_TRY(tr_cuda_product_run(k->product, &(tr_cuda_product_args){.a = b->in[0],
                                                                   .b = weights(k),
                                                                   .d = b->out[0],
                                                                   .aux = behind ? NULL : b->in[2],
                                                                   .alpha = 1,
                                                                   .workspace = scratch(k, 0)}));
    if (behind)
        TR_TRY(tr_cuda_act_grad_run(k->head.dtype, k->behind, b->out[0], b->in[2], b->out[0],
                                    (size_t)k->rows * (size_t)k->in, k->head.cuda->stream));
out:
    return st;
}

tr_status tr_cuda_linear_grad_input(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out)
{
    tr_status st = TR_OK;
    linear_kernel *k = NULL;
    const tr_tensor *weight = tr_cuda_in(g, op, 1);
    TR_TRY(open_kernel(cuda, g, op, 0, tr_cuda_in(g, op, 0), weight, false, run_grad_input, &k));
    want_weights(k, weight);
    tr_cuda_problem q = {.m = k->rows,
                         .n = k->in,
                         .k = k->pitch,
                         .lda = k->pitch,
                         .ldb = k->in,
                         .ldd = k->in,
                         .ld_aux = k->in,
                         .type = k->head.dtype,
                         .out = k->head.dtype,
                         .epilogue =
                             op->act == TR_ACT_NONE ? TR_EPILOGUE_NONE : TR_EPILOGUE_GELU_GRADIENT,
                         .align_a = ALIGN_ARENA,
                         .align_b = weights_align(k),
                         .align_d = ALIGN_ARENA,
                         .align_aux = ALIGN_ARENA};
    TR_TRY(tr_cuda_product_open(cuda, &q, &k->product));
    if (!k->product) {
        k->behind = op->act;
        q.epilogue = TR_EPILOGUE_NONE;
        TR_TRY(tr_cuda_product_open(cuda, &q, &k->product));
    }
    reserve(k, 0);
    name(k, k->behind == TR_ACT_NONE ? "" : ", own gradient of the activation");
out:
    if (st != TR_OK && k) close_kernel(&k->head.base);
    if (st == TR_OK) *out = &k->head.base;
    return st;
}

/* ---- Weight and bias gradient ---- */

/* Column sums of rows that stand apart are made of their zeros, too, and in the scratch. */
static tr_status sum_apart(const linear_kernel *k, float *sum, bool add)
{
    const cudaStream_t stream = k->head.cuda->stream;
    float *all = scratch(k, 0), *part = all + tr_align_up((size_t)k->pitch, ALIGN_SCRATCH / 4);
    tr_status st = TR_OK;
    TR_TRY(tr_cuda_column_sum(stream, k->head.dtype, k->head.b.in[1], (size_t)k->rows,
                              (size_t)k->pitch, part, all, false));
    if (!add) TR_CUDA_TRY(cudaMemsetAsync(sum, 0, (size_t)k->out * sizeof *sum, stream));
    TR_TRY(tr_cuda_add_to(stream, sum, all, (size_t)k->out));
out:
    return st;
}

static tr_status run_grad_weight(tr_kernel *base, const tr_run *run)
{
    const linear_kernel *k = (const linear_kernel *)base;
    const tr_binding *b = &k->head.b;
    const cudaStream_t stream = k->head.cuda->stream;
    tr_status st = TR_OK;
    float *sum = b->out[1], *ours = scratch(k, 0);
    const bool add = tr_run_adds(run, b, 1), apart = k->pitch > k->out;
    const size_t size = tr_dtype_size(k->head.dtype);
    tr_cuda_product_args a = {.a = (const char *)b->in[1] + (size_t)k->matrix.at[0] * size,
                              .b = (const char *)b->in[0] + (size_t)k->matrix.at[1] * size,
                              .d = b->out[0],
                              .alpha = 1,
                              .beta = tr_run_adds(run, b, 0) ? 1 : 0,
                              .workspace = scratch(k, k->at_product)};
    if (k->sum_rides) a.vector = add ? ours : sum;
    TR_TRY(tr_cuda_product_run(k->product, &a));
    if (k->rest) {
        const int64_t rows = k->out / EIGHT * EIGHT;
        a.a = (const char *)a.a + (size_t)rows * size;
        a.d = (float *)a.d + rows * k->in;
        if (a.vector) a.vector = (float *)a.vector + rows;
        TR_TRY(tr_cuda_product_run(k->rest, &a));
    }
    if (k->sum_rides && add) TR_TRY(tr_cuda_add_to(stream, sum, ours, (size_t)k->out));
    if (k->dbias && !k->sum_rides && apart) TR_TRY(sum_apart(k, sum, add));
    if (k->dbias && !k->sum_rides && !apart)
        TR_TRY(tr_cuda_column_sum(stream, k->head.dtype, b->in[1], (size_t)k->rows, (size_t)k->out,
                                  ours, sum, add));
out:
    return st;
}

/* The product, and that of the rows behind the last multiple of EIGHT where rows of dy stand apart;
 * none where the library lacks one of them. */
static tr_status try_grad_weight(tr_cuda *cuda, linear_kernel *k, bool sum_rides)
{
    const tr_linear_matrix *m = &k->matrix;
    const int64_t whole = k->out / EIGHT * EIGHT, rest = k->out - whole;
    const bool parted = k->pitch > k->out && whole > 0;
    tr_status st = TR_OK;
    tr_cuda_problem q = {.m = parted ? whole : m->learned[0],
                         .n = m->learned[1],
                         .k = k->rows,
                         .lda = k->pitch,
                         .ldb = k->in,
                         .ldd = m->learned[1],
                         .ta = true,
                         .type = k->head.dtype,
                         .out = TR_F32,
                         .epilogue = sum_rides ? TR_EPILOGUE_BIAS_GRADIENT : TR_EPILOGUE_NONE,
                         .align_a = part_align(k, m->at[0]),
                         .align_b = part_align(k, m->at[1]),
                         .align_d = ALIGN_FLAT,
                         .align_vector = ALIGN_FLAT};
    k->sum_rides = sum_rides;
    TR_TRY(tr_cuda_product_open(cuda, &q, &k->product));
    if (!parted || !k->product) goto out;
    q.m = rest;
    q.align_a = part_align(k, whole);
    q.align_d = q.align_vector = EIGHT * sizeof(float);
    TR_TRY(tr_cuda_product_open(cuda, &q, &k->rest));
    if (!k->rest) {
        tr_cuda_product_close(k->product);
        k->product = NULL;
    }
out:
    return st;
}

/* Scratch of our own in front of the products'. */
static size_t sums_of(const linear_kernel *k)
{
    const size_t all = tr_align_up((size_t)k->pitch, ALIGN_SCRATCH / 4) * sizeof(float);
    if (!k->dbias) return 0;
    if (k->sum_rides) return (size_t)k->out * sizeof(float);
    return (k->pitch > k->out ? all : 0) +
           tr_cuda_column_sum_workspace((size_t)k->rows, (size_t)k->pitch);
}

tr_status tr_cuda_linear_grad_weight(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                     tr_kernel **out)
{
    tr_status st = TR_OK;
    linear_kernel *k = NULL;
    const tr_tensor *weight = tr_cuda_out(g, op, 0);
    TR_TRY(open_kernel(cuda, g, op, 0, tr_cuda_in(g, op, 1), weight, true, run_grad_weight, &k));
    k->dbias = tr_cuda_out(g, op, 1) != NULL;
    TR_TRY(try_grad_weight(cuda, k, k->dbias && !cuda->o.deterministic));
    if (!k->product) TR_TRY(try_grad_weight(cuda, k, false));
    reserve(k, sums_of(k));
    name(k, k->dbias && !k->sum_rides ? ", own column sum" : "");
out:
    if (st != TR_OK && k) close_kernel(&k->head.base);
    if (st == TR_OK) *out = &k->head.base;
    return st;
}
