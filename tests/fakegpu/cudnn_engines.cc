// Operation graphs of the stand-in for cuDNN: are they well-formed, which engines run them?
//
// What is supported follows NVIDIA's pages on the graph API ("Supported graph patterns", support
// tables of the pre-compiled single-operation engines and of the runtime fusion engine), on the
// careful side:
//   - 4-D tensors of float32, bfloat16, float16, channels-last or NCHW-packed (float32 only), every
//     dimension at least 1, fewer than 2^31 elements; compute type float32;
//   - one convolution: x, w, y of one type (9.19 names no engine for another);
//   - attention and its gradient: any graph that multiplies matrices of one type of 16 bits, with
//     what cudnn-frontend builds of them (whether the real library knows the pattern, and not only
//     the operations, tests/gpu/dnn_offers.c asks it), heads of a multiple of 8 values up to 128;
//   - convolution and pointwise operations (runtime fusion): channels-last, channels in and out a
//     multiple of 16 bytes, no groups, everything between float32 and virtual, at most one output,
//     beta 0; an input gradient that ends in another type has no engine on an H100.
// FAKEGPU_CUDNN_NO_GRAPH takes more away, comma-separated: 1 or all (no graph has an engine), fused
// (none with more than one operation), epilogue (none with a pointwise operation but a conversion),
// attention (none that multiplies matrices).
//
// Engines offered, so that callers' filters have something to do:
//   57 NONDETERMINISTIC, TENSOR_CORE   38 TENSOR_CORE, REDUCED_PRECISION_REDUCTION (16-bit)
//   11, 12 never finalize (status 3010, 4001)    4 DOWN_CONVERT_INPUTS (float32)
//   0 TENSOR_CORE, 1 MiB of workspace   3 TENSOR_CORE, STRICT_NAN_PROP   7 wants 64 GiB of
//   workspace 1 plain, 64 KiB   2 plain, STRICT_NAN_PROP, no workspace
// Attention's: 11 as above, 6 TENSOR_CORE, 256 bytes of workspace, and NONDETERMINISTIC where a
// product is given in float32, as the sums of the gradient of queries are.
// A fused graph has no plain engines but 2: on the real device fusion is a matter of tensor cores.
#include "tests/fakegpu/cudnn_math.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

namespace fakegpu::dnn
{

bool forbidden(const char *word)
{
    const char *s = getenv("FAKEGPU_CUDNN_NO_GRAPH");
    const size_t n = strlen(word);
    while (s && *s) {
        const size_t m = strcspn(s, ",");
        if (m == n && !strncmp(s, word, n)) return true;
        s += m + (s[m] == ',');
    }
    return false;
}

static std::vector<const Tensor *> inputs(const Op &op)
{
    switch (op.kind) {
    case Kind::forward:
        return {&op.x, &op.w};
    case Kind::data:
        return {&op.w, &op.y};
    case Kind::filter:
        return {&op.x, &op.y};
    case Kind::matmul:
        return {&op.x, &op.w};
    default:
        break;
    }
    std::vector<const Tensor *> all = {&op.x};
    if (op.has_b) all.push_back(&op.w);
    if (op.has_t) all.push_back(&op.t);
    return all;
}

bool Graph::attention() const
{
    return std::any_of(ops.begin(), ops.end(),
                       [](const Op &op) { return op.kind == Kind::matmul; });
}

// What the library takes without a word and what then goes wrong later is a violation; a caller
// could mistake a status for "not supported" and never notice.
cudnnStatus_t finalize_graph(Descriptor *d)
{
    const char *call = "cudnnBackendFinalize(graph)";
    const Value *given = d->find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    std::map<int64_t, Tensor> all;
    std::set<int64_t> produced, consumed, ready;
    std::vector<const Op *> left;
    Graph g;
    if (!given) return wrong(CUDNN_STATUS_BAD_PARAM, "a graph without operations");
    for (const Descriptor &o : given->descriptors) left.push_back(o.op.get());
    for (const Op *op : left) {
        std::vector<const Tensor *> ts = inputs(*op);
        for (const Tensor *t : ts) consumed.insert(t->uid);
        ts.push_back(&op->out());
        for (const Tensor *t : ts) {
            if (!t->has_uid) violation(call, "a tensor has no unique id");
            const auto at = all.emplace(t->uid, *t);
            if (!at.second && !at.first->second.same(*t))
                violation(call, "two different tensors have the unique id %lld", (long long)t->uid);
        }
        if (!produced.insert(op->out().uid).second)
            return wrong(CUDNN_STATUS_BAD_PARAM, "tensor %lld is produced twice",
                         (long long)op->out().uid);
    }
    for (const auto &t : all) {
        if (!produced.count(t.first)) ready.insert(t.first);
        if (!t.second.is_virtual) g.outside.push_back(t.second);
    }
    while (!left.empty()) {
        const auto next = std::find_if(left.begin(), left.end(), [&](const Op *op) {
            for (const Tensor *t : inputs(*op))
                if (!ready.count(t->uid)) return false;
            return true;
        });
        if (next == left.end()) return wrong(CUDNN_STATUS_BAD_PARAM, "the graph has a cycle");
        ready.insert((*next)->out().uid);
        g.ops.push_back(**next);
        left.erase(next);
    }
    for (const auto &t : all) // attention's lse may be made for nothing
        if (t.second.is_virtual &&
            (!produced.count(t.first) || (!consumed.count(t.first) && !g.attention())))
            violation(call, "virtual tensor %lld is not made or not used", (long long)t.first);
    d->graph = std::make_shared<Graph>(std::move(g));
    return CUDNN_STATUS_SUCCESS;
}

// ---- Support ----

static bool half_wide(cudnnDataType_t t)
{
    return t == CUDNN_DATA_HALF || t == CUDNN_DATA_BFLOAT16;
}

static bool channels_last(const Tensor &t)
{
    const int64_t c = t.dim[1], h = t.dim[2], w = t.dim[3];
    return (c == 1 || t.stride[1] == 1) && (w == 1 || t.stride[3] == c) &&
           (h == 1 || t.stride[2] == w * c) && (t.dim[0] == 1 || t.stride[0] == h * w * c);
}

static bool nchw(const Tensor &t)
{
    const int64_t c = t.dim[1], h = t.dim[2], w = t.dim[3];
    return (w == 1 || t.stride[3] == 1) && (h == 1 || t.stride[2] == w) &&
           (c == 1 || t.stride[1] == h * w) && (t.dim[0] == 1 || t.stride[0] == c * h * w);
}

static cudnnStatus_t supported_tensor(const Tensor &t, bool fused)
{
    const long long id = t.uid;
    if (t.nd != 4) return wrong(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensor %lld is not 4-D", id);
    if (t.type != CUDNN_DATA_FLOAT && !half_wide(t.type))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "type of tensor %lld", id);
    for (int i = 0; i < 4; i++)
        if (t.dim[i] < 1)
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensor %lld is empty", id);
    if (t.extent() / t.element() > INT32_MAX)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensor %lld has over 2^31 elements", id);
    if (!channels_last(t) && (fused || t.type != CUDNN_DATA_FLOAT || !nchw(t)))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "layout of tensor %lld", id);
    return CUDNN_STATUS_SUCCESS;
}

static bool aligned_channels(const Op &c)
{
    const int64_t in = 16 / (int64_t)c.x.element();
    return c.x.dim[1] == c.w.dim[1] && c.x.dim[1] % in == 0 && c.w.dim[0] % in == 0;
}

static cudnnStatus_t supported_convolution(const Op &c, bool fused)
{
    const Tensor &a = c.kind == Kind::data ? c.w : c.x, &b = c.kind == Kind::forward ? c.w : c.y;
    if (c.conv.compute != CUDNN_DATA_FLOAT)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "compute type %d", c.conv.compute);
    if (a.type != b.type)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "operands of different types");
    if (!fused && c.out().type != a.type)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "type of the result");
    if (fused && c.kind == Kind::data)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a fused input gradient");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t supported_pointwise(const Op &op)
{
    if (op.pw.mode != CUDNN_POINTWISE_IDENTITY && forbidden("epilogue"))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "FAKEGPU_CUDNN_NO_GRAPH");
    if (!known_pointwise(op.pw.mode) || op.pw.math != CUDNN_DATA_FLOAT)
        return wrong(CUDNN_STATUS_NOT_SUPPORTED, "pointwise mode %d", op.pw.mode);
    for (int i = 0; i < 4; i++) {
        const int64_t b = op.has_b ? op.w.dim[i] : 1, x = op.x.dim[i];
        if (op.y.dim[i] != x || (b != 1 && b != x))
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "dimension %d of a pointwise operation",
                         i);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t supported_attention(const Graph &g)
{
    if (forbidden("attention"))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "FAKEGPU_CUDNN_NO_GRAPH");
    for (const Op &op : g.ops) {
        if (op.kind == Kind::pointwise ? !known_pointwise(op.pw.mode) : op.kind < Kind::matmul)
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "not of attention");
        if (op.kind != Kind::matmul) continue;
        if (!half_wide(op.w.type) || (!half_wide(op.x.type) && !op.x.is_virtual))
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "factors of a product");
        const int64_t head = op.x.dim[3]; // of queries, and of the gradient of the result
        if (!op.x.is_virtual && (head % 8 || head > 128))
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "heads of %lld", (long long)head);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t supported(const Graph &g)
{
    const bool fused = g.ops.size() > 1;
    int outputs = 0;
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
    if (forbidden("1") || forbidden("all") || (fused && forbidden("fused")))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "FAKEGPU_CUDNN_NO_GRAPH");
    if (g.attention()) return supported_attention(g);
    for (size_t i = 0; i < g.ops.size(); i++) {
        const Op &op = g.ops[i];
        std::vector<const Tensor *> ts = inputs(op);
        ts.push_back(&op.out());
        for (const Tensor *t : ts)
            if ((s = supported_tensor(*t, fused)) != CUDNN_STATUS_SUCCESS) return s;
        if (i == 0 && op.kind != Kind::pointwise)
            s = supported_convolution(op, fused);
        else if (op.kind == Kind::pointwise)
            s = supported_pointwise(op);
        else
            s = wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a second convolution");
        if (s != CUDNN_STATUS_SUCCESS) return s;
        outputs += !op.out().is_virtual;
        if (op.out().is_virtual && op.out().type != CUDNN_DATA_FLOAT)
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a virtual tensor is not float32");
        if (i && inputs(op)[0]->uid != g.ops[i - 1].out().uid &&
            (!op.has_b || op.w.uid != g.ops[i - 1].out().uid))
            return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "not a chain");
    }
    const Op &first = g.ops[0];
    if (fused && (first.kind == Kind::pointwise || outputs != 1 || !aligned_channels(first) ||
                  first.beta != 0))
        return wrong(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                     "no runtime fusion: channels, groups, outputs or beta");
    return CUDNN_STATUS_SUCCESS;
}

// ---- Engines ----

static std::vector<Engine> attention_engines(const Graph &g)
{
    std::vector<cudnnBackendNumericalNote_t> notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
    for (const Op &op : g.ops)
        if (op.kind == Kind::matmul && !op.y.is_virtual && op.y.type == CUDNN_DATA_FLOAT)
            notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    return {{11, {}, 0, CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT},
            {6, notes, 256, CUDNN_STATUS_SUCCESS}};
}

static std::vector<Engine> every_engine(const Graph &g)
{
    if (g.attention()) return attention_engines(g);
    const auto core = CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
               strict = CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP;
    const auto ok = CUDNN_STATUS_SUCCESS;
    const Op &c = g.ops[0];
    const bool fused = g.ops.size() > 1,
               wide = !half_wide(c.kind == Kind::data ? c.w.type : c.x.type);
    std::vector<Engine> all = {
        {57, {core, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, ok},
        {11, {core}, 0, CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT},
    };
    if (wide) all.push_back({4, {core, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}, 0, ok});
    if (!wide) all.push_back({38, {core, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}, 0, ok});
    all.push_back({7, {}, (int64_t)1 << 36, ok});
    all.push_back({0, {core}, 1 << 20, ok});
    all.push_back({3, {core, strict}, 0, ok});
    all.push_back({12, {}, 0, CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED});
    if (!fused) all.push_back({1, {}, 1 << 16, ok});
    all.push_back({2, {strict}, 0, ok});
    return all;
}

cudnnStatus_t engines(const Graph &g, cudnnBackendHeurMode_t mode, std::vector<Engine> *out)
{
    const cudnnStatus_t s = supported(g);
    out->clear();
    if (mode == CUDNN_HEUR_MODE_FALLBACK) { // an empty list, but no error
        if (s != CUDNN_STATUS_SUCCESS) return CUDNN_STATUS_SUCCESS;
        for (const Engine &e : every_engine(g))
            if (e.index == 1 || e.index == 2) out->push_back(e);
        return CUDNN_STATUS_SUCCESS;
    }
    if (mode != CUDNN_HEUR_MODE_A && mode != CUDNN_HEUR_MODE_B && mode != CUDNN_HEUR_MODE_INSTANT)
        return wrong(CUDNN_STATUS_BAD_PARAM, "heuristic mode %d", (int)mode);
    if (s != CUDNN_STATUS_SUCCESS) return s;
    *out = every_engine(g);
    if (mode == CUDNN_HEUR_MODE_B) std::reverse(out->begin(), out->end());
    return CUDNN_STATUS_SUCCESS;
}

std::shared_ptr<const Engine> engine_of(const Graph &g, int64_t index)
{
    if (supported(g) != CUDNN_STATUS_SUCCESS) return nullptr;
    for (const Engine &e : every_engine(g))
        if (e.index == index) return std::make_shared<Engine>(e);
    return nullptr;
}

} // namespace fakegpu::dnn
