/* Convolutions by cuDNN's older API, for what the graph API has no engine for (some combinations of
 * groups, dilation and channels that fill no vector). Algorithms come from cudnnGetConvolution*_v7,
 * best first; the first that is deterministic where that is asked for, keeps to the workspace limit
 * and to the wanted arithmetic is taken. No fusion, and one type for all operands. */
#include "kernels/cuda/dnn/internal.h"

#include <limits.h>

enum { ALGORITHMS = 16 };

/* The parts of cudnnConvolution*AlgoPerf_t, which are three types. */
typedef struct {
    int algo;
    cudnnStatus_t status;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
} offer;

static tr_status fill(const tr_dnn_problem *p, tr_dnn_legacy *l)
{
    tr_status st = TR_OK;
    const cudnnDataType_t type = tr_dnn_type(p->type);
    const int n = (int)p->batch, in = (int)p->in, out_ = (int)p->out;
    const int h = (int)p->size[0], w = (int)p->size[1], oh = (int)p->result[0],
              ow = (int)p->result[1];
    TR_DNN_TRY(cudnnCreateTensorDescriptor(&l->x));
    TR_DNN_TRY(cudnnSetTensor4dDescriptorEx(l->x, type, n, in, h, w, h * w * in, 1, w * in, in));
    TR_DNN_TRY(cudnnCreateTensorDescriptor(&l->y));
    TR_DNN_TRY(cudnnSetTensor4dDescriptorEx(l->y, type, n, out_, oh, ow, oh * ow * out_, 1,
                                            ow * out_, out_));
    TR_DNN_TRY(cudnnCreateFilterDescriptor(&l->w));
    TR_DNN_TRY(cudnnSetFilter4dDescriptor(l->w, type, CUDNN_TENSOR_NHWC, out_, in / (int)p->groups,
                                          (int)p->kernel[0], (int)p->kernel[1]));
    TR_DNN_TRY(cudnnCreateConvolutionDescriptor(&l->conv));
    TR_DNN_TRY(cudnnSetConvolution2dDescriptor(
        l->conv, (int)p->padding[0], (int)p->padding[1], (int)p->stride[0], (int)p->stride[1],
        (int)p->dilation[0], (int)p->dilation[1], CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    TR_DNN_TRY(cudnnSetConvolutionGroupCount(l->conv, (int)p->groups));
    /* float32: CUDNN_DEFAULT_MATH may round to TF32, CUDNN_FMA_MATH may not */
    TR_DNN_TRY(cudnnSetConvolutionMathType(l->conv, p->exact            ? CUDNN_FMA_MATH
                                                    : p->type == TR_F32 ? CUDNN_DEFAULT_MATH
                                                                        : CUDNN_TENSOR_OP_MATH));
out:
    return st;
}

static cudnnStatus_t offers(tr_cuda_dnn *dnn, int64_t pass, const tr_dnn_legacy *l, offer *o,
                            int *n)
{
    cudnnStatus_t s;
#define TAKE(perf)                                                                                 \
    for (int i = 0; s == CUDNN_STATUS_SUCCESS && i < *n && i < ALGORITHMS; i++) o[i] = (offer)     \
        {                                                                                          \
            (int)perf[i].algo, perf[i].status, perf[i].memory, perf[i].determinism,                \
                perf[i].mathType                                                                   \
        }
    if (pass == TR_DNN_FORWARD) {
        cudnnConvolutionFwdAlgoPerf_t perf[ALGORITHMS];
        s = cudnnGetConvolutionForwardAlgorithm_v7(dnn->handle, l->x, l->w, l->conv, l->y,
                                                   ALGORITHMS, n, perf);
        TAKE(perf);
    } else if (pass == TR_DNN_GRAD_INPUT) {
        cudnnConvolutionBwdDataAlgoPerf_t perf[ALGORITHMS];
        s = cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn->handle, l->w, l->y, l->conv, l->x,
                                                        ALGORITHMS, n, perf);
        TAKE(perf);
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t perf[ALGORITHMS];
        s = cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn->handle, l->x, l->y, l->conv, l->w,
                                                          ALGORITHMS, n, perf);
        TAKE(perf);
    }
#undef TAKE
    return s;
}

static bool may_be_taken(const tr_cuda_dnn *dnn, const tr_dnn_problem *p, const offer *o)
{
    if (o->status != CUDNN_STATUS_SUCCESS) return false;
    if (dnn->cuda->o.deterministic && o->determinism != CUDNN_DETERMINISTIC) return false;
    if (p->exact && o->math != CUDNN_FMA_MATH) return false;
    if (o->math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) return false;
    return o->memory <= dnn->cuda->o.workspace;
}

static bool fits_int(const tr_dnn_problem *p)
{
    return p->batch * p->in * p->size[0] * p->size[1] <= INT_MAX &&
           p->batch * p->out * p->result[0] * p->result[1] <= INT_MAX;
}

tr_status tr_dnn_legacy_choose(tr_cuda_dnn *dnn, tr_dnn_plan *plan)
{
    tr_status st = TR_OK;
    const tr_dnn_problem *p = &plan->problem;
    tr_dnn_legacy *l = &plan->legacy;
    offer o[ALGORITHMS];
    cudnnStatus_t s;
    int n = 0, i = 0;
    if (p->bias || p->residual || p->act || !fits_int(p)) return TR_OK;
    if (p->type != p->weight_type || p->type != p->result_type) return TR_OK;
    TR_TRY(fill(p, l));
    s = offers(dnn, p->pass, l, o, &n);
    if (s != CUDNN_STATUS_SUCCESS && tr_dnn_unsupported(dnn, s, "cudnnGetConvolutionAlgorithm_v7"))
        goto out;
    TR_TRY(tr_dnn_check(s, "cudnnGetConvolutionAlgorithm_v7"));
    if (n > ALGORITHMS) n = ALGORITHMS;
    while (i < n && !may_be_taken(dnn, p, &o[i])) i++;
    if (i == n) goto out;
    TR_DNN_TRY(cudnnSetConvolutionMathType(l->conv, o[i].math));
    l->algo = o[i].algo;
    plan->workspace = o[i].memory;
    plan->by_legacy = true;
    snprintf(plan->name, sizeof plan->name, "cuDNN legacy algorithm %d", l->algo);
out:
    return st;
}

tr_status tr_dnn_legacy_run(tr_cuda_dnn *dnn, const tr_dnn_plan *plan, const tr_dnn_operands *at)
{
    const tr_dnn_legacy *l = &plan->legacy;
    const float one = 1, zero = 0;
    switch (plan->problem.pass) {
    case TR_DNN_FORWARD:
        return tr_dnn_check(cudnnConvolutionForward(dnn->handle, &one, l->x, at->x, l->w, at->w,
                                                    l->conv, (cudnnConvolutionFwdAlgo_t)l->algo,
                                                    at->workspace, plan->workspace, &zero, l->y,
                                                    at->y),
                            "cudnnConvolutionForward");
    case TR_DNN_GRAD_INPUT:
        return tr_dnn_check(
            cudnnConvolutionBackwardData(dnn->handle, &one, l->w, at->w, l->y, at->y, l->conv,
                                         (cudnnConvolutionBwdDataAlgo_t)l->algo, at->workspace,
                                         plan->workspace, &zero, l->x, at->x),
            "cudnnConvolutionBackwardData");
    default:
        return tr_dnn_check(
            cudnnConvolutionBackwardFilter(dnn->handle, &one, l->x, at->x, l->y, at->y, l->conv,
                                           (cudnnConvolutionBwdFilterAlgo_t)l->algo, at->workspace,
                                           plan->workspace, &zero, l->w, at->w),
            "cudnnConvolutionBackwardFilter");
    }
}

void tr_dnn_legacy_close(tr_dnn_legacy *l)
{
    if (l->x) cudnnDestroyTensorDescriptor(l->x);
    if (l->y) cudnnDestroyTensorDescriptor(l->y);
    if (l->w) cudnnDestroyFilterDescriptor(l->w);
    if (l->conv) cudnnDestroyConvolutionDescriptor(l->conv);
}
