/* Attention of several heads and its gradient: by our own kernels, which take all of it, or by a
 * plan of cuDNN's, where it has one: so without the option `benchmark`, as it was the faster one
 * where both were measured; with it both are timed. */
#include "kernels/cuda/loops/attention.h"
#include "kernels/cuda/ops/attention.h"
#include "kernels/cuda/trial.h"

typedef struct {
    tr_cuda_kernel k;
    tr_cuda_attention_args args;
    uint32_t stream;
} kernel;

static const char *at(const kernel *k, const void *p, size_t elements)
{
    return p ? (const char *)p + elements * tr_dtype_size(k->k.dtype) : NULL;
}

static void *to(const kernel *k, void *p, size_t elements)
{
    return p ? (char *)p + elements * tr_dtype_size(k->k.dtype) : NULL;
}

/* What both directions read. */
static tr_cuda_attention_args inputs(const kernel *k, const tr_run *run)
{
    const tr_attention_shape *s = &k->args.s;
    const tr_binding *b = &k->k.b;
    tr_cuda_attention_args a = k->args;
    a.q = b->in[s->q];
    a.k = at(k, b->in[s->k], s->k_at);
    a.v = at(k, b->in[s->v], s->v_at);
    a.lengths = s->lengths < 0 ? NULL : b->in[s->lengths];
    a.key = tr_philox_key(run->seed, TR_RNG_DROPOUT, k->stream);
    a.control = run->control;
    a.ordinal = run->ordinal;
    return a;
}

static tr_status run_forward(tr_kernel *base, const tr_run *run)
{
    const kernel *k = (const kernel *)base;
    tr_cuda_attention_args a = inputs(k, run);
    a.y = k->k.b.out[0];
    a.lse = k->k.b.out[1];
    return tr_cuda_attention_run(k->k.dtype, &a, k->k.cuda->stream);
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    enum { DY, Y = 5, LSE };
    const kernel *k = (const kernel *)base;
    const tr_attention_shape *s = &k->args.s;
    const tr_binding *b = &k->k.b;
    tr_cuda_attention_args a = inputs(k, run);
    a.dy = b->in[DY];
    a.y = b->in[Y];
    a.lse = b->in[LSE];
    a.dq = b->out[0];
    a.dk = to(k, b->out[s->packed ? 0 : 1], s->k_at);
    a.dv = to(k, b->out[s->packed ? 0 : 2], s->v_at);
    a.delta = b->workspace;
    return tr_cuda_attention_grad_run(k->k.dtype, &a, k->k.cuda->stream);
}

/* By matrix instructions, where the device has them and a block's tiles fit it; else by
 * multiply-adds. */
static bool by_matrix(const tr_cuda *cuda, tr_dtype t, size_t D, bool backward)
{
    return t != TR_F32 && cuda->major >= 8 &&
           tr_cuda_attention_shared(t, D, backward, true) <= (size_t)cuda->max_shared;
}

static tr_status open_own(tr_cuda *cuda, const tr_graph *g, const tr_op *op, bool backward,
                          tr_kernel **out)
{
    const tr_attention_shape s = tr_attention_of(g, op);
    const tr_tensor *q = tr_cuda_in(g, op, s.q);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(s.D <= TR_CUDA_ATTENTION_HEAD, TR_UNSUPPORTED,
            "layer %s: attention heads of %zu values: on a GPU at most %d", op->layer, s.D,
            TR_CUDA_ATTENTION_HEAD);
    bool matrix = by_matrix(cuda, q->dtype, s.D, backward);
    const size_t shared = tr_cuda_attention_shared(q->dtype, s.D, backward, matrix);
    TR_NEED(shared <= (size_t)cuda->max_shared, TR_UNSUPPORTED,
            "layer %s: attention heads of %zu values of %s need %zu bytes of shared memory, and "
            "this GPU's blocks have %d",
            op->layer, s.D, tr_dtype_name(q->dtype), shared, cuda->max_shared);
    TR_TRY(tr_cuda_check_count(op, s.samples * (s.heads * s.queries + s.kv_heads * s.keys),
                               "of rows of heads"));
    TR_TRY(tr_cuda_kernel_open(cuda, q, "own", backward ? run_grad : run_forward, sizeof *k, &k));
    k->args.s = s;
    k->args.a = *(const tr_attention_attrs *)op->attrs;
    if (g->mode != TR_MODE_TRAIN) k->args.a.dropout = 0;
    k->stream = (uint32_t)op->layer_index;
    if (backward) k->k.base.workspace = s.samples * s.heads * s.queries * sizeof(float);
    if (!cuda->o.dry) TR_TRY(tr_cuda_attention_ready(q->dtype, s.D, backward, &matrix));
    k->args.matrix = matrix;
    if (matrix) k->k.base.impl = "own, tensor cores";
out:
    if (st != TR_OK) {
        tr_free(k);
        return st;
    }
    *out = &k->k.base;
    return TR_OK;
}

/* ---- Our own kernels, or a plan ---- */

enum { OWN, PLAN, WAYS, INPUTS = 7 };

/* Blocks: the op's inputs in their order, then its outputs. */
static tr_status put(void *way, const tr_cuda_trial *t)
{
    tr_kernel *k = way;
    tr_binding b = {.workspace = t->workspace};
    tr_status st;
    for (int i = 0; i < TR_CUDA_TRIAL_BLOCKS; i++)
        if (i < INPUTS)
            b.in[i] = t->block[i];
        else
            b.out[i - INPUTS] = t->block[i];
    st = k->bind(k, &b);
    return st == TR_OK ? k->run(k, &(tr_run){0}) : st;
}

/* *best stays where neither runs. */
static tr_status time_ways(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel *const *way,
                           int *best)
{
    size_t sizes[TR_CUDA_TRIAL_BLOCKS] = {0};
    for (int i = 0; i < INPUTS; i++)
        if (tr_cuda_in(g, op, i)) sizes[i] = tr_cuda_in(g, op, i)->nbytes;
    for (int i = 0; i < op->nout; i++)
        if (tr_cuda_out(g, op, i)) sizes[INPUTS + i] = tr_cuda_out(g, op, i)->nbytes;
    return tr_cuda_trial_kernels(cuda, "attention", sizes, put, way, WAYS, best);
}

/* One contest for all layers of a shape. */
static tr_status fastest(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel *const *way,
                         int *best)
{
    tr_status st = TR_OK;
    const tr_dnn_problem *key = tr_cuda_attention_problem(way[PLAN]);
    const int *known = tr_cuda_recall(cuda, key, sizeof *key);
    if (known) {
        *best = *known;
        return TR_OK;
    }
    TR_TRY(time_ways(cuda, g, op, way, best));
    TR_TRY(tr_cuda_remember(cuda, key, sizeof *key, *best));
out:
    return st;
}

static tr_status open_attention(tr_cuda *cuda, const tr_graph *g, const tr_op *op, bool backward,
                                tr_kernel **out)
{
    tr_status st = TR_OK;
    tr_kernel *way[WAYS] = {NULL};
    TR_TRY(open_own(cuda, g, op, backward, &way[OWN]));
    TR_TRY(tr_cuda_attention_plan(cuda, g, op, backward, &way[PLAN]));
    int best = way[PLAN] ? PLAN : OWN;
    if (way[PLAN] && cuda->o.dry) { /* either may be taken */
        best = OWN;
        if (way[OWN]->workspace < way[PLAN]->workspace) way[OWN]->workspace = way[PLAN]->workspace;
    } else if (way[PLAN] && cuda->o.benchmark) {
        TR_TRY(fastest(cuda, g, op, way, &best));
    }
    *out = way[best];
    way[best] = NULL;
out:
    for (int i = 0; i < WAYS; i++)
        if (way[i]) way[i]->close(way[i]);
    return st;
}

/* ---- In a graph that decodes ----------------------------------------------------------------- */

typedef struct {
    tr_cuda_kernel k;
    tr_cuda_attention_held_args args; /* without addresses */
} held_kernel;

static tr_status run_held(tr_kernel *base, const tr_run *run)
{
    const held_kernel *k = (const held_kernel *)base;
    const tr_attention_shape *s = &k->args.s;
    const size_t each = tr_dtype_size(k->k.dtype);
    const tr_binding *b = &k->k.b;
    tr_cuda_attention_held_args a = k->args;
    (void)run;
    a.q = b->in[s->q];
    a.k = (const char *)b->in[s->k] + s->k_at * each;
    a.v = (const char *)b->in[s->v] + s->v_at * each;
    a.past = b->in[TR_ATTENTION_PAST];
    a.count = b->in[TR_ATTENTION_COUNT];
    a.keys = b->in[TR_ATTENTION_KEYS_HELD];
    a.values = b->in[TR_ATTENTION_VALUES_HELD];
    a.y = b->out[0];
    return tr_cuda_attention_held_run(k->k.dtype, &a, k->k.cuda->stream);
}

static tr_status open_held(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_attention_shape s = tr_attention_of(g, op);
    held_kernel *k = NULL;
    tr_status st = TR_OK;
    TR_NEED(s.D <= TR_CUDA_ATTENTION_HEAD, TR_UNSUPPORTED,
            "layer %s: attention heads of %zu values: on a GPU at most %d", op->layer, s.D,
            TR_CUDA_ATTENTION_HEAD);
    TR_TRY(tr_cuda_check_count(op, s.samples * s.heads * s.queries, "of rows of heads"));
    TR_TRY(tr_cuda_kernel_open(cuda, tr_cuda_in(g, op, s.q), "own", run_held, sizeof *k, &k));
    k->args.s = s;
    k->args.a = *(const tr_attention_attrs *)op->attrs;
    k->args.cache = (size_t)tr_cuda_in(g, op, s.keys_held)->dims[2];
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cuda_attention(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    if (op->nin > TR_ATTENTION_KEYS_HELD) return open_held(cuda, g, op, out);
    return open_attention(cuda, g, op, false, out);
}

tr_status tr_cuda_attention_grad(tr_cuda *cuda, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_attention(cuda, g, op, true, out);
}
