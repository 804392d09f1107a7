// Descriptors of cuDNN's backend API: created, their attributes set and read, destroyed.
//
// One table says which attribute belongs to which descriptor, its types and how many values it
// takes. A descriptor given to another one is copied as it is at that moment, as the library does:
// finalizing or destroying it later changes nothing. What crashes the library is a violation here.
#include "tests/fakegpu/cudnn_inside.h"

#include <algorithm>
#include <cstring>

namespace fakegpu::dnn
{

int64_t Tensor::count() const
{
    int64_t n = 1;
    for (int i = 0; i < nd; i++) n *= dim[i];
    return n;
}

size_t Tensor::element() const
{
    return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16  ? 2
           : type == CUDNN_DATA_DOUBLE || type == CUDNN_DATA_INT64 ? 8
           : type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_INT32  ? 4
                                                                   : 1;
}

size_t Tensor::extent() const
{
    int64_t last = 0;
    for (int i = 0; i < nd; i++) {
        if (dim[i] == 0) return 0;
        last += (dim[i] - 1) * stride[i];
    }
    return (size_t)(last + 1) * element();
}

bool Tensor::same(const Tensor &o) const
{
    return type == o.type && nd == o.nd && uid == o.uid && is_virtual == o.is_virtual &&
           by_value == o.by_value && std::equal(dim, dim + nd, o.dim) &&
           std::equal(stride, stride + nd, o.stride);
}

bool Engine::has(cudnnBackendNumericalNote_t n) const
{
    return std::find(notes.begin(), notes.end(), n) != notes.end();
}

const Value *Descriptor::find(int name) const
{
    const auto at = set.find(name);
    return at == set.end() ? nullptr : &at->second;
}

int64_t Descriptor::i64(int name, int64_t otherwise) const
{
    return as<int64_t>(name, otherwise);
}

double Descriptor::real(int name, double otherwise) const
{
    const Value *v = find(name);
    if (!v) return otherwise;
    return v->type == CUDNN_TYPE_FLOAT ? as<float>(name, 0) : as<double>(name, 0);
}

const Descriptor *Descriptor::inner(int name) const
{
    const Value *v = find(name);
    return v ? v->descriptors.data() : nullptr;
}

enum { SET = 1, GET = 2, BOTH = 3, ANY = 1 << 20 };

// Attribute, the range of descriptor types, the type of its values, the most of them, how it is
// used.
struct Rule {
    int name, descriptor, type;
    int64_t most;
    int use;
};

static const Rule rules[] = {
#define R(name, d, type, most, use)                                                                \
    {                                                                                              \
        CUDNN_ATTR_##name, CUDNN_BACKEND_##d##_DESCRIPTOR, CUDNN_TYPE_##type, most, use            \
    }
    R(TENSOR_DATA_TYPE, TENSOR, DATA_TYPE, 1, BOTH),
    R(TENSOR_BYTE_ALIGNMENT, TENSOR, INT64, 1, BOTH),
    R(TENSOR_DIMENSIONS, TENSOR, INT64, CUDNN_DIM_MAX, BOTH),
    R(TENSOR_STRIDES, TENSOR, INT64, CUDNN_DIM_MAX, BOTH),
    R(TENSOR_UNIQUE_ID, TENSOR, INT64, 1, BOTH),
    R(TENSOR_IS_VIRTUAL, TENSOR, BOOLEAN, 1, BOTH),
    R(TENSOR_IS_BY_VALUE, TENSOR, BOOLEAN, 1, BOTH),
    R(CONVOLUTION_COMP_TYPE, CONVOLUTION, DATA_TYPE, 1, BOTH),
    R(CONVOLUTION_CONV_MODE, CONVOLUTION, CONVOLUTION_MODE, 1, BOTH),
    R(CONVOLUTION_DILATIONS, CONVOLUTION, INT64, 6, BOTH),
    R(CONVOLUTION_FILTER_STRIDES, CONVOLUTION, INT64, 6, BOTH),
    R(CONVOLUTION_PRE_PADDINGS, CONVOLUTION, INT64, 6, BOTH),
    R(CONVOLUTION_POST_PADDINGS, CONVOLUTION, INT64, 6, BOTH),
    R(CONVOLUTION_SPATIAL_DIMS, CONVOLUTION, INT64, 1, BOTH),
#define C(n, d, x, w, y)                                                                           \
    R(OPERATION_CONVOLUTION_##n##_ALPHA, d, FLOAT, 1, BOTH),                                       \
        R(OPERATION_CONVOLUTION_##n##_BETA, d, FLOAT, 1, BOTH),                                    \
        R(OPERATION_CONVOLUTION_##n##_ALPHA, d, DOUBLE, 1, BOTH),                                  \
        R(OPERATION_CONVOLUTION_##n##_BETA, d, DOUBLE, 1, BOTH),                                   \
        R(OPERATION_CONVOLUTION_##n##_CONV_DESC, d, BACKEND_DESCRIPTOR, 1, BOTH),                  \
        R(OPERATION_CONVOLUTION_##n##_##x, d, BACKEND_DESCRIPTOR, 1, BOTH),                        \
        R(OPERATION_CONVOLUTION_##n##_##w, d, BACKEND_DESCRIPTOR, 1, BOTH),                        \
        R(OPERATION_CONVOLUTION_##n##_##y, d, BACKEND_DESCRIPTOR, 1, BOTH)
    C(FORWARD, OPERATION_CONVOLUTION_FORWARD, X, W, Y),
    C(BWD_DATA, OPERATION_CONVOLUTION_BACKWARD_DATA, DX, W, DY),
    C(BWD_FILTER, OPERATION_CONVOLUTION_BACKWARD_FILTER, X, DW, DY),
#undef C
    R(POINTWISE_MODE, POINTWISE, POINTWISE_MODE, 1, BOTH),
    R(POINTWISE_MATH_PREC, POINTWISE, DATA_TYPE, 1, BOTH),
    R(POINTWISE_AXIS, POINTWISE, INT64, 1, BOTH),
    R(POINTWISE_NAN_PROPAGATION, POINTWISE, NAN_PROPOGATION, 1, BOTH),
#define P(name) R(name, POINTWISE, FLOAT, 1, BOTH), R(name, POINTWISE, DOUBLE, 1, BOTH)
    P(POINTWISE_RELU_LOWER_CLIP),
    P(POINTWISE_RELU_UPPER_CLIP),
    P(POINTWISE_RELU_LOWER_CLIP_SLOPE),
    P(POINTWISE_ELU_ALPHA),
    P(POINTWISE_SOFTPLUS_BETA),
    P(POINTWISE_SWISH_BETA),
#undef P
    R(OPERATION_POINTWISE_PW_DESCRIPTOR, OPERATION_POINTWISE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_POINTWISE_XDESC, OPERATION_POINTWISE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_POINTWISE_BDESC, OPERATION_POINTWISE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_POINTWISE_TDESC, OPERATION_POINTWISE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_POINTWISE_YDESC, OPERATION_POINTWISE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_POINTWISE_ALPHA1, OPERATION_POINTWISE, FLOAT, 1, BOTH),
    R(OPERATION_POINTWISE_ALPHA1, OPERATION_POINTWISE, DOUBLE, 1, BOTH),
    R(OPERATION_POINTWISE_ALPHA2, OPERATION_POINTWISE, FLOAT, 1, BOTH),
    R(OPERATION_POINTWISE_ALPHA2, OPERATION_POINTWISE, DOUBLE, 1, BOTH),
    R(MATMUL_COMP_TYPE, MATMUL, DATA_TYPE, 1, BOTH),
    R(OPERATION_MATMUL_DESC, OPERATION_MATMUL, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_MATMUL_ADESC, OPERATION_MATMUL, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_MATMUL_BDESC, OPERATION_MATMUL, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_MATMUL_CDESC, OPERATION_MATMUL, BACKEND_DESCRIPTOR, 1, BOTH),
    R(REDUCTION_COMP_TYPE, REDUCTION, DATA_TYPE, 1, BOTH),
    R(REDUCTION_OPERATOR, REDUCTION, REDUCTION_OPERATOR_TYPE, 1, BOTH),
    R(OPERATION_REDUCTION_DESC, OPERATION_REDUCTION, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_REDUCTION_XDESC, OPERATION_REDUCTION, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_REDUCTION_YDESC, OPERATION_REDUCTION, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_RESHAPE_XDESC, OPERATION_RESHAPE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATION_RESHAPE_YDESC, OPERATION_RESHAPE, BACKEND_DESCRIPTOR, 1, BOTH),
    R(OPERATIONGRAPH_HANDLE, OPERATIONGRAPH, HANDLE, 1, BOTH),
    R(OPERATIONGRAPH_OPS, OPERATIONGRAPH, BACKEND_DESCRIPTOR, ANY, SET),
    R(OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, OPERATIONGRAPH, INT64, 1, GET),
    R(ENGINEHEUR_MODE, ENGINEHEUR, HEUR_MODE, 1, BOTH),
    R(ENGINEHEUR_OPERATION_GRAPH, ENGINEHEUR, BACKEND_DESCRIPTOR, 1, SET),
    R(ENGINEHEUR_RESULTS, ENGINEHEUR, BACKEND_DESCRIPTOR, ANY, GET),
    R(ENGINE_OPERATION_GRAPH, ENGINE, BACKEND_DESCRIPTOR, 1, SET),
    R(ENGINE_GLOBAL_INDEX, ENGINE, INT64, 1, BOTH),
    R(ENGINE_NUMERICAL_NOTE, ENGINE, NUMERICAL_NOTE, ANY, GET),
    R(ENGINE_BEHAVIOR_NOTE, ENGINE, BEHAVIOR_NOTE, ANY, GET),
    R(ENGINECFG_ENGINE, ENGINECFG, BACKEND_DESCRIPTOR, 1, BOTH),
    R(ENGINECFG_WORKSPACE_SIZE, ENGINECFG, INT64, 1, GET),
    R(EXECUTION_PLAN_HANDLE, EXECUTION_PLAN, HANDLE, 1, BOTH),
    R(EXECUTION_PLAN_ENGINE_CONFIG, EXECUTION_PLAN, BACKEND_DESCRIPTOR, 1, SET),
    R(EXECUTION_PLAN_WORKSPACE_SIZE, EXECUTION_PLAN, INT64, 1, GET),
    R(VARIANT_PACK_UNIQUE_IDS, VARIANT_PACK, INT64, ANY, BOTH),
    R(VARIANT_PACK_DATA_POINTERS, VARIANT_PACK, VOID_PTR, ANY, BOTH),
    R(VARIANT_PACK_WORKSPACE, VARIANT_PACK, VOID_PTR, 1, BOTH),
#undef R
};

static const Rule *rule_of(const Descriptor *d, int name, int type, int use, cudnnStatus_t *status)
{
    *status = CUDNN_STATUS_BAD_PARAM;
    for (const Rule &r : rules) {
        if (r.name != name || r.descriptor != d->type || !(r.use & use)) continue;
        if (r.type == type) return &r;
        *status = CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    }
    wrong(*status, "attribute %d of type %d: not of this descriptor (type %d)", name, type,
          d->type);
    return nullptr;
}

static size_t bytes_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
        return 8;
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    default:
        return 4; // enums, float
    }
}

static Descriptor *known(const char *call, cudnnBackendDescriptor_t p)
{
    if (!alive(p, "backend descriptor")) violation(call, "%p is no descriptor (destroyed?)", p);
    return static_cast<Descriptor *>(p);
}

// The kind of descriptor an attribute wants.
static bool fits(int name, cudnnBackendDescriptorType_t t)
{
    switch (name) {
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC:
        return t == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
    case CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR:
        return t == CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    case CUDNN_ATTR_OPERATION_MATMUL_DESC:
        return t == CUDNN_BACKEND_MATMUL_DESCRIPTOR;
    case CUDNN_ATTR_OPERATION_REDUCTION_DESC:
        return t == CUDNN_BACKEND_REDUCTION_DESCRIPTOR;
    case CUDNN_ATTR_OPERATIONGRAPH_OPS:
        return t == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
               t == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
               t == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR ||
               t == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
               t == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
               t == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR ||
               t == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
        return t == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        return t == CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
        return t == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return t == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    default:
        return t == CUDNN_BACKEND_TENSOR_DESCRIPTOR;
    }
}

static cudnnStatus_t set(Descriptor *d, int name, int type, int64_t count, const void *values)
{
    const char *call = "cudnnBackendSetAttribute";
    cudnnStatus_t s;
    Value v{(cudnnBackendAttributeType_t)type, count, {}, {}};
    const Rule *r = rule_of(d, name, type, SET, &s);
    if (!r) return s;
    if (d->finalized) return wrong(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
    if (!values) return wrong(CUDNN_STATUS_BAD_PARAM, "no values for attribute %d", name);
    if (count < 1 || count > r->most)
        return wrong(CUDNN_STATUS_BAD_PARAM, "%lld values for attribute %d", (long long)count,
                     name);
    const unsigned char *from = static_cast<const unsigned char *>(values);
    v.bytes.assign(from, from + (size_t)count * bytes_of(type));
    if (type == CUDNN_TYPE_HANDLE) need_handle(call, *static_cast<const cudnnHandle_t *>(values));
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        const cudnnBackendDescriptor_t p = static_cast<const cudnnBackendDescriptor_t *>(values)[i];
        const Descriptor *o = known(call, p);
        if (!fits(name, o->type))
            violation(call, "attribute %d cannot hold a descriptor of type %d", name, o->type);
        if (name == CUDNN_ATTR_OPERATIONGRAPH_OPS && !o->finalized)
            return wrong(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "desc->isFinalized() == false");
        v.descriptors.push_back(*o);
    }
    d->set[name] = std::move(v);
    return CUDNN_STATUS_SUCCESS;
}

template <class T> static int64_t give(const std::vector<T> &from, int64_t requested, void *to)
{
    const int64_t n = (int64_t)from.size();
    if (requested == 0 || !to) return n;
    const int64_t m = std::min(n, requested);
    if (m) memcpy(to, from.data(), (size_t)m * sizeof(T));
    return m;
}

// Configurations and engines are written into descriptors the caller has created.
static int64_t give_engines(const char *call, const Descriptor *d, int name, int64_t requested,
                            void *to)
{
    std::vector<std::shared_ptr<const Engine>> all;
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE)
        all.push_back(d->engine);
    else
        for (const Engine &e : d->results) all.push_back(std::make_shared<Engine>(e));
    const int64_t n = (int64_t)all.size();
    if (requested == 0 || !to) return n;
    for (int64_t i = 0; i < n && i < requested; i++) {
        Descriptor *o = known(call, static_cast<cudnnBackendDescriptor_t *>(to)[i]);
        const cudnnBackendDescriptorType_t want = name == CUDNN_ATTR_ENGINECFG_ENGINE
                                                      ? CUDNN_BACKEND_ENGINE_DESCRIPTOR
                                                      : CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        if (o->type != want) violation(call, "result %lld has type %d", (long long)i, o->type);
        o->engine = all[(size_t)i], o->graph = d->graph, o->finalized = true;
    }
    return std::min(n, requested);
}

static cudnnStatus_t get(Descriptor *d, int name, int type, int64_t requested, int64_t *count,
                         void *to)
{
    int64_t n;
    cudnnStatus_t s;
    if (!rule_of(d, name, type, GET, &s)) return s;
    if (!d->finalized)
        return wrong(CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is not finalized");
    if (requested < 0) return wrong(CUDNN_STATUS_BAD_PARAM, "requested %lld", (long long)requested);
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        n = give_engines("cudnnBackendGetAttribute", d, name, requested, to);
        break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        n = give(d->engine->notes, requested, to);
        break;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        n = give(std::vector<cudnnBackendBehaviorNote_t>{}, requested, to);
        break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        n = give(std::vector<int64_t>{d->engine->index}, requested, to);
        break;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
        n = give(std::vector<int64_t>{d->engine->workspace}, requested, to);
        break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        n = give(std::vector<int64_t>{d->plan->engine.workspace}, requested, to);
        break;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        n = give(std::vector<int64_t>{64}, requested, to);
        break;
    default: {
        const Value *v = d->find(name);
        if (v && v->type != type)
            return wrong(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "set with another type");
        n = v ? v->count : 0;
        if (v && requested && to) {
            n = std::min(n, requested);
            for (int64_t i = 0; i < (int64_t)v->descriptors.size() && i < n; i++)
                *known("cudnnBackendGetAttribute", static_cast<cudnnBackendDescriptor_t *>(to)[i]) =
                    v->descriptors[(size_t)i];
            if (v->descriptors.empty()) memcpy(to, v->bytes.data(), (size_t)n * bytes_of(type));
        }
    }
    }
    if (count) *count = n;
    return CUDNN_STATUS_SUCCESS;
}

} // namespace fakegpu::dnn

using namespace fakegpu::dnn;
using fakegpu::fails;

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor)
{
    DNN_CALL("cudnnBackendCreateDescriptor");
    if (!descriptor) fakegpu::violation("cudnnBackendCreateDescriptor", "nullptr == descriptor");
    bool any = false;
    for (const Rule &r : rules) any = any || r.descriptor == (int)type;
    if (!any)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has no descriptor type %d",
                     (int)type);
    Descriptor *d = new Descriptor();
    d->type = type;
    made(d, "backend descriptor");
    *descriptor = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    const bool fault = fails("cudnnBackendDestroyDescriptor");
    if (!descriptor) return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == descriptor");
    destroyed("cudnnBackendDestroyDescriptor", descriptor, "backend descriptor");
    delete static_cast<Descriptor *>(descriptor);
    return fault ? injected("cudnnBackendDestroyDescriptor") : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    DNN_CALL("cudnnBackendSetAttribute");
    if (!descriptor) return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == descriptor");
    return set(known("cudnnBackendSetAttribute", descriptor), name, type, count, values);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *values)
{
    DNN_CALL("cudnnBackendGetAttribute");
    if (!descriptor) return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == descriptor");
    return get(known("cudnnBackendGetAttribute", descriptor), name, type, requested, count, values);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    DNN_CALL("cudnnBackendFinalize");
    if (!descriptor) return wrong(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nullptr == descriptor");
    Descriptor *d = known("cudnnBackendFinalize", descriptor);
    if (d->finalized) return wrong(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
    const cudnnStatus_t s = finalize(d);
    if (s == CUDNN_STATUS_SUCCESS) d->finalized = true;
    return s;
}

} // extern "C"
