/* Attention of 16-bit types and its gradient by a plan of cuDNN's (dnn/attention.c), where its
 * engines take the problem: no lengths, window, ALiBi or dropout, heads of a multiple of 8 values
 * up to 128; no gradient with `deterministic`, whose sums have no fixed order. Its y and lse mean
 * what ours mean, so forward and backward may go different ways. */
#include "kernels/cuda/ops/attention.h"

#include "kernels/cuda/trial.h"

/* LEAST: with fewer rows a launch is most of what either way takes. SINCE: from here on its
 * gradient is right for keys that are no multiple of 128, and masks by minus infinity are. */
enum { ALIGN = 256, LEAST = 64, WIDEST = 128, SINCE = 91600 };

typedef struct {
    tr_cuda_kernel head;
    void (*close_head)(tr_kernel *);
    tr_dnn_problem problem;
    const tr_dnn_plan *plan; /* NULL in a dry context */
    tr_dnn_call call;
    tr_attention_shape s;
    size_t sums, scratch; /* in the workspace, behind delta */
} kernel;

static bool suits(const tr_cuda *cuda, tr_dtype type, const tr_attention_shape *s,
                  const tr_attention_attrs *a, double dropout)
{
    return type != TR_F32 && cuda->major >= 8 && s->lengths < 0 && a->window == 0 && !a->alibi &&
           dropout == 0 && s->D % 8 == 0 && s->D <= WIDEST && s->queries >= LEAST &&
           s->keys >= LEAST && cuda->o.workspace > 0 && (cuda->o.dry || cudnnGetVersion() >= SINCE);
}

static tr_dnn_problem problem_of(tr_dtype type, const tr_attention_shape *s, bool causal, bool lse,
                                 bool backward)
{
    return (tr_dnn_problem){.pass = backward ? TR_DNN_ATTENTION_GRAD : TR_DNN_ATTENTION,
                            .type = type,
                            .attention = {.samples = (int64_t)s->samples,
                                          .queries = (int64_t)s->queries,
                                          .keys = (int64_t)s->keys,
                                          .heads = (int64_t)s->heads,
                                          .kv_heads = (int64_t)s->kv_heads,
                                          .D = (int64_t)s->D,
                                          .q_pitch = (int64_t)s->q_pitch,
                                          .kv_pitch = (int64_t)s->kv_pitch,
                                          .k_at = (int64_t)s->k_at,
                                          .v_at = (int64_t)s->v_at,
                                          .causal = causal,
                                          .lse = lse,
                                          .scale = s->scale}};
}

/* ---- Running ---- */

static void *element(const kernel *k, void *p, size_t i)
{
    return (char *)p + i * tr_dtype_size(k->head.dtype);
}

static tr_dnn_operands operands(const kernel *k)
{
    enum { DY, Y = 5, LSE };
    const tr_attention_shape *s = &k->s;
    const tr_binding *b = &k->head.b;
    char *workspace = b->workspace;
    tr_dnn_operands at = {.q = b->in[s->q],
                          .k = element(k, b->in[s->k], s->k_at),
                          .v = element(k, b->in[s->v], s->v_at),
                          .workspace = workspace + k->scratch};
    if (k->problem.pass == TR_DNN_ATTENTION) {
        at.o = b->out[0];
        at.lse = k->problem.attention.lse ? b->out[1] : NULL;
        return at;
    }
    at.o = b->in[Y];
    at.lse = b->in[LSE];
    at.d_o = b->in[DY];
    at.dq = b->out[0];
    at.dk = element(k, b->out[s->packed ? 0 : 1], s->k_at);
    at.dv = element(k, b->out[s->packed ? 0 : 2], s->v_at);
    at.delta = workspace;
    at.sums = workspace + k->sums;
    return at;
}

static tr_status set_operands(kernel *k)
{
    tr_dnn_operands at;
    if (!k->plan) return TR_FAIL(TR_INTERNAL, "attention of a dry context cannot be bound");
    at = operands(k);
    return tr_dnn_call_set(&k->call, k->plan, &at);
}

static tr_status bind(tr_kernel *base, const tr_binding *b)
{
    kernel *k = (kernel *)base;
    k->head.b = *b;
    return set_operands(k);
}

static tr_status rebind(tr_kernel *base, int operand, void *data)
{
    kernel *k = (kernel *)base;
    if (operand < 0 || operand >= TR_MAX_IN)
        return TR_FAIL(TR_INTERNAL, "%s has no operand %d", base->impl, operand);
    k->head.b.in[operand] = data;
    return set_operands(k);
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    const kernel *k = (const kernel *)base;
    (void)r;
    return tr_dnn_call_run(k->head.cuda->dnn, &k->call);
}

static void close_kernel(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_dnn_call_close(&k->call);
    k->close_head(base);
}

/* ---- Preparing ---- */

/* What fails on the way, and leaves the context whole, is a refusal. */
static tr_status find_plan(kernel *k)
{
    tr_cuda *cuda = k->head.cuda;
    const tr_status st = cuda->o.dry ? TR_OK : tr_dnn_plan_get(cuda->dnn, &k->problem, &k->plan);
    return st == TR_KERNEL && tr_cuda_survives(cuda) ? TR_OK : st;
}

/* False: it takes more than is allowed. */
static bool lay_out(kernel *k)
{
    const tr_dnn_attention_problem *p = &k->problem.attention;
    const tr_cuda *cuda = k->head.cuda;
    size_t left;
    if (k->problem.pass == TR_DNN_ATTENTION_GRAD) {
        k->sums = tr_align_up((size_t)(p->samples * p->heads * p->queries) * sizeof(float), ALIGN);
        k->scratch = k->sums + tr_align_up(tr_dnn_attention_sums(p), ALIGN);
    }
    if (k->scratch > cuda->o.workspace) return false;
    left = cuda->o.workspace - k->scratch;
    size_t plan = k->plan ? tr_dnn_plan_workspace(k->plan) : tr_dnn_limit(cuda, &k->problem);
    if (!k->plan && plan > left) plan = left;
    k->head.base.workspace = k->scratch + plan;
    return plan <= left;
}

tr_status tr_cuda_attention_plan(tr_cuda *cuda, const tr_graph *g, const tr_op *op, bool backward,
                                 tr_kernel **out)
{
    tr_status st = TR_OK;
    const tr_attention_shape s = tr_attention_of(g, op);
    const tr_attention_attrs *a = op->attrs;
    const tr_tensor *q = tr_cuda_in(g, op, s.q);
    kernel *k = NULL;
    *out = NULL;
    if (backward && cuda->o.deterministic) return TR_OK;
    if (!suits(cuda, q->dtype, &s, a, g->mode == TR_MODE_TRAIN ? a->dropout : 0)) return TR_OK;
    TR_TRY(tr_cuda_kernel_open(cuda, q, "cuDNN (engine chosen on the device)", run, sizeof *k, &k));
    k->close_head = k->head.base.close;
    k->head.base.close = close_kernel;
    k->head.base.bind = bind;
    k->head.base.rebind = rebind;
    k->s = s;
    k->problem =
        problem_of(q->dtype, &s, a->causal, backward || tr_cuda_out(g, op, 1) != NULL, backward);
    TR_TRY(find_plan(k));
    if (!k->plan && !cuda->o.dry) goto out;
    if (!lay_out(k)) goto out;
    if (k->plan) k->head.base.impl = tr_dnn_plan_name(k->plan);
    *out = &k->head.base;
    k = NULL;
out:
    if (k) k->head.base.close(&k->head.base);
    return st;
}

const tr_dnn_problem *tr_cuda_attention_problem(const tr_kernel *plan)
{
    return &((const kernel *)plan)->problem;
}
