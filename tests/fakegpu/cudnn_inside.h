// What the parts of the stand-in for cuDNN 9 share. C++17.
//
// Source of what is checked: the headers of cuDNN 9.19, NVIDIA's "cudnn_graph Library", "cudnn_ops
// Library" and "cudnn_cnn Library" pages, and, for statuses, what the library itself answers where
// it needs no device (creating, setting, finalizing tensors, convolutions, operations, graphs,
// packs): tests/unit/fakegpu/test_cudnn_descriptors.cc gives the same answers when linked with it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <cudnn.h>

#include "tests/fakegpu/fakegpu.h"

struct cudnnContext {
    cudaStream_t stream;
};

namespace fakegpu::dnn
{

// ---- Errors, handles (cudnn_handle.cc) ----

// Notes the text for cudnnGetLastErrorString and returns the status.
cudnnStatus_t wrong(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// The injected fault of a call.
cudnnStatus_t injected(const char *call);
#define DNN_CALL(name)                                                                             \
    if (fakegpu::fails(name)) return fakegpu::dnn::injected(name)
// A live handle; one that was destroyed or never made is a violation.
void need_handle(const char *call, cudnnHandle_t handle);
// Everything made that must be destroyed before the process ends.
void made(const void *object, const char *what);
bool alive(const void *object, const char *what);
void destroyed(const char *call, const void *object, const char *what);
// What a cudaError_t becomes.
cudnnStatus_t of_cuda(cudaError_t e, const char *call);

// ---- What finalized descriptors say ----

struct Tensor {
    cudnnDataType_t type;
    int nd;
    int64_t dim[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX], uid, alignment;
    bool has_uid, is_virtual, by_value; // by value: the pack has an address of the host
    int64_t count() const;
    size_t element() const; // bytes
    size_t extent() const;  // bytes from the first element to behind the last
    bool same(const Tensor &o) const;
};

struct Conv {
    cudnnDataType_t compute;
    cudnnConvolutionMode_t mode;
    int spatial;
    int64_t pre[6], post[6], stride[6], dilation[6];
};

struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    double lower, upper, slope, elu_alpha, softplus_beta, swish_beta;
    int64_t axis; // of an index
};

enum class Kind { forward, data, filter, pointwise, matmul, reduction, reshape };

// x, w, y: image, filter, result of a convolution, whichever of them is the output; of a pointwise
// operation x, the second operand (has_b), y, and the third (has_t); of a product its factors and
// y.
struct Op {
    Kind kind;
    Tensor x, w, y, t;
    bool has_b, has_t;
    cudnnReduceTensorOp_t reduce;
    Conv conv;
    Pointwise pw;
    double alpha, beta; // of a pointwise operation: alpha1, alpha2
    const Tensor &out() const
    {
        return kind == Kind::data ? x : kind == Kind::filter ? w : y;
    }
};

struct Graph {
    std::vector<Op> ops;         // producers before consumers
    std::vector<Tensor> outside; // the tensors a variant pack must name
    bool attention() const;      // it multiplies matrices
};

// One of the engines that run a graph (cudnn_engines.cc).
struct Engine {
    int64_t index;
    std::vector<cudnnBackendNumericalNote_t> notes;
    int64_t workspace;
    cudnnStatus_t finalizes; // of a plan with it
    bool has(cudnnBackendNumericalNote_t n) const;
};

struct Plan {
    std::shared_ptr<const Graph> graph;
    Engine engine;
};

struct Pack {
    std::map<int64_t, void *> at;
    void *workspace;
};

struct Descriptor;
struct Value {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<unsigned char> bytes;
    std::vector<Descriptor> descriptors; // as they were when set: the library copies, too
};

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized = false;
    std::map<int, Value> set;
    // What Finalize made of it, one of:
    std::shared_ptr<const Tensor> tensor;
    std::shared_ptr<const Conv> conv;
    std::shared_ptr<const Pointwise> pointwise;
    std::shared_ptr<const cudnnReduceTensorOp_t> reduce;
    std::shared_ptr<const Op> op;
    std::shared_ptr<const Graph> graph;
    std::shared_ptr<const Engine> engine; // of an engine or a configuration, with graph
    std::vector<Engine> results;          // of heuristics
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<const Pack> pack;

    const Value *find(int name) const;
    int64_t i64(int name, int64_t otherwise) const;
    double real(int name, double otherwise) const;
    template <class T> T as(int name, T otherwise) const
    {
        const Value *v = find(name);
        return v ? *reinterpret_cast<const T *>(v->bytes.data()) : otherwise;
    }
    const Descriptor *inner(int name) const; // the descriptor an attribute holds, NULL if not set
};

// ---- cudnn_finalize.cc, cudnn_engines.cc ----

cudnnStatus_t finalize(Descriptor *d);
cudnnStatus_t finalize_graph(Descriptor *d);
// The engines of a heuristic mode; a status other than success: the graph is not supported.
cudnnStatus_t engines(const Graph &g, cudnnBackendHeurMode_t mode, std::vector<Engine> *out);
// The engine of an index; NULL where the graph has none.
std::shared_ptr<const Engine> engine_of(const Graph &g, int64_t index);
bool forbidden(const char *word); // FAKEGPU_CUDNN_NO_GRAPH names it

} // namespace fakegpu::dnn
