/* Linear layers as matrix products: y = act(x W^T + b), dx = dy W, dW = dy^T x. Every operand stays
 * in its stored layout (transposes are strides), so float32 reads the master weights themselves;
 * bfloat16 reads one plain bfloat16 copy of them, shared by the forward and the backward product,
 * or rounds the masters as they are read where products of float32 are faster (linear_wide.c).
 * Where weights stay as they are (infer), the product chooses their layout, and they are packed
 * once.
 * The bias rides on the product; weight gradients go straight to their slot. Backward, a matrix
 * whose rows lie unluckily for the cache is copied for its product (tr_linear_wants_copy). Where
 * the matrix is part fixed signs (tr_linear_matrix) it is made once an update (of one row the signs
 * are bits: sketch_rows.c), and the gradient is the product of the learned part's columns alone. */
#include "kernels/cpu/ops/linear.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/ops/linear_panels.h"
#include "kernels/cpu/ops/sketch_rows.h"

typedef struct {
    int64_t rows, in, out;
    tr_dtype type; /* of activations */
    tr_linear_matrix matrix;
} shape;

/* `x_like` has the matrix's columns last, or its rows. */
static shape shape_of(const tr_graph *g, const tr_op *op, int x_like, const tr_tensor *weight,
                      bool columns)
{
    const tr_tensor *t = &g->tensors[x_like];
    const tr_linear_matrix m = tr_linear_matrix_of(op, weight);
    return (shape){.rows = (int64_t)t->count / (columns ? m.in : m.out),
                   .in = m.in,
                   .out = m.out,
                   .type = t->dtype,
                   .matrix = m};
}

static bool sketched(const tr_op *op)
{
    const tr_linear_attrs *a = op->attrs;
    return a && a->sketch.side != TR_SKETCH_NONE;
}

/* Of argument `arg`. `plain`: the parameter's own layout and type; `stored`: the same in the type
 * of activations. */
static tr_status set_weights(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg,
                             const tr_dnnl_array *plain, const tr_dnnl_array *stored,
                             const tr_op *op, const tr_tensor *weight)
{
    if (sketched(op)) return tr_dnnl_sketch(k, call, arg, stored, op, weight);
    return tr_dnnl_weights(k, call, arg, plain, 1, weight->index);
}

tr_status tr_linear_copy(tr_dnnl_kernel *k, tr_call_when when, dnnl_primitive_desc_t pd,
                         const tr_dnnl_array *plain, size_t at, tr_dnnl_call **out)
{
    tr_status st = TR_OK;
    dnnl_primitive_desc_t copy = NULL;
    TR_TRY(tr_dnnl_reorder(k->cpu, plain, pd, DNNL_ARG_WEIGHTS, false, false, &copy));
    TR_TRY(tr_dnnl_call_add(k, when, copy, out));
    TR_TRY(tr_dnnl_arg(k, *out, DNNL_ARG_TO, TR_AT_WORKSPACE, at));
out:
    return st;
}

/* Whether bfloat16's products are made of float32. A graph that answers keeps its bfloat16 weights:
 * half to read. */
static bool widened(const tr_cpu *cpu, const tr_graph *g, tr_dtype type)
{
    return type == TR_BF16 && !cpu->bf16_faster && g->mode != TR_MODE_INFER;
}

/* ---- Few rows, in a graph that decodes ----------------------------------------------------------
 * A product of one row, or of a few, is bound by reading the weight, whose rows lie as they are
 * used: sums of products with them, eight rows of the weight for all rows of x, need no layout of
 * their own. */

enum { FEW = 8, OUTPUTS = 32, AT_ONCE = 8 };
/* Bytes of a weight: below that, waking threads takes longer. */
enum { WORTH_THREADS = 128 << 10 };

typedef struct {
    tr_dnnl_kernel d; /* it makes the copy of the weight */
    size_t rows, in, out, x;
    tr_dtype type;
    tr_act act;
} few;

static void few_outputs(const few *k, const float *x, const void *weight, size_t first, size_t n)
{
    const tr_binding *b = &k->d.bound;
    const tr_cpu_loops *loops = k->d.cpu->loops;
    const size_t size = tr_dtype_size(k->type);
    float sums[FEW][OUTPUTS];
    for (size_t o = 0; o < n; o += AT_ONCE)
        for (size_t r = 0; r < k->rows; r++)
            loops->dots(k->type, x + r * k->in, (const char *)weight + (first + o) * k->in * size,
                        n - o < AT_ONCE ? n - o : AT_ONCE, k->in, sums[r] + o);
    for (size_t r = 0; r < k->rows; r++)
        loops->add_act(k->type, k->act, sums[r], b->in[2] ? (const float *)b->in[2] + first : NULL,
                       (char *)b->out[0] + (r * k->out + first) * size, n);
}

static tr_status run_few(tr_kernel *base, const tr_run *run)
{
    const few *k = (const few *)base;
    const tr_binding *b = &k->d.bound;
    const void *weight = base->npacked ? b->packed[0] : b->in[1];
    const size_t chunks = (k->out + OUTPUTS - 1) / OUTPUTS;
    const bool large = k->out * k->in * tr_dtype_size(k->type) >= WORTH_THREADS;
    const int threads = large ? k->d.cpu->threads : 1;
    const float *x = b->in[0];
    (void)run;
    if (k->type != TR_F32) {
        float *wide = (float *)(void *)((char *)b->workspace + k->x);
        k->d.cpu->loops->cast_f32(wide, b->in[0], k->rows * k->in);
        x = wide;
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && chunks > 1)
    for (size_t c = 0; c < chunks; c++) {
        const size_t first = c * OUTPUTS, left = k->out - first;
        few_outputs(k, x, weight, first, left < OUTPUTS ? left : OUTPUTS);
    }
    return TR_OK;
}

static bool is_few(const tr_graph *g, const shape *s)
{
    return g->decode.rows > 0 && s->rows <= FEW && (s->type == TR_F32 || s->type == TR_BF16);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static tr_status add_forward(tr_dnnl_kernel *k, const tr_graph *g, const tr_op *op, shape s,
                             const char **impl)
{
    tr_status st = TR_OK;
    const bool with_bias = op->nin > 2 && op->in[2] >= 0;
    const tr_dnnl_array x = tr_dnnl_matrix(s.rows, s.in, s.in, 1, s.type);
    const tr_dnnl_array master = tr_dnnl_matrix(s.in, s.out, 1, s.in, TR_F32);
    const tr_dnnl_array stored = tr_dnnl_matrix(s.in, s.out, 1, s.in, s.type);
    /* what decodes shares its copies with products of few rows */
    const bool chooses = g->mode == TR_MODE_INFER && g->decode.rows == 0;
    const tr_dnnl_array w = chooses ? tr_dnnl_any(stored, s.type) : stored;
    const tr_dnnl_array b = tr_dnnl_matrix(1, s.out, s.out, 1, TR_F32);
    const tr_dnnl_array y = tr_dnnl_matrix(s.rows, s.out, s.out, 1, s.type);
    const tr_dnnl_post post = {.act = tr_dnnl_post_act(g, op)};
    tr_dnnl_call *call;
    dnnl_primitive_desc_t pd = NULL;
    TR_TRY(tr_dnnl_matmul(k->cpu, &x, &w, with_bias ? &b : NULL, &y, &post, &pd));
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(set_weights(k, call, DNNL_ARG_WEIGHTS, &master, &stored, op, &g->tensors[op->in[1]]));
    if (with_bias) TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_BIAS, TR_AT_IN, 2));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    *impl = tr_dnnl_impl(pd);
out:
    return st;
}

tr_status tr_cpu_linear(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *weight = &g->tensors[op->in[1]];
    const shape s = shape_of(g, op, op->in[0], weight, true);
    const char *impl = NULL;
    few *rows = NULL;
    tr_dnnl_kernel *k = NULL;
    if (tr_cpu_takes_sketch_rows(cpu, g, op, s.rows)) return tr_cpu_sketch_rows(cpu, g, op, out);
    if (tr_cpu_takes_panels(cpu, g, op, s.rows)) return tr_cpu_linear_panels(cpu, g, op, out);
    if (widened(cpu, g, s.type))
        return tr_cpu_linear_wide(cpu, op, TR_LINEAR_FORWARD, s.rows, &s.matrix, weight, out);
    TR_TRY(tr_dnnl_open_more(cpu, sizeof *rows, &rows));
    k = &rows->d;
    TR_TRY(add_forward(k, g, op, s, &impl));
    tr_dnnl_activate(k, g, op);
    if (is_few(g, &s)) rows->x = tr_dnnl_reserve(k, (size_t)(s.rows * s.in) * sizeof(float));
    tr_dnnl_finish(k, impl);
    if (is_few(g, &s)) {
        rows->rows = (size_t)s.rows;
        rows->in = (size_t)s.in;
        rows->out = (size_t)s.out;
        rows->type = s.type;
        rows->act = op->act;
        k->base.impl = "own";
        k->base.run = run_few;
    }
out:
    return tr_dnnl_hand_over(k, st, out);
}

/* ---- The input's gradient -------------------------------------------------------------------- */

static tr_status add_grad_input(tr_dnnl_kernel *k, const tr_graph *g, const tr_op *op, shape s,
                                const char **impl)
{
    tr_status st = TR_OK;
    const tr_dnnl_array dy = tr_dnnl_matrix(s.rows, s.out, s.out, 1, s.type);
    const tr_dnnl_array w = tr_dnnl_matrix(s.out, s.in, s.in, 1, s.type);
    const tr_dnnl_array master = tr_dnnl_matrix(s.out, s.in, s.in, 1, TR_F32);
    const tr_dnnl_array dx = tr_dnnl_matrix(s.rows, s.in, s.in, 1, s.type);
    const tr_tensor *weight = &g->tensors[op->in[1]];
    bool copied = !sketched(op) && tr_linear_wants_copy(s.rows, s.out, s.in, s.type);
    const tr_dnnl_array b = tr_linear_factor(copied, &w, s.type);
    tr_dnnl_call *call = NULL, *copy = NULL;
    dnnl_primitive_desc_t pd = NULL, own = NULL;
    TR_TRY(tr_dnnl_matmul(k->cpu, &dy, &b, NULL, &dx, NULL, &pd));
    own = pd;
    copied = copied && !tr_dnnl_arg_is(pd, DNNL_ARG_WEIGHTS, &w); /* AVX2's likes it as it is */
    const size_t to = copied ? tr_dnnl_reserve(k, tr_dnnl_arg_size(pd, DNNL_ARG_WEIGHTS)) : 0;
    if (copied) {
        TR_TRY(tr_linear_copy(k, TR_CALL_ALWAYS, pd, &w, to, &copy));
        TR_TRY(set_weights(k, copy, DNNL_ARG_FROM, &master, &w, op, weight));
    }
    own = NULL;
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));
    TR_TRY(copied ? tr_dnnl_arg(k, call, DNNL_ARG_WEIGHTS, TR_AT_WORKSPACE, to)
                  : set_weights(k, call, DNNL_ARG_WEIGHTS, &master, &w, op, weight));
    TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
    *impl = tr_dnnl_impl(pd);
out:
    if (own) dnnl_primitive_desc_destroy(own);
    return st;
}

tr_status tr_cpu_linear_grad_input(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *weight = &g->tensors[op->in[1]];
    const shape s = shape_of(g, op, op->in[0], weight, false);
    const char *impl = NULL;
    tr_dnnl_kernel *k = NULL;
    if (widened(cpu, g, s.type))
        return tr_cpu_linear_wide(cpu, op, TR_LINEAR_GRAD_INPUT, s.rows, &s.matrix, weight, out);
    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(add_grad_input(k, g, op, s, &impl));
    tr_dnnl_finish(k, impl);
out:
    return tr_dnnl_hand_over(k, st, out);
}

/* ---- The weight's gradient ------------------------------------------------------------------- */

static tr_status add_grad_weight(tr_dnnl_kernel *k, shape s, const char **impl)
{
    tr_status st = TR_OK;
    const tr_linear_matrix *m = &s.matrix;
    const int64_t out_rows = m->learned[0], columns = m->learned[1];
    const tr_dnnl_array dyt = tr_dnnl_matrix(out_rows, s.rows, 1, s.out, s.type);
    const tr_dnnl_array x = tr_dnnl_matrix(s.rows, columns, s.in, 1, s.type);
    const tr_dnnl_array dw = tr_dnnl_matrix(out_rows, columns, columns, 1, TR_F32);
    const size_t in_dy = (size_t)m->at[0] * tr_dtype_size(s.type);
    const size_t in_x = (size_t)m->at[1] * tr_dtype_size(s.type);
    const bool any = columns == s.in && tr_linear_wants_copy(out_rows, s.rows, columns, s.type);
    const tr_dnnl_array b = tr_linear_factor(any, &x, s.type);
    dnnl_primitive_desc_t pd = NULL, own = NULL;
    size_t to = 0, room = 0; /* one copy is needed at a time */
    for (int add = 0; add < 2; add++) {
        const tr_dnnl_post post = {.sum = add};
        const tr_call_when when = add ? TR_CALL_ADD : TR_CALL_OVERWRITE;
        tr_dnnl_call *call = NULL, *copy = NULL;
        TR_TRY(tr_dnnl_matmul(k->cpu, &dyt, &b, NULL, &dw, &post, &pd));
        own = pd;
        const bool copied = any && !tr_dnnl_arg_is(pd, DNNL_ARG_WEIGHTS, &x); /* each as it likes */
        const size_t size = copied ? tr_dnnl_arg_size(pd, DNNL_ARG_WEIGHTS) : 0;
        if (size > room) to = tr_dnnl_reserve(k, room = size);
        if (copied) {
            TR_TRY(tr_linear_copy(k, when, pd, &x, to, &copy));
            TR_TRY(tr_dnnl_arg_part(k, copy, DNNL_ARG_FROM, TR_AT_IN, 0, in_x));
        }
        own = NULL;
        TR_TRY(tr_dnnl_call_add(k, when, pd, &call));
        TR_TRY(tr_dnnl_arg_part(k, call, DNNL_ARG_SRC, TR_AT_IN, 1, in_dy));
        TR_TRY(copied ? tr_dnnl_arg(k, call, DNNL_ARG_WEIGHTS, TR_AT_WORKSPACE, to)
                      : tr_dnnl_arg_part(k, call, DNNL_ARG_WEIGHTS, TR_AT_IN, 0, in_x));
        TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_DST, TR_AT_OUT, 0));
        *impl = tr_dnnl_impl(pd);
    }
out:
    if (own) dnnl_primitive_desc_destroy(own);
    return st;
}

tr_status tr_cpu_linear_grad_weight(tr_cpu *cpu, const tr_graph *g, const tr_op *op,
                                    tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_tensor *weight = &g->tensors[op->out[0]];
    const shape s = shape_of(g, op, op->in[0], weight, true);
    const char *impl = NULL;
    tr_dnnl_kernel *k = NULL;
    if (widened(cpu, g, s.type))
        return tr_cpu_linear_wide(cpu, op, TR_LINEAR_GRAD_WEIGHT, s.rows, &s.matrix, weight, out);
    TR_TRY(tr_dnnl_open(cpu, &k));
    TR_TRY(add_grad_weight(k, s, &impl));
    if (op->nout > 1 && op->out[1] >= 0) tr_dnnl_bias_gradient(k, s.rows, s.out, s.type);
    tr_dnnl_finish(k, impl);
out:
    return tr_dnnl_hand_over(k, st, out);
}
