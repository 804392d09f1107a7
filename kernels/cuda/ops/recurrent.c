/* The recurrence of an LSTM or a GRU: for each row of the samples one product of all their states
 * with the recurrent weight by cuBLASLt, into float32, and one kernel of our own over the gates of
 * all. Launches follow each other on the stream and wait for nothing, so that a recorded graph has
 * them all. Why it is not cuDNN's RNN: README.md. */
#include "kernels/cuda/internal.h"

#include "kernels/cuda/blas/blas.h"
#include "kernels/cuda/loops/linear.h"
#include "kernels/cuda/loops/recurrent.h"

enum {
    ALIGN = 256,
    ALIGN_FLAT = 64
}; /* of the arena and the workspace; of parameters in their buffer */

typedef struct {
    tr_cuda_kernel head;
    void (*close_head)(tr_kernel *);
    tr_cuda_product *product;
    tr_cuda_recurrent_args a; /* without addresses */
    size_t gates;
    int weight; /* operand */
    /* Places in the workspace: */
    size_t at_product, state, h, through, dg, scratch;
} kernel;

static const int32_t formats[2] = {TR_BF16, TR_F16};

static void close_kernel(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_cuda_product_close(k->product);
    k->close_head(base);
}

static size_t reserve(kernel *k, size_t nbytes)
{
    const size_t at = k->head.base.workspace;
    k->head.base.workspace = tr_align_up(at + nbytes, ALIGN);
    return at;
}

static void *place(const kernel *k, size_t at)
{
    return (char *)k->head.b.workspace + at;
}

static tr_status pack(tr_kernel *base, int i)
{
    const kernel *k = (const kernel *)base;
    return tr_cuda_cast(k->head.cuda->stream, k->head.dtype, k->head.b.in[k->weight],
                        k->head.b.packed[i], base->packed[i].nbytes / 2);
}

static tr_status open_product(tr_cuda *cuda, kernel *k, bool backward)
{
    const int64_t H = (int64_t)k->a.hidden, G = (int64_t)k->gates * H;
    const bool half = k->head.dtype != TR_F32;
    const tr_cuda_problem q = {.m = (int64_t)k->a.samples,
                               .n = backward ? H : G,
                               .k = backward ? G : H,
                               .lda = backward ? G : H,
                               .ldb = H,
                               .ldd = backward ? H : G,
                               .tb = !backward,
                               .type = k->head.dtype,
                               .out = TR_F32,
                               .align_a = ALIGN,
                               .align_b = half ? ALIGN : ALIGN_FLAT,
                               .align_d = ALIGN};
    const tr_status st = tr_cuda_product_open(cuda, &q, &k->product);
    if (st != TR_OK) return st;
    k->head.base.impl = tr_cuda_product_impl(k->product);
    k->head.base.choice = tr_cuda_product_choice(k->product);
    k->scratch = reserve(k, tr_cuda_product_workspace(k->product));
    return TR_OK;
}

/* `y`: the tensor that the output is like. */
static tr_status open_kernel(tr_cuda *cuda, const tr_graph *g, const tr_op *op, const tr_tensor *y,
                             int weight, tr_status (*run)(tr_kernel *, const tr_run *),
                             kernel **out)
{
    const tr_recurrent_attrs *a = op->attrs;
    const tr_tensor *w = tr_cuda_in(g, op, weight);
    kernel *k = NULL;
    const tr_status st = tr_cuda_kernel_open(cuda, y, "cuBLASLt", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->close_head = k->head.base.close;
    k->head.base.close = close_kernel;
    k->weight = weight;
    k->gates = (size_t)(w->dims[0] / w->dims[1]);
    k->a = (tr_cuda_recurrent_args){.lstm = k->gates == TR_LSTM_GATES,
                                    .reverse = a->reverse,
                                    .hold = a->hold,
                                    .samples = (size_t)y->dims[0],
                                    .rows = (size_t)y->dims[1],
                                    .hidden = (size_t)w->dims[1]};
    if (k->head.dtype != TR_F32) {
        tr_kernel *base = &k->head.base;
        base->packed[base->npacked++] = (tr_packing){.param = w->index,
                                                     .nbytes = w->count * 2,
                                                     .format = &formats[k->head.dtype == TR_F16],
                                                     .format_size = sizeof formats[0]};
        base->pack = pack;
    }
    *out = k;
    return TR_OK;
}

/* k->at_product = what lies at `from` times the weight, or its transpose. */
static tr_status multiply(kernel *k, size_t from)
{
    const tr_binding *b = &k->head.b;
    return tr_cuda_product_run(
        k->product,
        &(tr_cuda_product_args){.a = place(k, from),
                                .b = k->head.base.npacked ? b->packed[0] : b->in[k->weight],
                                .d = place(k, k->at_product),
                                .alpha = 1,
                                .workspace = place(k, k->scratch)});
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* In a graph that decodes: what the last run left, or what this one leaves. */
static tr_status copy_held(const kernel *k, const tr_cuda_recurrent_args *a, bool from)
{
    const size_t n = a->samples * a->hidden;
    void *const held[] = {k->head.b.in[TR_RECURRENT_H], k->head.b.in[TR_RECURRENT_STATE]};
    void *const here[] = {a->h, a->state};
    const size_t each[] = {tr_dtype_size(k->head.dtype), sizeof(float)};
    tr_status st = TR_OK;
    for (int i = 0; i < 2; i++)
        TR_TRY(tr_cuda_copy(k->head.cuda, from ? here[i] : held[i], from ? held[i] : here[i],
                            n * each[i]));
out:
    return st;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const tr_binding *b = &k->head.b;
    tr_cuda_recurrent_args a = k->a;
    tr_status st = TR_OK;
    const bool held = b->in[TR_RECURRENT_STATE];
    (void)run;
    a.x = b->in[0];
    a.bias = b->in[2];
    a.lengths = b->in[3];
    a.y = b->out[0];
    a.kept_gates = b->out[1];
    a.kept = b->out[2];
    a.product = place(k, k->at_product);
    a.state = place(k, k->state);
    a.h = place(k, k->h);
    if (held) TR_TRY(copy_held(k, &a, true));
    for (size_t i = 0; i < a.rows; i++) {
        const bool first = i == 0 && !held;
        if (!first) TR_TRY(multiply(k, k->h));
        TR_TRY(tr_cuda_recurrent_run(k->head.dtype, &a, a.reverse ? a.rows - 1 - i : i, first,
                                     k->head.cuda->stream));
    }
    if (held) TR_TRY(copy_held(k, &a, false));
out:
    return st;
}

tr_status tr_cuda_recurrent(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    kernel *k = NULL;
    TR_TRY(open_kernel(cuda, g, op, tr_cuda_out(g, op, 0), 1, run_forward, &k));
    const size_t n = k->a.samples * k->a.hidden;
    k->at_product = reserve(k, k->gates * n * sizeof(float));
    k->state = reserve(k, n * sizeof(float));
    k->h = reserve(k, n * tr_dtype_size(k->head.dtype));
    TR_TRY(open_product(cuda, k, false));
out:
    if (st != TR_OK && k) close_kernel(&k->head.base);
    if (st == TR_OK) *out = &k->head.base;
    return st;
}

/* ---- Backward -------------------------------------------------------------------------------- */

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const tr_binding *b = &k->head.b;
    tr_cuda_recurrent_args a = k->a;
    tr_status st = TR_OK;
    (void)run;
    a.dy = b->in[0];
    a.y = b->in[1];
    a.kept_gates = b->in[2];
    a.kept = b->in[3];
    a.lengths = b->in[5];
    a.dx = b->out[0];
    a.before = b->out[1];
    a.dproduct = b->out[2];
    a.product = place(k, k->at_product);
    a.state = place(k, k->state);
    a.through = place(k, k->through);
    a.dg = place(k, k->dg);
    for (size_t i = 0; i < a.rows; i++) {
        if (i > 0) TR_TRY(multiply(k, k->dg));
        TR_TRY(tr_cuda_recurrent_grad_run(k->head.dtype, &a, a.reverse ? i : a.rows - 1 - i, i == 0,
                                          i == a.rows - 1, k->head.cuda->stream));
    }
out:
    return st;
}

tr_status tr_cuda_recurrent_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    tr_status st = TR_OK;
    kernel *k = NULL;
    TR_TRY(open_kernel(cuda, g, op, tr_cuda_in(g, op, 1), 4, run_grad, &k));
    const size_t n = k->a.samples * k->a.hidden;
    k->at_product = reserve(k, n * sizeof(float));
    k->state = reserve(k, n * sizeof(float));
    k->through = reserve(k, n * sizeof(float));
    k->dg = reserve(k, k->gates * n * tr_dtype_size(k->head.dtype));
    TR_TRY(open_product(cuda, k, true));
out:
    if (st != TR_OK && k) close_kernel(&k->head.base);
    if (st == TR_OK) *out = &k->head.base;
    return st;
}
