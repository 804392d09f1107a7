/* The cuDNN handle, errors, the cache of plans, and running one. The cache is a list: a model has
 * tens of different convolutions, and it is looked through only while kernels are prepared. */
#include "kernels/cuda/dnn/internal.h"

#include <string.h>

tr_status tr_dnn_check(cudnnStatus_t s, const char *call)
{
    char last[512] = "";
    if (s == CUDNN_STATUS_SUCCESS) return TR_OK;
    cudnnGetLastErrorString(last, sizeof last);
    return TR_FAIL(TR_KERNEL, "%s: %s%s%s", call, cudnnGetErrorString(s), last[0] ? ": " : "",
                   last);
}

static bool refuse(tr_cuda_dnn *dnn, cudnnStatus_t s, const char *call, bool refused)
{
    char last[512] = "";
    if (!refused) return false;
    cudnnGetLastErrorString(last, sizeof last);
    snprintf(dnn->refusal, sizeof dnn->refusal, "%s: %s%s%s", call, cudnnGetErrorString(s),
             last[0] ? ": " : "", last);
    return true;
}

bool tr_dnn_unsupported(tr_cuda_dnn *dnn, cudnnStatus_t s, const char *call)
{
    return refuse(dnn, s, call, CUDNN_STATUS_CATEGORY((int)s) == 3000);
}

/* Some configurations that the heuristics name fail to compile, which the library calls an internal
 * error of these three kinds; another one may do. */
bool tr_dnn_refused(tr_cuda_dnn *dnn, cudnnStatus_t s, const char *call)
{
    const int category = CUDNN_STATUS_CATEGORY((int)s);
    return refuse(dnn, s, call,
                  category == 2000 || category == 3000 || s == CUDNN_STATUS_INTERNAL_ERROR ||
                      s == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED ||
                      s == CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE);
}

cudnnDataType_t tr_dnn_type(int64_t dtype)
{
    return dtype == TR_BF16  ? CUDNN_DATA_BFLOAT16
           : dtype == TR_F16 ? CUDNN_DATA_HALF
                             : CUDNN_DATA_FLOAT;
}

tr_status tr_cuda_dnn_open(tr_cuda *cuda, tr_cuda_dnn **out)
{
    tr_status st = TR_OK;
    tr_cuda_dnn *dnn = TR_NEW(TR_MEM_OTHER, tr_cuda_dnn);
    if (!dnn) return tr_last_status();
    dnn->cuda = cuda;
    TR_DNN_TRY(cudnnCreate(&dnn->handle));
    TR_DNN_TRY(cudnnSetStream(dnn->handle, cuda->stream));
out:
    if (st != TR_OK) {
        tr_cuda_dnn_close(dnn);
        return st;
    }
    *out = dnn;
    return TR_OK;
}

static void plan_close(tr_dnn_plan *plan)
{
    if (plan->graph) cudnnBackendDestroyDescriptor(plan->graph);
    tr_free(plan->refusal);
    tr_free(plan);
}

void tr_cuda_dnn_close(tr_cuda_dnn *dnn)
{
    if (!dnn) return;
    while (dnn->plans) {
        tr_dnn_plan *next = dnn->plans->next;
        plan_close(dnn->plans);
        dnn->plans = next;
    }
    if (dnn->handle) cudnnDestroy(dnn->handle);
    tr_free(dnn);
}

tr_status tr_dnn_plan_get(tr_cuda_dnn *dnn, const tr_dnn_problem *p, const tr_dnn_plan **out)
{
    tr_status st = TR_OK;
    tr_dnn_plan *plan = dnn->plans;
    while (plan && memcmp(&plan->problem, p, sizeof *p) != 0) plan = plan->next;
    dnn->last = plan;
    if (plan) {
        *out = plan->graph ? plan : NULL;
        return TR_OK;
    }
    plan = TR_NEW(TR_MEM_OTHER, tr_dnn_plan);
    if (!plan) return tr_last_status();
    plan->problem = *p;
    tr_dnn_attention_numbers(p, plan->numbers);
    snprintf(dnn->refusal, sizeof dnn->refusal, "none is offered");
    dnn->counts.searches++;
    TR_TRY(tr_dnn_choose(dnn, plan));
    if (!plan->graph && !(plan->refusal = tr_strdup(dnn->refusal))) st = tr_last_status();
out:
    if (st != TR_OK) {
        plan_close(plan);
        return st;
    }
    plan->next = dnn->plans;
    dnn->last = dnn->plans = plan;
    dnn->counts.plans++;
    *out = plan->graph ? plan : NULL;
    return TR_OK;
}

size_t tr_dnn_plan_workspace(const tr_dnn_plan *plan)
{
    return plan->workspace;
}

const char *tr_dnn_plan_name(const tr_dnn_plan *plan)
{
    return plan->name;
}

const char *tr_dnn_refusal(const tr_cuda_dnn *dnn)
{
    return dnn->last && dnn->last->refusal ? dnn->last->refusal : "";
}

bool tr_dnn_broken(const tr_cuda_dnn *dnn)
{
    return dnn->last && dnn->last->broken;
}

tr_dnn_counts tr_dnn_count(const tr_cuda_dnn *dnn)
{
    return dnn->counts;
}

tr_status tr_dnn_call_set(tr_dnn_call *c, const tr_dnn_plan *plan, const tr_dnn_operands *at)
{
    tr_status st = TR_OK;
    cudnnBackendDescriptor_t pack = NULL;
    if (c->plan != plan) tr_dnn_call_close(c);
    for (int i = 0; i < c->used; i++)
        if (memcmp(&c->at[i], at, sizeof *at) == 0) {
            c->current = i;
            return TR_OK;
        }
    TR_TRY(tr_dnn_pack_open(plan, at, &pack));
    c->plan = plan;
    c->current = c->used < TR_DNN_SETS ? c->used++ : (c->current + 1) % TR_DNN_SETS;
    if (c->pack[c->current]) cudnnBackendDestroyDescriptor(c->pack[c->current]);
    c->pack[c->current] = pack;
    c->at[c->current] = *at;
out:
    return st;
}

tr_status tr_dnn_call_run(tr_cuda_dnn *dnn, const tr_dnn_call *c)
{
    return tr_dnn_check(cudnnBackendExecute(dnn->handle, c->plan->graph, c->pack[c->current]),
                        "cudnnBackendExecute");
}

void tr_dnn_call_close(tr_dnn_call *c)
{
    for (int i = 0; i < c->used; i++)
        if (c->pack[i]) cudnnBackendDestroyDescriptor(c->pack[i]);
    memset(c, 0, sizeof *c);
}
