// cuDNN's imperative convolutions: tensor, filter and convolution descriptors, the _v7 queries, the
// four passes. Pooling and the rest of the imperative API are not here: nothing of the project
// calls them.
//
// Supported, after the tables of "cudnn_cnn Library": x, w, y of one type, compute type float32
// (FLOAT_CONFIG, PSEUDO_HALF_CONFIG, PSEUDO_BFLOAT16_CONFIG). With an NHWC filter x and y must be
// channels-last packed and these algorithms exist: forward IMPLICIT_GEMM, IMPLICIT_PRECOMP_GEMM;
// data ALGO_0 (nondeterministic), ALGO_1; filter ALGO_0 (nondeterministic), ALGO_1. The queries
// list them best first, then the others with their status. What an algorithm is called with
// matters: asking for a nondeterministic one really gives other last bits at each run.
#include "tests/fakegpu/cudnn_math.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

using namespace fakegpu::dnn;
using fakegpu::fails;

struct cudnnTensorStruct {
    Tensor t;
    bool set;
};

struct cudnnFilterStruct {
    Tensor t;
    bool set, nhwc;
};

struct cudnnConvolutionStruct {
    Conv c;
    int groups;
    cudnnMathType_t math;
    bool set;
};

template <class T> static cudnnStatus_t create(const char *call, T **out, const char *what)
{
    if (fails(call)) return injected(call);
    if (!out) return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s(NULL)", call);
    *out = new T{};
    made(*out, what);
    return CUDNN_STATUS_SUCCESS;
}

template <class T> static cudnnStatus_t destroy(const char *call, T *p, const char *what)
{
    const bool fault = fails(call);
    if (!p) return fault ? injected(call) : CUDNN_STATUS_SUCCESS;
    destroyed(call, p, what);
    delete p;
    return fault ? injected(call) : CUDNN_STATUS_SUCCESS;
}

static void need(const char *call, const void *p, const char *what)
{
    if (!alive(p, what)) fakegpu::violation(call, "%p is no %s (destroyed?)", p, what);
}

static bool a_type(cudnnDataType_t t)
{
    return t == CUDNN_DATA_FLOAT || t == CUDNN_DATA_HALF || t == CUDNN_DATA_BFLOAT16;
}

static cudnnStatus_t set_tensor(Tensor *t, cudnnDataType_t type, const int dim[4],
                                const int stride[4])
{
    for (int i = 0; i < 4; i++)
        if (dim[i] < 1 || stride[i] < 1)
            return wrong(CUDNN_STATUS_BAD_PARAM, "size %d, stride %d of dimension %d", dim[i],
                         stride[i], i);
    if (!a_type(type)) return wrong(CUDNN_STATUS_NOT_SUPPORTED, "data type %d", (int)type);
    Tensor made{};
    made.type = type, made.nd = 4, made.alignment = (int64_t)made.element();
    std::copy_n(dim, 4, made.dim);
    std::copy_n(stride, 4, made.stride);
    if (made.extent() / made.element() > (size_t)1 << 31)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "over 2 Giga-elements");
    *t = made;
    return CUDNN_STATUS_SUCCESS;
}

static void packed(const int d[4], cudnnTensorFormat_t format, int stride[4])
{
    if (format == CUDNN_TENSOR_NHWC)
        stride[1] = 1, stride[3] = d[1], stride[2] = d[3] * d[1], stride[0] = d[2] * d[3] * d[1];
    else
        stride[3] = 1, stride[2] = d[3], stride[1] = d[2] * d[3], stride[0] = d[1] * d[2] * d[3];
}

static bool is_packed(const Tensor &t, cudnnTensorFormat_t format)
{
    const int dim[4] = {(int)t.dim[0], (int)t.dim[1], (int)t.dim[2], (int)t.dim[3]};
    int stride[4];
    packed(dim, format, stride);
    for (int i = 0; i < 4; i++)
        if (dim[i] > 1 && t.stride[i] != stride[i]) return false;
    return true;
}

// ---- One problem, whichever pass ----

struct Problem {
    Op op;
    bool nhwc;
};

static cudnnStatus_t problem(const char *call, cudnnHandle_t handle, Kind kind,
                             cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                             cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y, Problem *p)
{
    if (!handle || !x || !w || !c || !y)
        return wrong(CUDNN_STATUS_BAD_PARAM, "%s: a handle or descriptor is NULL", call);
    need_handle(call, handle);
    need(call, x, "tensor descriptor"), need(call, y, "tensor descriptor");
    need(call, w, "filter descriptor"), need(call, c, "convolution descriptor");
    if (!x->set || !w->set || !c->set || !y->set)
        return wrong(CUDNN_STATUS_BAD_PARAM, "%s: a descriptor was not set", call);
    *p = {};
    Op &op = p->op;
    op.kind = kind, op.x = x->t, op.w = w->t, op.y = y->t, op.conv = c->c, op.alpha = 1;
    p->nhwc = w->nhwc;
    if (op.x.dim[1] != op.w.dim[1] * c->groups || op.w.dim[0] % c->groups ||
        op.x.dim[0] != op.y.dim[0] || op.y.dim[1] != op.w.dim[0])
        return wrong(CUDNN_STATUS_BAD_PARAM, "%s: channels, groups or images do not fit", call);
    for (int i = 0; i < 2; i++) {
        const int64_t room = op.x.dim[i + 2] + 2 * op.conv.pre[i] -
                             ((op.w.dim[i + 2] - 1) * op.conv.dilation[i] + 1);
        if (room < 0 || op.y.dim[i + 2] != room / op.conv.stride[i] + 1)
            return wrong(CUDNN_STATUS_BAD_PARAM, "%s: spatial dimension %d does not fit", call, i);
    }
    if (op.x.type != op.w.type || op.x.type != op.y.type || op.conv.compute != CUDNN_DATA_FLOAT)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "%s: no configuration of these data types", call);
    if (p->nhwc && (!is_packed(op.x, CUDNN_TENSOR_NHWC) || !is_packed(op.y, CUDNN_TENSOR_NHWC)))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "%s: an NHWC filter wants NHWC-packed tensors",
                     call);
    return CUDNN_STATUS_SUCCESS;
}

struct Algorithm {
    Kind kind;
    int id;
    cudnnStatus_t status;
    size_t workspace;
    cudnnDeterminism_t determinism;
    bool reads_nchw_filter; // only
};

static const Algorithm algorithms[] = {
    {Kind::forward, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_STATUS_SUCCESS, 0,
     CUDNN_DETERMINISTIC, true},
    {Kind::forward, CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, CUDNN_STATUS_SUCCESS, (size_t)1 << 36,
     CUDNN_DETERMINISTIC, true},
    {Kind::forward, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_STATUS_SUCCESS, 1 << 18,
     CUDNN_DETERMINISTIC, false},
    {Kind::forward, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_STATUS_SUCCESS, 0,
     CUDNN_DETERMINISTIC, false},
    {Kind::forward, CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, CUDNN_STATUS_NOT_SUPPORTED, 0,
     CUDNN_DETERMINISTIC, false},
    {Kind::data, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_STATUS_SUCCESS, 0,
     CUDNN_NON_DETERMINISTIC, false},
    {Kind::data, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_STATUS_SUCCESS, 0,
     CUDNN_DETERMINISTIC, true},
    {Kind::data, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_STATUS_SUCCESS, 1 << 18,
     CUDNN_DETERMINISTIC, false},
    {Kind::data, CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_STATUS_NOT_SUPPORTED, 0,
     CUDNN_DETERMINISTIC, false},
    {Kind::filter, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_STATUS_SUCCESS, 0,
     CUDNN_NON_DETERMINISTIC, false},
    {Kind::filter, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, CUDNN_STATUS_SUCCESS, 1 << 10,
     CUDNN_NON_DETERMINISTIC, true},
    {Kind::filter, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_STATUS_SUCCESS, 1 << 18,
     CUDNN_DETERMINISTIC, false},
    {Kind::filter, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_STATUS_NOT_SUPPORTED, 0,
     CUDNN_DETERMINISTIC, false},
};

static cudnnStatus_t status_of(const Algorithm &a, const Problem &p)
{
    return a.reads_nchw_filter && p.nhwc ? CUDNN_STATUS_NOT_SUPPORTED : a.status;
}

static const Algorithm *algorithm(Kind kind, int id, const Problem &p)
{
    for (const Algorithm &a : algorithms)
        if (a.kind == kind && a.id == id && status_of(a, p) == CUDNN_STATUS_SUCCESS) return &a;
    return nullptr;
}

template <class Perf, class Id>
static cudnnStatus_t query(const char *call, cudnnHandle_t handle, Kind kind,
                           cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                           cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y, int requested,
                           int *returned, Perf *to, Id)
{
    Problem p;
    int n = 0;
    if (fails(call)) return injected(call);
    if (!returned || !to || requested < 1)
        return wrong(CUDNN_STATUS_BAD_PARAM, "%s: nowhere to write results", call);
    const cudnnStatus_t s = problem(call, handle, kind, x, w, c, y, &p);
    if (s != CUDNN_STATUS_SUCCESS) return s;
    for (const bool usable : {true, false})
        for (const Algorithm &a : algorithms) {
            const cudnnStatus_t of = status_of(a, p);
            if (a.kind != kind || (of == CUDNN_STATUS_SUCCESS) != usable || n == requested)
                continue;
            to[n] = {};
            to[n].algo = (Id)a.id, to[n].status = of, to[n].time = usable ? (float)(n + 1) : -1.0f;
            to[n].memory = a.workspace, to[n].determinism = a.determinism, to[n].mathType = c->math;
            n++;
        }
    *returned = n;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t workspace(const char *call, cudnnHandle_t handle, Kind kind,
                               cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                               cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y, int id,
                               size_t *size)
{
    Problem p;
    if (fails(call)) return injected(call);
    if (!size) return wrong(CUDNN_STATUS_BAD_PARAM, "%s: nowhere to write the size", call);
    const cudnnStatus_t s = problem(call, handle, kind, x, w, c, y, &p);
    if (s != CUDNN_STATUS_SUCCESS) return s;
    const Algorithm *a = algorithm(kind, id, p);
    if (!a) return wrong(CUDNN_STATUS_NOT_SUPPORTED, "%s: algorithm %d", call, id);
    *size = a->workspace;
    return CUDNN_STATUS_SUCCESS;
}

struct At {
    const void *x, *w, *y; // one of them is written
    void *workspace;
    size_t room;
    const void *alpha, *beta;
};

static cudnnStatus_t run(const char *call, cudnnHandle_t handle, Kind kind,
                         cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                         cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y, int id,
                         const At &at)
{
    Problem p;
    if (fails(call)) return injected(call);
    if (!at.x || !at.w || !at.y || !at.alpha || !at.beta)
        return wrong(CUDNN_STATUS_BAD_PARAM, "%s: a pointer is NULL", call);
    const cudnnStatus_t s = problem(call, handle, kind, x, w, c, y, &p);
    if (s != CUDNN_STATUS_SUCCESS) return s;
    const Algorithm *a = algorithm(kind, id, p);
    if (!a) return wrong(CUDNN_STATUS_NOT_SUPPORTED, "%s: algorithm %d", call, id);
    if (a->workspace && (!at.workspace || at.room < a->workspace))
        return wrong(CUDNN_STATUS_BAD_PARAM, "%s: %zu bytes of workspace, %zu needed", call,
                     at.workspace ? at.room : 0, a->workspace);
    p.op.alpha = *static_cast<const float *>(at.alpha);
    p.op.beta = *static_cast<const float *>(at.beta);
    const Algorithm how = *a;
    const Op op = p.op;
    const auto check = [=] {
        fakegpu::need_device(call, "x", at.x, op.x.extent());
        fakegpu::need_device(call, "w", at.w, op.w.extent());
        fakegpu::need_device(call, "y", at.y, op.y.extent());
        if (how.workspace) fakegpu::need_device(call, "workspace", at.workspace, how.workspace);
    };
    fakegpu::need_aligned(call, "x", at.x, op.x.element());
    fakegpu::need_aligned(call, "w", at.w, op.w.element());
    fakegpu::need_aligned(call, "y", at.y, op.y.element());
    check();
    const auto step = [=] {
        static const std::vector<float> none;
        const Tensor &out = op.out();
        void *to = const_cast<void *>(op.kind == Kind::data     ? at.x
                                      : op.kind == Kind::filter ? at.w
                                                                : at.y);
        check();
        if (how.workspace) memset(at.workspace, 0xa5, how.workspace);
        std::vector<float> v = convolve(op, kind == Kind::data ? none : load(op.x, at.x),
                                        kind == Kind::filter ? none : load(op.w, at.w),
                                        kind == Kind::forward ? none : load(op.y, at.y), {});
        if (how.determinism == CUDNN_NON_DETERMINISTIC) jitter(v);
        for (float &f : v) f *= (float)op.alpha;
        if (op.beta != 0) {
            const std::vector<float> before = load(out, to);
            for (size_t i = 0; i < v.size(); i++) v[i] += (float)op.beta * before[i];
        }
        store(out, to, v);
        return true;
    };
    return of_cuda(fakegpu::enqueue(handle->stream, {call, {}, step, {}}), call);
}

extern "C" {

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *d)
{
    return create("cudnnCreateTensorDescriptor", d, "tensor descriptor");
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d)
{
    return destroy("cudnnDestroyTensorDescriptor", d, "tensor descriptor");
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t d, cudnnDataType_t type, int n,
                                           int c, int h, int w, int ns, int cs, int hs, int ws)
{
    const int dim[4] = {n, c, h, w}, stride[4] = {ns, cs, hs, ws};
    DNN_CALL("cudnnSetTensor4dDescriptorEx");
    if (!d) return wrong(CUDNN_STATUS_BAD_PARAM, "no tensor descriptor");
    need("cudnnSetTensor4dDescriptorEx", d, "tensor descriptor");
    const cudnnStatus_t s = set_tensor(&d->t, type, dim, stride);
    d->set = d->set || s == CUDNN_STATUS_SUCCESS;
    return s;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w)
{
    const int dim[4] = {n, c, h, w};
    int s[4];
    if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)
        return wrong(CUDNN_STATUS_BAD_PARAM, "tensor format %d", (int)format);
    packed(dim, format, s);
    return cudnnSetTensor4dDescriptorEx(d, type, n, c, h, w, s[0], s[1], s[2], s[3]);
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *d)
{
    return create("cudnnCreateFilterDescriptor", d, "filter descriptor");
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d)
{
    return destroy("cudnnDestroyFilterDescriptor", d, "filter descriptor");
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    const int dim[4] = {k, c, h, w};
    int stride[4];
    DNN_CALL("cudnnSetFilter4dDescriptor");
    if (!d || (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC))
        return wrong(CUDNN_STATUS_BAD_PARAM, "no filter descriptor, or format %d", (int)format);
    need("cudnnSetFilter4dDescriptor", d, "filter descriptor");
    packed(dim, format, stride);
    const cudnnStatus_t s = set_tensor(&d->t, type, dim, stride);
    d->nhwc = format == CUDNN_TENSOR_NHWC;
    d->set = d->set || s == CUDNN_STATUS_SUCCESS;
    return s;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *d)
{
    const cudnnStatus_t s = create("cudnnCreateConvolutionDescriptor", d, "convolution descriptor");
    if (s == CUDNN_STATUS_SUCCESS) (*d)->groups = 1;
    return s;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d)
{
    return destroy("cudnnDestroyConvolutionDescriptor", d, "convolution descriptor");
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int ph, int pw,
                                              int sh, int sw, int dh, int dw,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute)
{
    DNN_CALL("cudnnSetConvolution2dDescriptor");
    if (!d || ph < 0 || pw < 0 || sh < 1 || sw < 1 || dh < 1 || dw < 1 ||
        (mode != CUDNN_CONVOLUTION && mode != CUDNN_CROSS_CORRELATION))
        return wrong(CUDNN_STATUS_BAD_PARAM, "padding, stride, dilation or mode of a convolution");
    need("cudnnSetConvolution2dDescriptor", d, "convolution descriptor");
    d->c = {compute, mode, 2, {ph, pw}, {ph, pw}, {sh, sw}, {dh, dw}};
    d->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups)
{
    DNN_CALL("cudnnSetConvolutionGroupCount");
    if (!d || groups < 1) return wrong(CUDNN_STATUS_BAD_PARAM, "%d groups", groups);
    need("cudnnSetConvolutionGroupCount", d, "convolution descriptor");
    d->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math)
{
    DNN_CALL("cudnnSetConvolutionMathType");
    if (!d || math < CUDNN_DEFAULT_MATH || math > CUDNN_FMA_MATH)
        return wrong(CUDNN_STATUS_BAD_PARAM, "math type %d", (int)math);
    need("cudnnSetConvolutionMathType", d, "convolution descriptor");
    d->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, const int requested,
    int *returned, cudnnConvolutionFwdAlgoPerf_t *to)
{
    return query("cudnnGetConvolutionForwardAlgorithm_v7", h, Kind::forward, x, w, c, y, requested,
                 returned, to, cudnnConvolutionFwdAlgo_t());
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t h, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx, const int requested,
    int *returned, cudnnConvolutionBwdDataAlgoPerf_t *to)
{
    return query("cudnnGetConvolutionBackwardDataAlgorithm_v7", h, Kind::data, dx, w, c, dy,
                 requested, returned, to, cudnnConvolutionBwdDataAlgo_t());
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw, const int requested,
    int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *to)
{
    return query("cudnnGetConvolutionBackwardFilterAlgorithm_v7", h, Kind::filter, x, dw, c, dy,
                 requested, returned, to, cudnnConvolutionBwdFilterAlgo_t());
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t h,
                                                      const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t c,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *size)
{
    return workspace("cudnnGetConvolutionForwardWorkspaceSize", h, Kind::forward, x, w, c, y, algo,
                     size);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t h, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *size)
{
    return workspace("cudnnGetConvolutionBackwardDataWorkspaceSize", h, Kind::data, dx, w, c, dy,
                     algo, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *size)
{
    return workspace("cudnnGetConvolutionBackwardFilterWorkspaceSize", h, Kind::filter, x, dw, c,
                     dy, algo, size);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha,
                                      const cudnnTensorDescriptor_t xd, const void *x,
                                      const cudnnFilterDescriptor_t wd, const void *w,
                                      const cudnnConvolutionDescriptor_t c,
                                      cudnnConvolutionFwdAlgo_t algo, void *ws, size_t room,
                                      const void *beta, const cudnnTensorDescriptor_t yd, void *y)
{
    return run("cudnnConvolutionForward", h, Kind::forward, xd, wd, c, yd, algo,
               {x, w, y, ws, room, alpha, beta});
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha,
                                           const cudnnFilterDescriptor_t wd, const void *w,
                                           const cudnnTensorDescriptor_t dyd, const void *dy,
                                           const cudnnConvolutionDescriptor_t c,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *ws,
                                           size_t room, const void *beta,
                                           const cudnnTensorDescriptor_t dxd, void *dx)
{
    return run("cudnnConvolutionBackwardData", h, Kind::data, dxd, wd, c, dyd, algo,
               {dx, w, dy, ws, room, alpha, beta});
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha,
                                             const cudnnTensorDescriptor_t xd, const void *x,
                                             const cudnnTensorDescriptor_t dyd, const void *dy,
                                             const cudnnConvolutionDescriptor_t c,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *ws,
                                             size_t room, const void *beta,
                                             const cudnnFilterDescriptor_t dwd, void *dw)
{
    return run("cudnnConvolutionBackwardFilter", h, Kind::filter, xd, dwd, c, dyd, algo,
               {x, dw, dy, ws, room, alpha, beta});
}

} // extern "C"
