// cudnnBackendFinalize: are the attributes of a descriptor there, and do they fit each other?
//
// Statuses are the library's own where it says so without a device. Like the library, an operation
// is not asked whether anything supports it: that the heuristics say (cudnn_engines.cc). Where the
// documentation calls an attribute required and the library takes a silent default, it is refused
// here.
#include "tests/fakegpu/cudnn_math.h"

#include <algorithm>
#include <cmath>

namespace fakegpu::dnn
{

#define NEED(condition)                                                                            \
    if (!(condition)) return wrong(CUDNN_STATUS_BAD_PARAM, "!(%s)", #condition)

static cudnnStatus_t tensor(Descriptor *d)
{
    Tensor t{};
    const Value *dims = d->find(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const Value *strides = d->find(CUDNN_ATTR_TENSOR_STRIDES);
    NEED(dims && strides && dims->count == strides->count);
    NEED(d->find(CUDNN_ATTR_TENSOR_DATA_TYPE));
    t.type = d->as<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
    t.nd = (int)dims->count;
    std::copy_n(reinterpret_cast<const int64_t *>(dims->bytes.data()), t.nd, t.dim);
    std::copy_n(reinterpret_cast<const int64_t *>(strides->bytes.data()), t.nd, t.stride);
    for (int i = 0; i < t.nd; i++) NEED(t.dim[i] >= 0 && t.stride[i] >= 0);
    t.has_uid = d->find(CUDNN_ATTR_TENSOR_UNIQUE_ID) != nullptr;
    t.uid = d->i64(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    t.alignment = d->i64(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
    NEED(t.alignment > 0 && t.alignment % (int64_t)t.element() == 0);
    t.is_virtual = d->as<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
    t.by_value = d->as<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
    NEED(!t.by_value || (!t.is_virtual && t.count() == 1 && t.type == CUDNN_DATA_FLOAT));
    d->tensor = std::make_shared<Tensor>(t);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t convolution(Descriptor *d)
{
    const int names[4] = {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                          CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_DILATIONS};
    Conv c{};
    int64_t *const to[4] = {c.pre, c.post, c.stride, c.dilation};
    NEED(d->find(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) && d->find(CUDNN_ATTR_CONVOLUTION_CONV_MODE));
    NEED(d->find(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
    c.compute = d->as<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    c.mode = d->as<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CONVOLUTION);
    NEED(c.mode == CUDNN_CONVOLUTION || c.mode == CUDNN_CROSS_CORRELATION);
    c.spatial = (int)d->i64(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0);
    NEED(c.spatial >= 1 && c.spatial <= 6);
    for (int i = 0; i < 4; i++) {
        const Value *v = d->find(names[i]);
        NEED(v && v->count == c.spatial);
        std::copy_n(reinterpret_cast<const int64_t *>(v->bytes.data()), c.spatial, to[i]);
        for (int j = 0; j < c.spatial; j++) NEED(to[i][j] >= (i < 2 ? 0 : 1));
    }
    d->conv = std::make_shared<Conv>(c);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t convolution_operation(Descriptor *d, Kind kind)
{
    struct Names {
        int alpha, beta, conv, x, w, y;
    };
#define N(n, x, w, y)                                                                              \
    {                                                                                              \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_BETA, \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_CONV_DESC,                                      \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_##x,                                            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_##w, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_##y \
    }
    static const Names all[3] = {N(FORWARD, X, W, Y), N(BWD_DATA, DX, W, DY),
                                 N(BWD_FILTER, X, DW, DY)};
#undef N
    const Names &n = all[(int)kind];
    const Descriptor *c = d->inner(n.conv), *x = d->inner(n.x), *w = d->inner(n.w),
                     *y = d->inner(n.y);
    NEED(x && x->finalized && w && w->finalized && y && y->finalized && c && c->finalized);
    Op op{};
    op.kind = kind, op.x = *x->tensor, op.w = *w->tensor, op.y = *y->tensor, op.conv = *c->conv;
    op.alpha = d->real(n.alpha, 1), op.beta = d->real(n.beta, 0);
    const Tensor &X = op.x, &W = op.w, &Y = op.y;
    NEED(X.nd == op.conv.spatial + 2 && W.nd == X.nd && Y.nd == X.nd);
    NEED(Y.dim[0] == X.dim[0]);
    NEED(Y.dim[1] == W.dim[0]);
    NEED(W.dim[1] > 0 && X.dim[1] > 0 && X.dim[1] % W.dim[1] == 0);
    NEED(W.dim[0] % (X.dim[1] / W.dim[1]) == 0);
    for (int i = 0; i < op.conv.spatial; i++) {
        const int64_t room = X.dim[i + 2] + op.conv.pre[i] + op.conv.post[i] -
                             ((W.dim[i + 2] - 1) * op.conv.dilation[i] + 1);
        NEED(room >= 0 && Y.dim[i + 2] == room / op.conv.stride[i] + 1);
    }
    d->op = std::make_shared<Op>(op);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t pointwise_descriptor(Descriptor *d)
{
    Pointwise p{};
    NEED(d->find(CUDNN_ATTR_POINTWISE_MODE) && d->find(CUDNN_ATTR_POINTWISE_MATH_PREC));
    p.mode = d->as<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
    p.math = d->as<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    p.lower = d->real(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0);
    p.upper = d->real(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, INFINITY);
    p.slope = d->real(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0);
    p.elu_alpha = d->real(CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1);
    p.softplus_beta = d->real(CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA, 1);
    p.axis = d->i64(CUDNN_ATTR_POINTWISE_AXIS, -1);
    NEED(p.mode != CUDNN_POINTWISE_GEN_INDEX || p.axis >= 0);
    p.swish_beta = d->real(CUDNN_ATTR_POINTWISE_SWISH_BETA, 1);
    d->pointwise = std::make_shared<Pointwise>(p);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t pointwise_operation(Descriptor *d)
{
    const Descriptor *p = d->inner(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const Descriptor *x = d->inner(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Descriptor *b = d->inner(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const Descriptor *t = d->inner(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const Descriptor *y = d->inner(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    NEED(p && p->finalized && x && x->finalized && y && y->finalized && (!b || b->finalized));
    NEED(!t || t->finalized);
    NEED((t != nullptr) == (p->pointwise->mode == CUDNN_POINTWISE_BINARY_SELECT));
    NEED(b || !binary_pointwise(p->pointwise->mode));
    Op op{};
    op.kind = Kind::pointwise, op.pw = *p->pointwise, op.x = *x->tensor, op.y = *y->tensor;
    op.has_b = b && binary_pointwise(op.pw.mode);
    if (op.has_b) op.w = *b->tensor;
    op.has_t = t != nullptr;
    if (op.has_t) op.t = *t->tensor;
    op.alpha = d->real(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1);
    op.beta = d->real(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1);
    NEED(op.x.nd == op.y.nd && (!op.has_b || op.w.nd == op.x.nd));
    d->op = std::make_shared<Op>(op);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t matmul_operation(Descriptor *d)
{
    const Descriptor *m = d->inner(CUDNN_ATTR_OPERATION_MATMUL_DESC);
    const Descriptor *a = d->inner(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const Descriptor *b = d->inner(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    const Descriptor *c = d->inner(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    NEED(m && m->finalized && a && a->finalized && b && b->finalized && c && c->finalized);
    Op op{};
    op.kind = Kind::matmul, op.x = *a->tensor, op.w = *b->tensor, op.y = *c->tensor;
    const Tensor &A = op.x, &B = op.w, &C = op.y;
    NEED(A.nd == 4 && B.nd == 4 && C.nd == 4 && A.dim[0] == C.dim[0] && B.dim[0] == C.dim[0]);
    NEED(A.dim[1] == C.dim[1] && B.dim[1] > 0 && C.dim[1] % B.dim[1] == 0);
    NEED(A.dim[2] == C.dim[2] && A.dim[3] == B.dim[2] && B.dim[3] == C.dim[3]);
    d->op = std::make_shared<Op>(op);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t reduction_descriptor(Descriptor *d)
{
    NEED(d->find(CUDNN_ATTR_REDUCTION_COMP_TYPE) && d->find(CUDNN_ATTR_REDUCTION_OPERATOR));
    const auto op = d->as<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR, {});
    if (op != CUDNN_REDUCE_TENSOR_ADD && op != CUDNN_REDUCE_TENSOR_MAX)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "reduction %d", op);
    d->reduce = std::make_shared<cudnnReduceTensorOp_t>(op);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t reduction_operation(Descriptor *d)
{
    const Descriptor *r = d->inner(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const Descriptor *x = d->inner(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    const Descriptor *y = d->inner(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    NEED(r && r->finalized && x && x->finalized && y && y->finalized);
    Op op{};
    op.kind = Kind::reduction, op.reduce = *r->reduce, op.x = *x->tensor, op.y = *y->tensor;
    NEED(op.x.nd == 4 && op.y.nd == 4);
    for (int i = 0; i < 4; i++) NEED(op.y.dim[i] > 0 && op.x.dim[i] % op.y.dim[i] == 0);
    d->op = std::make_shared<Op>(op);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t reshape_operation(Descriptor *d)
{
    const Descriptor *x = d->inner(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    const Descriptor *y = d->inner(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    NEED(x && x->finalized && y && y->finalized);
    Op op{};
    op.kind = Kind::reshape, op.x = *x->tensor, op.y = *y->tensor;
    NEED(op.x.nd == 4 && op.y.nd == 4 && op.x.count() == op.y.count());
    NEED(op.x.extent() / op.x.element() == op.y.extent() / op.y.element());
    d->op = std::make_shared<Op>(op);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t heuristics(Descriptor *d)
{
    const Descriptor *g = d->inner(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    NEED(g && g->finalized && d->find(CUDNN_ATTR_ENGINEHEUR_MODE));
    d->graph = g->graph;
    return engines(*g->graph,
                   d->as<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A),
                   &d->results);
}

static cudnnStatus_t engine(Descriptor *d)
{
    const Descriptor *g = d->inner(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    if (!g) return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an engine needs an operation graph");
    NEED(g->finalized && d->find(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
    const int64_t index = d->i64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1);
    d->engine = engine_of(*g->graph, index);
    if (!d->engine)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "engine %lld cannot run the graph",
                     (long long)index);
    d->graph = g->graph;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t configuration(Descriptor *d)
{
    const Descriptor *e = d->inner(CUDNN_ATTR_ENGINECFG_ENGINE);
    NEED(e && e->finalized);
    d->engine = e->engine, d->graph = e->graph;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t plan(Descriptor *d)
{
    const Descriptor *c = d->inner(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    NEED(d->find(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) && c && c->finalized);
    need_handle("cudnnBackendFinalize",
                d->as<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr));
    if (c->engine->finalizes != CUDNN_STATUS_SUCCESS)
        return wrong(c->engine->finalizes, "engine %lld cannot be built for this graph",
                     (long long)c->engine->index);
    d->plan = std::make_shared<Plan>(Plan{c->graph, *c->engine});
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t pack(Descriptor *d)
{
    const Value *ids = d->find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const Value *at = d->find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    Pack p{};
    NEED(ids && at && ids->count == at->count);
    for (int64_t i = 0; i < ids->count; i++) {
        const int64_t id = reinterpret_cast<const int64_t *>(ids->bytes.data())[i];
        if (!p.at.emplace(id, reinterpret_cast<void *const *>(at->bytes.data())[i]).second)
            return wrong(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two pointers for tensor %lld",
                         (long long)id);
    }
    p.workspace = d->as<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    d->pack = std::make_shared<Pack>(p);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(Descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        return convolution(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return convolution_operation(d, Kind::forward);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return convolution_operation(d, Kind::data);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return convolution_operation(d, Kind::filter);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
        return pointwise_descriptor(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return pointwise_operation(d);
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR:
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return matmul_operation(d);
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR:
        return reduction_descriptor(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return reduction_operation(d);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return reshape_operation(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return finalize_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return heuristics(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return configuration(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return pack(d);
    default:
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "the stand-in cannot finalize this");
    }
}

} // namespace fakegpu::dnn
