/* The recurrence of an LSTM or a GRU: for each row of the samples one product of all their states
 * with the recurrent weight, by oneDNN, and one loop over the gates of all. The product reads and
 * writes one piece of the workspace each, so that its arguments never change; the weight is packed,
 * once an update. Where products of float32 are faster than those of bfloat16, what the loop leaves
 * is widened for them. Backward the same in reverse. Samples are shared out over threads in chunks
 * that do not depend on how many there are.
 *
 * Why it is not oneDNN's LSTM and GRU primitives, which PyTorch's are (tests/bench/rnn.c): forward
 * and backward of two layers of 256 over 64 rows of 64 features, 32 samples, one thread of a Zen 4
 * (oneDNN 2.6), take these 1.09 times as long in float32 and 1.17 in bfloat16, GRU 1.03 and 1.39; 2
 * % of that is the gradient of the model's own input, which they cannot leave out. On another CPU,
 * without AMX, and 64 samples PyTorch 2.15 takes LSTM 209 ms a step where this takes 161, GRU 185
 * and 121; in bfloat16 317 and 292, this as long as in float32. */
#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

/* Gates of a chunk of samples: some ten microseconds. */
enum { CHUNK_GATES = 16384 };

typedef struct {
    tr_dnnl_kernel d;
    tr_cpu_recurrence r; /* without addresses */
    size_t samples, chunk;
    tr_dnnl_call *step;
    /* Places in the workspace: */
    size_t zeros, product, state, h, through, dg;
    size_t zeroed; /* bytes from `zeros` on that start as 0 */
    bool widened; /* bfloat16 whose products are of float32 (tr_cpu.bf16_faster): of a copy of h, or
                     dg */
    int weight;   /* operand */
    size_t wide;  /* another place: that copy */
} kernel;

/* `y`: the operand that is like the output; -1: that itself. */
static tr_status open_kernel(tr_cpu *cpu, const tr_graph *g, const tr_op *op, int y, int weight,
                             kernel **out)
{
    const tr_tensor *t = y < 0 ? tr_loop_out(g, op, 0) : tr_loop_in(g, op, y);
    const tr_tensor *w = tr_loop_in(g, op, weight);
    const tr_recurrent_attrs *a = op->attrs;
    kernel *k = NULL;
    const tr_status st = tr_dnnl_open_more(cpu, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->samples = (size_t)t->dims[0];
    k->r = (tr_cpu_recurrence){.type = t->dtype,
                               .gates = (size_t)(w->dims[0] / w->dims[1]),
                               .hidden = (size_t)w->dims[1],
                               .rows = (size_t)t->dims[1],
                               .reverse = a->reverse,
                               .hold = a->hold};
    k->weight = weight;
    /* as in linear.c: what answers keeps its bfloat16 weights */
    k->widened = t->dtype == TR_BF16 && !cpu->bf16_faster && g->mode != TR_MODE_INFER;
    k->chunk = CHUNK_GATES / (k->r.gates * k->r.hidden);
    if (k->chunk == 0) k->chunk = 1;
    *out = k;
    return TR_OK;
}

static void *place(const kernel *k, size_t at)
{
    return (char *)k->d.bound.workspace + at;
}

/* product (float32) = what lies at `from` times the weight. */
static tr_status add_step(tr_cpu *cpu, kernel *k, const tr_tensor *weight, bool backward,
                          size_t from)
{
    const int64_t N = (int64_t)k->samples, H = (int64_t)k->r.hidden, G = (int64_t)k->r.gates * H;
    const int64_t in = backward ? G : H, out = backward ? H : G;
    const tr_dtype type = k->widened ? TR_F32 : k->r.type;
    const tr_dnnl_array x = tr_dnnl_matrix(N, in, in, 1, type);
    const tr_dnnl_array master =
        tr_dnnl_matrix(in, out, backward ? H : 1, backward ? 1 : H, TR_F32);
    const tr_dnnl_array w = tr_dnnl_any(master, type);
    const tr_dnnl_array y = tr_dnnl_matrix(N, out, out, 1, TR_F32);
    dnnl_primitive_desc_t pd = NULL;
    tr_status st = TR_OK;
    if (k->widened) from = k->wide = tr_dnnl_reserve(&k->d, (size_t)(N * in) * sizeof(float));
    TR_TRY(tr_dnnl_matmul(cpu, &x, &w, NULL, &y, NULL, &pd));
    TR_TRY(tr_dnnl_call_add(&k->d, TR_CALL_ALWAYS, pd, &k->step));
    TR_TRY(tr_dnnl_arg(&k->d, k->step, DNNL_ARG_SRC, TR_AT_WORKSPACE, from));
    if (k->widened)
        TR_TRY(
            tr_dnnl_weights_rounded(&k->d, k->step, DNNL_ARG_WEIGHTS, &master, k->weight, weight));
    else
        TR_TRY(
            tr_dnnl_weights(&k->d, k->step, DNNL_ARG_WEIGHTS, &master, k->weight, weight->index));
    TR_TRY(tr_dnnl_arg(&k->d, k->step, DNNL_ARG_DST, TR_AT_WORKSPACE, k->product));
    tr_dnnl_finish(&k->d, tr_dnnl_impl(pd));
out:
    return st;
}

/* The piece in front, which starts as 0: a row that stands for what is not there, and the
 * states. */
static void reserve_zeroed(kernel *k, size_t zeros, bool through, size_t *h)
{
    const size_t n = k->samples * k->r.hidden;
    k->zeros = tr_dnnl_reserve(&k->d, zeros * sizeof(float));
    k->state = tr_dnnl_reserve(&k->d, n * sizeof(float));
    if (through) k->through = tr_dnnl_reserve(&k->d, n * sizeof(float));
    if (h) *h = tr_dnnl_reserve(&k->d, n * tr_dtype_size(k->r.type));
    k->zeroed = k->d.reserved - k->zeros;
}

/* What both directions share, with the workspace's places, what is zeroed set to 0. */
static tr_cpu_recurrence begin(const kernel *k)
{
    tr_cpu_recurrence r = k->r;
    r.zeros = place(k, k->zeros);
    r.product = place(k, k->product);
    r.state = place(k, k->state);
    memset(place(k, k->zeros), 0, k->zeroed);
    tr_dnnl_use(k->d.cpu);
    return r;
}

/* What the loop left of samples [from, to) for the next product. */
static void widen(const kernel *k, const tr_cpu_recurrence *r, bool backward, size_t from,
                  size_t to)
{
    const size_t width = backward ? r->gates * r->hidden : r->hidden;
    const tr_bf16 *narrow = backward ? r->dg : r->h;
    k->d.cpu->loops->cast_f32((float *)place(k, k->wide) + from * width, narrow + from * width,
                              (to - from) * width);
}

/* Row after row: the product of what the one before left, then the gates of all samples. held: a
 * row came before the first. */
static tr_status go(kernel *k, const tr_cpu_recurrence *r, bool backward, bool held)
{
    const size_t chunks = tr_chunks(k->samples, k->chunk);
    const tr_cpu_loops *loops = k->d.cpu->loops;
    tr_status st = TR_OK;
    for (size_t i = 0; i < r->rows; i++) {
        const bool first = i == 0 && !held, last = i == r->rows - 1;
        const size_t row = r->reverse != backward ? r->rows - 1 - i : i;
        if (!first) TR_TRY(tr_dnnl_execute(&k->d, k->step));
        TR_PARALLEL(k->d.cpu->threads, chunks)
        for (size_t c = 0; c < chunks; c++) {
            const size_t from = c * k->chunk, to = from + tr_chunk_size(k->samples, k->chunk, c);
            if (backward)
                loops->recurrent_grad(r, row, first, last, from, to);
            else
                loops->recurrent(r, row, first, from, to);
            if (k->widened && !last) widen(k, r, backward, from, to);
        }
    }
out:
    return st;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const tr_binding *b = &k->d.bound;
    tr_status st = TR_OK;
    tr_cpu_recurrence r = begin(k);
    (void)run;
    r.x = b->in[0];
    r.bias = b->in[2];
    r.lengths = b->in[3];
    r.y = b->out[0];
    r.kept_gates = b->out[1];
    r.kept = b->out[2];
    r.h = place(k, k->h);
    const size_t n = k->samples * r.hidden;
    void *h = b->in[TR_RECURRENT_H], *state = b->in[TR_RECURRENT_STATE];
    if (!state) return go(k, &r, false, false);
    memcpy(r.h, h, n * tr_dtype_size(r.type));
    memcpy(r.state, state, n * sizeof(float));
    TR_TRY(go(k, &r, false, true));
    memcpy(h, r.h, n * tr_dtype_size(r.type));
    memcpy(state, r.state, n * sizeof(float));
out:
    return st;
}

tr_status tr_cpu_recurrent(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    kernel *k = NULL;
    TR_TRY(open_kernel(cpu, g, op, -1, 1, &k));
    const size_t wide = k->r.gates * k->r.hidden;
    reserve_zeroed(k, wide, false, &k->h);
    k->product = tr_dnnl_reserve(&k->d, k->samples * wide * sizeof(float));
    TR_TRY(add_step(cpu, k, tr_loop_in(g, op, 1), false, k->h));
    k->d.base.run = run_forward;
out:
    return tr_dnnl_hand_over(k ? &k->d : NULL, st, out);
}

/* ---- Backward -------------------------------------------------------------------------------- */

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const tr_binding *b = &k->d.bound;
    tr_cpu_recurrence r = begin(k);
    (void)run;
    r.dy = b->in[0];
    r.y = b->in[1];
    r.kept_gates = b->in[2];
    r.kept = b->in[3];
    r.lengths = b->in[5];
    r.dx = b->out[0];
    r.before = b->out[1];
    r.dproduct = b->out[2];
    r.through = place(k, k->through);
    r.dg = place(k, k->dg);
    return go(k, &r, true, false);
}

tr_status tr_cpu_recurrent_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    kernel *k = NULL;
    TR_TRY(open_kernel(cpu, g, op, 1, 4, &k));
    reserve_zeroed(k, k->r.hidden, true, NULL);
    k->product = tr_dnnl_reserve(&k->d, k->samples * k->r.hidden * sizeof(float));
    k->dg =
        tr_dnnl_reserve(&k->d, k->samples * k->r.gates * k->r.hidden * tr_dtype_size(k->r.type));
    TR_TRY(add_step(cpu, k, tr_loop_in(g, op, 4), true, k->dg));
    k->d.base.run = run_grad;
out:
    return tr_dnnl_hand_over(k ? &k->d : NULL, st, out);
}
