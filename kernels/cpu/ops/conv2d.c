/* 2-D convolutions on channels-last activations. Weights: the forward pass and the input gradient
 * each keep their own copy in the layout their primitive wants (the two never agree), refreshed
 * once an update. The weight gradient is computed in its primitive's layout in the workspace and
 * copied, or added, to its slot: asking for the stored layout there ends in loops 100 times slower.
 * Where products of float32 are faster than those of bfloat16 in training, these are made of
 * float32, some samples at a time (onednn/wide.c). */
#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/ops/conv_panels.h"

#include <string.h>

static tr_status describe(const tr_graph *g, const tr_conv2d_attrs *a, int x, int y,
                          tr_dnnl_conv *c, tr_dnnl_array *plain)
{
    const tr_tensor *tx = &g->tensors[x], *ty = &g->tensors[y];
    memset(c, 0, sizeof *c);
    if (tx->layout != TR_LAYOUT_CHANNELS_LAST || ty->layout != TR_LAYOUT_CHANNELS_LAST)
        return TR_FAIL(TR_UNSUPPORTED, "a convolution of what is not stored channels-last");
    c->src = tr_dnnl_channels_last(tx->dims, tx->dtype);
    c->dst = tr_dnnl_channels_last(ty->dims, ty->dtype);
    for (int i = 0; i < 2; i++) {
        c->stride[i] = a->stride[i];
        c->dilation[i] = a->dilation[i] - 1;
        c->padding[i] = a->padding[i];
        c->padding_end[i] = a->padding[i] + a->extra[i];
    }
    const int64_t in = tx->dims[1] / a->groups, out = a->out / a->groups;
    const int64_t dims[] = {a->groups, out, in, a->kernel[0], a->kernel[1]};
    *plain = a->groups > 1 ? tr_dnnl_dense(5, dims, TR_F32) : tr_dnnl_dense(4, dims + 1, TR_F32);
    c->weights = tr_dnnl_any(*plain, tx->dtype);
    return TR_OK;
}

/* As in linear.c: what answers keeps its bfloat16 weights. */
static bool widened(const tr_cpu *cpu, const tr_graph *g, const tr_op *op)
{
    return tr_op_dtype(g, op) == TR_BF16 && !cpu->bf16_faster && g->mode != TR_MODE_INFER;
}

static int64_t per_sample(const tr_tensor *t)
{
    return t->dims[0] > 0 ? (int64_t)t->count / t->dims[0] : 0;
}

/* Channels-last has a generated kernel for every shape met so far, on all instruction sets; should
 * a version or a shape have none, the user learns why a layer is slow. */
static tr_status choose(tr_cpu *cpu, tr_conv_kind kind, const tr_dnnl_conv *c,
                        const tr_dnnl_post *post, const tr_op *op, dnnl_primitive_desc_t *out)
{
    tr_status st = TR_OK;
    /* The strided 1x1 weight gradient of 2.6 and 3.x writes past its scratchpad where channels-last
     * images have fewer channels than a block, or a last block that is not full (upstream issue
     * 6035). */
    const tr_dnnl_array *w = &c->weights;
    const bool pointwise = w->dims[w->ndims - 1] == 1 && w->dims[w->ndims - 2] == 1;
    const bool strided = c->stride[0] > 1 || c->stride[1] > 1;
    const bool full = w->dims[w->ndims - 3] % 16 == 0;
    const bool broken = kind == TR_CONV_GRAD_WEIGHT && pointwise && strided && !full;
    TR_TRY(tr_dnnl_convolution(cpu, kind, c, post, broken ? "jit_1x1" : NULL, out));
    if (tr_dnnl_is_reference(*out))
        tr_log(TR_LOG_WARN, "layer %s: oneDNN has only its slow reference loops for %s (%s)",
               op->layer, tr_op_def_name(op->def), tr_dnnl_impl(*out));
out:
    return st;
}

/* The forward pass. The residual is a second operand of the last step, but oneDNN's matrix-product
 * convolutions read that one at wrong places: there it is copied to the output first and summed.
 * One that lies in the output's place already is summed, for which there are faster kernels. */
static tr_status choose_forward(tr_cpu *cpu, const tr_graph *g, const tr_dnnl_conv *c,
                                const tr_op *op, tr_dnnl_post *post, dnnl_primitive_desc_t *out)
{
    tr_status st = TR_OK;
    const tr_conv_kind kind = g->mode == TR_MODE_TRAIN ? TR_CONV_TRAIN : TR_CONV_INFER;
    TR_TRY(choose(cpu, kind, c, post, op, out));
    if (post->add && strstr(tr_dnnl_impl(*out), "gemm")) {
        dnnl_primitive_desc_destroy(*out);
        post->add = NULL;
        post->sum = true;
        TR_TRY(choose(cpu, kind, c, post, op, out));
    }
out:
    return st;
}

static void add_bias_gradient(tr_dnnl_kernel *k, const tr_graph *g, const tr_op *op)
{
    const tr_tensor *dy = &g->tensors[op->in[1]];
    if (op->nout > 1 && op->out[1] >= 0)
        tr_dnnl_bias_gradient(k, dy->dims[0] * dy->dims[2] * dy->dims[3], dy->dims[1], dy->dtype);
}

/* ---- By products of float32 ------------------------------------------------------------------ */

/* One of the three products, its operands of samples in the workspace. */
typedef struct {
    tr_conv_kind kind;
    const tr_op *op;
    const tr_tensor *x, *y;
    tr_dnnl_conv c; /* of one block */
    tr_dnnl_array plain;
    size_t x_at, y_at;
} wide_conv;

static tr_status add_wide_calls(tr_dnnl_wide *w, const wide_conv *v, const tr_tensor *parameter,
                                const char **impl)
{
    const bool input = v->kind == TR_CONV_GRAD_INPUT, weight = v->kind == TR_CONV_GRAD_WEIGHT;
    const bool forward = !input && !weight;
    tr_dnnl_kernel *k = &w->k;
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;
    tr_status st = TR_OK;
    TR_TRY(choose(k->cpu, v->kind, &v->c, NULL, v->op, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(
        tr_dnnl_arg(k, call, input ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, TR_AT_WORKSPACE, v->x_at));
    TR_TRY(
        tr_dnnl_arg(k, call, forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, TR_AT_WORKSPACE, v->y_at));
    if (v->c.bias.ndims) TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_BIAS, TR_AT_IN, 2));
    if (!*impl) *impl = tr_dnnl_impl(pd);
    TR_TRY(weight ? tr_dnnl_gradient(k, call, DNNL_ARG_DIFF_WEIGHTS, &v->plain, 0)
                  : tr_dnnl_weights_rounded(k, call, DNNL_ARG_WEIGHTS, &v->plain, 1, parameter));
out:
    return st;
}

/* Samples of a block: where each copies a gradient, or adds it, as many as have its values. */
static tr_status open_wide(tr_cpu *cpu, wide_conv *v, const tr_tensor *parameter,
                           tr_dnnl_wide **out)
{
    const int64_t columns = per_sample(v->x) + per_sample(v->y);
    const bool weight = v->kind == TR_CONV_GRAD_WEIGHT, input = v->kind == TR_CONV_GRAD_INPUT;
    const int64_t least = weight && columns ? (int64_t)parameter->count / columns : 1;
    tr_status st = TR_OK;
    TR_TRY(tr_dnnl_wide_open(cpu, v->x->dims[0], columns, least, out));
    v->x_at = tr_dnnl_wide_place(*out, input ? TR_AT_OUT : TR_AT_IN, 0, per_sample(v->x));
    v->y_at =
        tr_dnnl_wide_place(*out, input || weight ? TR_AT_IN : TR_AT_OUT, weight, per_sample(v->y));
    v->c.src.type = v->c.dst.type = dnnl_f32;
    v->c.weights = tr_dnnl_any(v->plain, TR_F32);
out:
    return st;
}

/* Any of the three. */
static tr_status widen(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_conv_kind kind,
                       tr_kernel **out)
{
    const bool input = kind == TR_CONV_GRAD_INPUT, weight = kind == TR_CONV_GRAD_WEIGHT;
    const bool forward = !input && !weight;
    const int ix = input ? op->out[0] : op->in[0];
    const int iy = forward ? op->out[0] : op->in[weight];
    const tr_tensor *parameter = &g->tensors[weight ? op->out[0] : op->in[1]];
    wide_conv v = {.kind = kind, .op = op, .x = &g->tensors[ix], .y = &g->tensors[iy]};
    tr_dnnl_wide *w = NULL;
    const char *impl = NULL;
    tr_status st = TR_OK;
    TR_TRY(describe(g, op->attrs, ix, iy, &v.c, &v.plain));
    if (forward && op->nin > 2 && op->in[2] >= 0)
        v.c.bias = tr_dnnl_dense(1, &v.c.dst.dims[1], TR_F32);
    TR_TRY(open_wide(cpu, &v, parameter, &w));
    if (forward) w->act = op->act;
    for (int last = 0; last < 2; last++) {
        const int64_t rows = tr_dnnl_wide_rows(w, last);
        const int first = w->k.ncalls;
        if (rows == 0) continue;
        v.c.src.dims[0] = v.c.dst.dims[0] = rows;
        TR_TRY(add_wide_calls(w, &v, parameter, &impl));
        for (int i = first; i < w->k.ncalls; i++) w->last[i] = last;
    }
    if (weight) add_bias_gradient(&w->k, g, op);
    tr_dnnl_wide_finish(w, impl);
out:
    return tr_dnnl_hand_over(w ? &w->k : NULL, st, out);
}

tr_status tr_cpu_conv2d(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const bool with_bias = op->nin > 2 && op->in[2] >= 0;
    const bool with_residual = op->nin > 3 && op->in[3] >= 0;
    tr_dnnl_conv c;
    tr_dnnl_array plain;
    tr_dnnl_kernel *k = NULL;
    if (tr_cpu_takes_conv_panels(cpu, g, op)) return tr_cpu_conv_panels(cpu, g, op, out);
    /* a residual goes on as oneDNN adds it */
    if (widened(cpu, g, op) && !with_residual) return widen(cpu, g, op, TR_CONV_TRAIN, out);
    TR_TRY(describe(g, op->attrs, op->in[0], op->out[0], &c, &plain));
    const tr_tensor *weight = &g->tensors[op->in[1]];
    if (with_bias) c.bias = tr_dnnl_dense(1, &c.dst.dims[1], TR_F32);
    const bool in_place = with_residual && tr_root(g, op->in[3]) == tr_root(g, op->out[0]);
    tr_dnnl_post post = {.add = with_residual && !in_place ? &c.dst : NULL,
                         .sum = in_place,
                         .act = tr_dnnl_post_act(g, op)};
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;

    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(choose_forward(cpu, g, &c, op, &post, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(tr_dnnl_weights(k, call, DNNL_ARG_WEIGHTS, &plain, 1, weight->index));
    if (with_bias) TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_BIAS, TR_AT_IN, 2));
    if (post.add) TR_TRY(tr_dnnl_arg(k, call, TR_DNNL_ARG_ADD, TR_AT_IN, 3));
    if (post.sum) k->preload = g->tensors[op->out[0]].nbytes;
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    tr_dnnl_activate(k, g, op);
    tr_dnnl_finish(k, tr_dnnl_impl(pd));
out:
    return tr_dnnl_hand_over(k, st, out);
}

tr_status tr_cpu_conv2d_grad_input(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    tr_dnnl_conv c;
    tr_dnnl_array plain;
    tr_dnnl_kernel *k = NULL;
    if (widened(cpu, g, op)) return widen(cpu, g, op, TR_CONV_GRAD_INPUT, out);
    TR_TRY(describe(g, op->attrs, op->out[0], op->in[0], &c, &plain));
    const tr_tensor *weight = &g->tensors[op->in[1]];
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;

    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(choose(cpu, TR_CONV_GRAD_INPUT, &c, NULL, op, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DIFF_DST, TR_AT_IN, 0));
    TR_TRY(tr_dnnl_weights(k, call, DNNL_ARG_WEIGHTS, &plain, 1, weight->index));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DIFF_SRC, TR_AT_OUT, 0));
    tr_dnnl_finish(k, tr_dnnl_impl(pd));
out:
    return tr_dnnl_hand_over(k, st, out);
}

tr_status tr_cpu_conv2d_grad_weight(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out)
{
    tr_status st = TR_OK;
    tr_dnnl_conv c;
    tr_dnnl_array plain;
    tr_dnnl_kernel *k = NULL;
    if (widened(cpu, g, op)) return widen(cpu, g, op, TR_CONV_GRAD_WEIGHT, out);
    TR_TRY(describe(g, op->attrs, op->in[0], op->in[1], &c, &plain));
    c.weights.type = dnnl_f32;
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;

    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(choose(cpu, TR_CONV_GRAD_WEIGHT, &c, NULL, op, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DIFF_DST, TR_AT_IN, 1));
    TR_TRY(tr_dnnl_gradient(k, call, DNNL_ARG_DIFF_WEIGHTS, &plain, 0));
    add_bias_gradient(k, g, op);
    tr_dnnl_finish(k, tr_dnnl_impl(pd));
out:
    return tr_dnnl_hand_over(k, st, out);
}
