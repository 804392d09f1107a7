/* Attention and its gradient, by our kernels and by plans of cuDNN's. */
#include "kernels/cuda/loops/attention.h"
#include "tests/bench/cuda_kernels.h"

/* As GPT-2's: sequences of 1024, causal, heads of 64 values, queries, keys and values packed. Their
 * gradient; y, its gradient; log-sum-exp; delta */
enum { SEQUENCE = 1024, HEAD = 64 };

static tr_cuda_attention_args attention_of(const bench *k)
{
    const size_t T = k->rows < SEQUENCE ? k->rows : SEQUENCE, heads = k->width / HEAD;
    const tr_bf16 *packed = k->array[0];
    tr_bf16 *grads = k->array[1];
    return (tr_cuda_attention_args){
        .s = {.samples = k->rows / T,
              .queries = T,
              .keys = T,
              .heads = heads,
              .kv_heads = heads,
              .D = HEAD,
              .q_pitch = 3 * k->width,
              .kv_pitch = 3 * k->width,
              .scale = 0.125f},
        .a = {.heads = (int64_t)heads, .kv_heads = (int64_t)heads, .causal = true},
        .q = packed,
        .k = packed + k->width,
        .v = packed + 2 * k->width,
        .y = k->array[2],
        .dy = k->array[3],
        .dq = grads,
        .dk = grads + k->width,
        .dv = grads + 2 * k->width,
        .lse = k->array[4],
        .delta = k->array[5],
        .matrix = k->matrix};
}

static tr_status run_attention(bench *k)
{
    const tr_cuda_attention_args a = attention_of(k);
    return tr_cuda_attention_run(TR_BF16, &a, k->cuda->stream);
}

static tr_status open_attention(bench *k)
{
    tr_status st = TR_OK;
    const tr_attention_shape s = attention_of(k).s;
    TR_TRY(bench_put_all(k, 2, 3 * k->n, 2));
    TR_TRY(bench_put_all(k, 2, k->n, 2));
    TR_TRY(bench_put_all(k, 2, k->n / HEAD, 4));
    k->matrix = k->cuda->major >= 8;
    TR_TRY(tr_cuda_attention_ready(TR_BF16, HEAD, false, &k->matrix));
    k->flops = 2 * (double)(s.samples * s.heads * s.queries * (s.queries + 1) * HEAD);
out:
    return st;
}

static tr_status open_attention_grad(bench *k)
{
    tr_status st = TR_OK;
    TR_TRY(open_attention(k));
    TR_TRY(run_attention(k)); /* for y and its rows' sums */
    TR_TRY(tr_cuda_attention_ready(TR_BF16, HEAD, true, &k->matrix));
    k->flops *= 2.5; /* five products for two */
out:
    return st;
}

static tr_status run_attention_grad(bench *k)
{
    const tr_cuda_attention_args a = attention_of(k);
    return tr_cuda_attention_grad_run(TR_BF16, &a, k->cuda->stream);
}

/* The same by a plan of cuDNN's. */
static tr_status set_plan(bench *k, tr_dnn_pass pass)
{
    tr_status st = TR_OK;
    const tr_cuda_attention_args a = attention_of(k);
    const tr_attention_shape *s = &a.s;
    const int64_t heads = (int64_t)s->heads, width = (int64_t)k->width;
    const tr_dnn_problem p = {.pass = pass,
                              .type = TR_BF16,
                              .attention = {.samples = (int64_t)s->samples,
                                            .queries = (int64_t)s->queries,
                                            .keys = (int64_t)s->keys,
                                            .heads = heads,
                                            .kv_heads = heads,
                                            .D = HEAD,
                                            .q_pitch = 3 * width,
                                            .kv_pitch = 3 * width,
                                            .k_at = width,
                                            .v_at = 2 * width,
                                            .causal = 1,
                                            .lse = 1,
                                            .scale = (double)s->scale}};
    tr_dnn_operands at = {.q = k->array[0],
                          .k = (void *)(uintptr_t)a.k,
                          .v = (void *)(uintptr_t)a.v,
                          .o = a.y,
                          .lse = a.lse};
    const tr_dnn_plan *plan = NULL;
    TR_TRY(tr_dnn_plan_get(k->cuda->dnn, &p, &plan));
    k->left_out = !plan;
    if (!plan) goto out;
    if (pass == TR_DNN_ATTENTION_GRAD) {
        at.d_o = k->array[3];
        at.dq = a.dq;
        at.dk = a.dk;
        at.dv = a.dv;
        at.delta = a.delta;
        TR_TRY(bench_put(k, k->n, 4, &at.sums));
    }
    TR_TRY(bench_put(k, tr_dnn_plan_workspace(plan) / 4 + 1, 4, &at.workspace));
    TR_TRY(tr_dnn_call_set(&k->call, plan, &at));
out:
    return st;
}

static tr_status open_attention_plan(bench *k)
{
    const tr_status st = open_attention(k);
    return st == TR_OK ? set_plan(k, TR_DNN_ATTENTION) : st;
}

static tr_status open_attention_grad_plan(bench *k)
{
    const tr_status st = open_attention_grad(k);
    return st == TR_OK ? set_plan(k, TR_DNN_ATTENTION_GRAD) : st;
}

static tr_status run_attention_plan(bench *k)
{
    return tr_dnn_call_run(k->cuda->dnn, &k->call);
}

static const bench_case cases[] = {
    {"attention, 8 x 1024 x 768", 8192, 768, 8, 0, open_attention, run_attention},
    {"attention, 8 x 1024 x 768, cuDNN", 8192, 768, 8, 0, open_attention_plan, run_attention_plan},
    {"attention.grad, 8 x 1024 x 768", 8192, 768, 16, 0, open_attention_grad, run_attention_grad},
    {"attention.grad, 8 x 1024 x 768, cuDNN", 8192, 768, 16, 0, open_attention_grad_plan,
     run_attention_plan},
};
const bench_subject bench_attention = {cases, TR_COUNT(cases)};
