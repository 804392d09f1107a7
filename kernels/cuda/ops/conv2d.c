/* Convolution and its input gradient: a plan of cuDNN (dnn/) on channels-last activations, and
 * where it must be an epilogue of our own. (The weight gradient: conv2d_grad.c.)
 *
 * Weights: cuDNN wants (out, kh, kw, in/groups) in the type of the activations. Both passes share
 * one copy, refreshed once an update. With one place, or one channel a group, that order is the
 * stored one: then the copy is a conversion, and of float32 there is none.
 *
 * y = act(conv + bias + residual) is rounded once. In order of preference:
 *  1. all in cuDNN's graph. For 16-bit types, or where TF32 is allowed: cuDNN's fused engines are
 *     those of tensor cores;
 *  2. ReLU: bias and residual in the graph, then ReLU in place, which commutes with rounding: 2
 *     bytes a byte of y. cuDNN's ReLU may drop NaN: of the engines of 9.19 for an H100, only the
 *     slowest one promises not to (CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP);
 *  3. float32: the convolution, then our epilogue in place;
 *  4. 16 bits: the convolution to float32 in the workspace, then our epilogue: 10 bytes a result;
 *  5. 16 bits, where cuDNN cannot end in float32 (groups): x is cast to float32 in the workspace by
 *     pieces of the batch, and the float32 convolution of each goes through our epilogue. TF32 is
 *     exact for such values, and for weights that were rounded to 16 bits before. 6 bytes an
 *     element of x more. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/ops/conv2d.h"
#include "kernels/cuda/loops/cast.h"
#include "kernels/cuda/loops/epilogue.h"
#include "kernels/cuda/loops/filter.h"
#include "kernels/cuda/loops/linear.h"

#include <limits.h>
#include <stdio.h>

enum { ALIGN = 256 };

/* ---- What the three kernels share ---- */

/* Formats of the packed copies, compared as bytes. */
typedef struct {
    char order[4];
    int32_t rounded, type; /* to; stored as */
} format;
static const format formats[][2] = {{{"KRSC", TR_F32, TR_F32}, {"KRSC", TR_F32, TR_F32}},
                                    {{"KRSC", TR_BF16, TR_BF16}, {"KRSC", TR_BF16, TR_F32}},
                                    {{"KRSC", TR_F16, TR_F16}, {"KRSC", TR_F16, TR_F32}}};

static tr_status set_operands(tr_cuda_conv *k)
{
    tr_dnn_operands at;
    if (!k->plan) return TR_FAIL(TR_INTERNAL, "a convolution of a dry context cannot be bound");
    at = k->operands(k);
    return tr_dnn_call_set(&k->call, k->plan, &at);
}

static tr_status bind(tr_kernel *base, const tr_binding *b)
{
    tr_cuda_conv *k = (tr_cuda_conv *)base;
    k->head.b = *b;
    return set_operands(k);
}

static tr_status rebind(tr_kernel *base, int operand, void *data)
{
    tr_cuda_conv *k = (tr_cuda_conv *)base;
    if (operand < 0 || operand >= TR_MAX_IN)
        return TR_FAIL(TR_INTERNAL, "%s has no operand %d", base->impl, operand);
    k->head.b.in[operand] = data;
    return set_operands(k);
}

static void close_kernel(tr_kernel *base)
{
    tr_cuda_conv *k = (tr_cuda_conv *)base;
    tr_dnn_call_close(&k->call);
    k->close_head(base);
}

tr_status tr_cuda_conv_open(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_dnn_pass pass,
                            int x, int y, tr_status (*run)(tr_kernel *, const tr_run *),
                            tr_dnn_operands (*operands)(const tr_cuda_conv *), size_t size,
                            void *out)
{
    tr_status st = TR_OK;
    const tr_conv2d_attrs *a = op->attrs;
    const tr_tensor *tx = &g->tensors[x], *ty = &g->tensors[y];
    tr_cuda_conv *k = NULL;
    TR_TRY(tr_cuda_check_count(op, tx->count, "of a convolution"));
    TR_TRY(tr_cuda_check_count(op, ty->count, "of a convolution"));
    TR_NEED(a->kernel[0] <= INT32_MAX / a->kernel[1], TR_UNSUPPORTED,
            "layer %s: a window of %lldx%lld", op->layer, (long long)a->kernel[0],
            (long long)a->kernel[1]);
    TR_NEED(tx->layout == TR_LAYOUT_CHANNELS_LAST && ty->layout == TR_LAYOUT_CHANNELS_LAST,
            TR_UNSUPPORTED, "layer %s: a convolution of what is not stored channels-last",
            op->layer);
    TR_TRY(tr_cuda_kernel_open(cuda, tx, "cuDNN (engine chosen on the device)", run, size, &k));
    k->close_head = k->head.base.close;
    k->head.base.close = close_kernel;
    k->head.base.bind = bind;
    k->head.base.rebind = rebind;
    k->op = op;
    k->operands = operands;
    k->out = (size_t)a->out;
    k->channels = (size_t)(tx->dims[1] / a->groups);
    k->places = (size_t)(a->kernel[0] * a->kernel[1]);
    k->rows = (size_t)(ty->dims[0] * ty->dims[2] * ty->dims[3]);
    k->problem = (tr_dnn_problem){.pass = pass,
                                  .type = tx->dtype,
                                  .weight_type = tx->dtype,
                                  .result_type = tx->dtype,
                                  .exact = tx->dtype == TR_F32 && !cuda->o.tf32,
                                  .batch = tx->dims[0],
                                  .groups = a->groups,
                                  .in = tx->dims[1],
                                  .out = a->out};
    for (int i = 0; i < 2; i++) {
        k->problem.size[i] = tx->dims[2 + i];
        k->problem.result[i] = ty->dims[2 + i];
        k->problem.kernel[i] = a->kernel[i];
        k->problem.stride[i] = a->stride[i];
        k->problem.padding[i] = a->padding[i];
        k->problem.extra[i] = a->extra[i];
        k->problem.dilation[i] = a->dilation[i];
    }
    *(void **)out = k;
out:
    return st;
}

tr_status tr_cuda_conv_try(tr_cuda_conv *k, const tr_dnn_problem *p)
{
    tr_status st = TR_OK;
    const tr_dnn_plan *plan = NULL;
    if (!k->head.cuda->o.dry) TR_TRY(tr_dnn_plan_get(k->head.cuda->dnn, p, &plan));
    k->plan = plan;
    k->problem = *p;
out:
    return st;
}

tr_status tr_cuda_conv_none(const tr_cuda_conv *k)
{
    const tr_backend_options *o = &k->head.cuda->o;
    const tr_dnn_problem *p = &k->problem;
    const bool broken = tr_dnn_broken(k->head.cuda->dnn);
    const tr_status st = TR_FAIL(
        broken ? TR_KERNEL : TR_UNSUPPORTED,
        "layer %s: cuDNN has nothing for %s: %lld to %lld channels, %lldx%lld, %lld groups, "
        "%s%s%s, at most %zu bytes of workspace: %s",
        k->op->layer, tr_op_name(k->op), (long long)p->in, (long long)p->out,
        (long long)p->kernel[0], (long long)p->kernel[1], (long long)p->groups,
        tr_dtype_name((tr_dtype)p->type), p->exact ? " without TF32" : "",
        o->deterministic ? ", deterministic" : "", o->workspace, tr_dnn_refusal(k->head.cuda->dnn));
    return broken ? st : tr_fail_hint(st, TR_HINT_WORKSPACE);
}

void tr_cuda_conv_name(tr_cuda_conv *k, const char *more)
{
    snprintf(k->impl, sizeof k->impl, "%s%s",
             k->plan ? tr_dnn_plan_name(k->plan) : "cuDNN (engine chosen on the device)", more);
    k->head.base.impl = k->impl;
}

size_t tr_cuda_conv_workspace(const tr_cuda_conv *k)
{
    return k->plan ? tr_dnn_plan_workspace(k->plan) : k->head.cuda->o.workspace;
}

int64_t tr_cuda_conv_samples(int64_t batch, size_t sample, size_t limit)
{
    for (int64_t n = batch; n > 1; n--)
        if (batch % n == 0 && sample <= limit / (size_t)n) return n;
    return 1;
}

/* ---- The weight: rounded to the activations' type, in the type of the plan's problem ---- */

/* Stored in the wanted order already. */
static bool same_order(const tr_cuda_conv *k)
{
    return k->places == 1 || k->channels == 1;
}

static tr_status pack(tr_kernel *base, int i)
{
    const tr_cuda_conv *k = (const tr_cuda_conv *)base;
    const bool wide = k->problem.weight_type == TR_F32;
    if (same_order(k) && !wide)
        return tr_cuda_cast(k->head.cuda->stream, k->head.dtype, k->head.b.in[1],
                            k->head.b.packed[i], k->out * k->channels * k->places);
    return tr_cuda_filter_pack(k->head.cuda->stream, k->head.dtype, wide, k->head.b.in[1],
                               k->head.b.packed[i], k->out, k->channels, k->places);
}

static void want_packed(tr_cuda_conv *k, const tr_tensor *weight)
{
    tr_kernel *base = &k->head.base;
    const tr_dtype type = k->head.dtype, stored = (tr_dtype)k->problem.weight_type;
    if (type == TR_F32 && same_order(k)) return;
    base->packed[base->npacked++] =
        (tr_packing){.param = weight->index,
                     .nbytes = weight->count * tr_dtype_size(stored),
                     .format = &formats[type == TR_BF16  ? 1
                                        : type == TR_F16 ? 2
                                                         : 0][stored == TR_F32],
                     .format_size = sizeof formats[0][0]};
    base->pack = pack;
}

static void *weights(const tr_cuda_conv *k)
{
    return k->head.base.npacked ? k->head.b.packed[0] : k->head.b.in[1];
}

/* ---- Forward ---- */

typedef struct {
    tr_cuda_conv conv;
    bool bias, residual, own; /* the layer has them; our own epilogue runs */
    bool own_bias, own_residual;
    tr_act own_act;
    int64_t pieces;  /* of the batch; more than one only where x is cast */
    bool wide, cast; /* the result is float32 in the workspace; and so is x */
    /* Bytes in the workspace, in this order, before the plan's. */
    size_t result, x;
} forward_kernel;

static tr_dnn_operands forward_operands(const tr_cuda_conv *k)
{
    const forward_kernel *f = (const forward_kernel *)k;
    const tr_binding *b = &k->head.b;
    return (tr_dnn_operands){.x = f->cast ? tr_cuda_conv_scratch(k, f->result) : b->in[0],
                             .w = weights(k),
                             .y = f->wide ? b->workspace : b->out[0],
                             .bias = k->problem.bias ? b->in[2] : NULL,
                             .residual = k->problem.residual ? b->in[3] : NULL,
                             .workspace = tr_cuda_conv_scratch(k, f->result + f->x)};
}

/* Element `i` of an array of activations; NULL stays NULL. */
static void *element(const tr_cuda_conv *k, void *p, size_t i)
{
    return p ? (char *)p + i * tr_dtype_size(k->head.dtype) : NULL;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    tr_status st = TR_OK;
    const forward_kernel *f = (const forward_kernel *)base;
    const tr_cuda_conv *k = &f->conv;
    const tr_binding *b = &k->head.b;
    const tr_dnn_problem *p = &k->problem;
    const cudaStream_t stream = k->head.cuda->stream;
    const size_t nx = (size_t)(p->batch * p->in * p->size[0] * p->size[1]);
    const size_t rows = k->rows / (size_t)f->pieces;
    (void)run;
    for (int64_t i = 0; i < f->pieces; i++) {
        const size_t at = (size_t)i * rows * k->out;
        void *y = element(k, b->out[0], at);
        if (f->cast)
            TR_TRY(tr_cuda_cast_to_f32(stream, k->head.dtype, element(k, b->in[0], (size_t)i * nx),
                                       tr_cuda_conv_scratch(k, f->result), nx));
        TR_TRY(tr_dnn_call_run(k->head.cuda->dnn, &k->call));
        if (f->own)
            TR_TRY(tr_cuda_epilogue(
                stream, f->own_act, f->wide ? TR_F32 : k->head.dtype, k->head.dtype,
                f->wide ? b->workspace : y, f->own_bias ? b->in[2] : NULL,
                f->own_residual ? element(k, b->in[3], at) : NULL, y, rows, k->out));
    }
out:
    return st;
}

static tr_status cast_forward(forward_kernel *f, const tr_dnn_problem *plain)
{
    tr_cuda_conv *k = &f->conv;
    tr_dnn_problem p = *plain;
    const size_t x = (size_t)(p.in * p.size[0] * p.size[1]) * sizeof(float);
    const size_t y = (size_t)(p.out * p.result[0] * p.result[1]) * sizeof(float);
    p.batch = tr_cuda_conv_samples(plain->batch, x + y, k->head.cuda->o.workspace);
    p.type = p.weight_type = p.result_type = TR_F32;
    f->pieces = plain->batch / p.batch;
    f->cast = f->wide = true;
    f->result = tr_align_up((size_t)p.batch * y, ALIGN);
    f->x = tr_align_up((size_t)p.batch * x, ALIGN);
    return tr_cuda_conv_try(k, &p);
}

/* The ways of the head comment, in their order. `plain` is the convolution alone. */
static tr_status choose_forward(forward_kernel *f, const tr_dnn_problem *plain, tr_act act)
{
    tr_status st = TR_OK;
    tr_cuda_conv *k = &f->conv;
    const bool more = f->bias || f->residual;
    const size_t wide = tr_align_up(k->rows * k->out * sizeof(float), ALIGN);
    tr_dnn_problem p = *plain;
    const char *how = "";
    f->pieces = 1;
    if (act == TR_ACT_NONE && !more) {
        TR_TRY(tr_cuda_conv_try(k, plain));
        goto found;
    }
    p.bias = f->bias;
    p.residual = f->residual;
    if (!plain->exact && act != TR_ACT_RELU) {
        p.act = act;
        how = ", fused";
        TR_TRY(tr_cuda_conv_try(k, &p));
        if (k->plan) goto found;
    }
    f->own = true;
    f->own_act = act;
    if (!plain->exact && act == TR_ACT_RELU && more) {
        how = ", fused; own ReLU";
        TR_TRY(tr_cuda_conv_try(k, &p));
        if (k->plan) goto found;
    }
    f->own_bias = f->bias;
    f->own_residual = f->residual;
    if (plain->type == TR_F32 || (act == TR_ACT_RELU && !more) || k->head.cuda->o.dry) {
        how = "; own epilogue";
        TR_TRY(tr_cuda_conv_try(k, plain));
        goto found;
    }
    p = *plain;
    p.result_type = TR_F32;
    how = " to float32; own epilogue";
    if (wide <= k->head.cuda->o.workspace) TR_TRY(tr_cuda_conv_try(k, &p));
    if (k->plan) {
        f->wide = true;
        f->result = wide;
        goto found;
    }
    how = " on x cast to float32; own epilogue";
    TR_TRY(cast_forward(f, plain));
found:
    if (!k->plan && !k->head.cuda->o.dry) TR_TRY(tr_cuda_conv_none(k));
    tr_cuda_conv_name(k, k->plan ? how : "");
out:
    return st;
}

tr_status tr_cuda_conv2d(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    forward_kernel *f = NULL;
    tr_dnn_problem plain;
    TR_TRY(tr_cuda_conv_open(cuda, g, op, TR_DNN_FORWARD, op->in[0], op->out[0], run_forward,
                             forward_operands, sizeof *f, &f));
    f->bias = tr_cuda_in(g, op, 2) != NULL;
    f->residual = tr_cuda_in(g, op, 3) != NULL;
    plain = f->conv.problem;
    TR_TRY(choose_forward(f, &plain, op->act));
    f->conv.head.base.workspace = f->result + f->x + tr_cuda_conv_workspace(&f->conv);
    want_packed(&f->conv, tr_cuda_in(g, op, 1));
    *out = &f->conv.head.base;
out:
    if (st != TR_OK && f) f->conv.head.base.close(&f->conv.head.base);
    return st;
}

/* ---- Input gradient ---- */

static tr_dnn_operands grad_input_operands(const tr_cuda_conv *k)
{
    const tr_binding *b = &k->head.b;
    return (tr_dnn_operands){
        .x = b->out[0], .w = weights(k), .y = b->in[0], .workspace = b->workspace};
}

static tr_status run_grad_input(tr_kernel *base, const tr_run *run)
{
    const tr_cuda_conv *k = (const tr_cuda_conv *)base;
    (void)run;
    return tr_dnn_call_run(k->head.cuda->dnn, &k->call);
}

tr_status tr_cuda_conv2d_grad_input(tr_cuda *cuda, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out)
{
    tr_status st = TR_OK;
    tr_cuda_conv *k = NULL;
    tr_dnn_problem p;
    TR_TRY(tr_cuda_conv_open(cuda, g, op, TR_DNN_GRAD_INPUT, op->out[0], op->in[0], run_grad_input,
                             grad_input_operands, sizeof *k, &k));
    p = k->problem;
    TR_TRY(tr_cuda_conv_try(k, &p));
    if (!k->plan && !cuda->o.dry) TR_TRY(tr_cuda_conv_none(k));
    tr_cuda_conv_name(k, "");
    k->head.base.workspace = tr_cuda_conv_workspace(k);
    want_packed(k, tr_cuda_in(g, op, 1));
    *out = &k->head.base;
out:
    if (st != TR_OK && k) k->head.base.close(&k->head.base);
    return st;
}
