// The stand-in's graph API of cuDNN: results of every pass against the definition, engines and
// their notes, and what misuse leads to.
#include "tests/unit/fakegpu/cudnn_harness.h"

struct Engine {
    Desc config;
    int64_t index;
    std::vector<cudnnBackendNumericalNote_t> notes;
    bool has(cudnnBackendNumericalNote_t n) const
    {
        for (cudnnBackendNumericalNote_t m : notes)
            if (m == n) return true;
        return false;
    }
};

// Everything of one test: destroyed before the process ends, or the stand-in complains.
struct Library {
    Bag bag;
    cudnnHandle_t handle = nullptr;
    cudaStream_t stream = nullptr;
    Library()
    {
        CUDA_OK(cudaStreamCreate(&stream));
        OK(cudnnCreate(&handle));
        OK(cudnnSetStream(handle, stream));
    }
    Library(const Library &) = delete;
    ~Library()
    {
        cudnnDestroy(handle);
        cudaStreamDestroy(stream);
    }
    Desc tensor4(int64_t uid, const Ints &dim, cudnnDataType_t type, bool inner = false)
    {
        return bag.finished(tensor(bag, uid, dim, last(dim), type, inner));
    }
    Desc graph(const std::vector<Desc> &ops)
    {
        const Desc g = bag.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        OK(set1(g, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle));
        OK(cudnnBackendSetAttribute(g, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    (int64_t)ops.size(), ops.data()));
        return bag.finished(g);
    }
    int heuristics(Desc g, cudnnBackendHeurMode_t mode, std::vector<Engine> *to)
    {
        const Desc h = bag.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
        int64_t n = 0, one = 0;
        OK(part(h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g));
        OK(set1(h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode));
        const int s = cudnnBackendFinalize(h);
        to->clear();
        if (s) return s;
        OK(cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    0, &n, nullptr));
        std::vector<Desc> configs;
        for (int64_t i = 0; i < n; i++)
            configs.push_back(bag.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
        if (n)
            OK(cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n, configs.data()));
        for (Desc c : configs) {
            Engine e{c, -1,
                     std::vector<cudnnBackendNumericalNote_t>(CUDNN_NUMERICAL_NOTE_TYPE_COUNT)};
            Desc d = bag.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
            OK(cudnnBackendGetAttribute(c, CUDNN_ATTR_ENGINECFG_ENGINE,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &d));
            OK(cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                        &one, &e.index));
            OK(cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                        CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                        &n, e.notes.data()));
            e.notes.resize((size_t)n);
            to->push_back(e);
        }
        return s;
    }
    Engine engine(Desc g, int64_t index)
    {
        std::vector<Engine> all;
        OK(heuristics(g, CUDNN_HEUR_MODE_A, &all));
        for (const Engine &e : all)
            if (e.index == index) return e;
        fail_msg("no engine %d", (int)index);
        return {};
    }
    int plan(const Engine &e, Desc *out, int64_t *workspace)
    {
        int64_t n = 0;
        *out = bag.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        OK(set1(*out, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle));
        OK(part(*out, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, e.config));
        const int s = cudnnBackendFinalize(*out);
        if (s == 0)
            OK(cudnnBackendGetAttribute(*out, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &n, workspace));
        return s;
    }
    Desc pack(const Ints &ids, const std::vector<void *> &at, void *workspace)
    {
        const Desc d = bag.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
        OK(ints(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids));
        OK(cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                    (int64_t)at.size(), at.data()));
        OK(set1(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace));
        return bag.finished(d);
    }
    void run(Desc g, int64_t index, const Ints &ids, const std::vector<void *> &at)
    {
        Desc p;
        int64_t workspace = 0;
        OK(plan(engine(g, index), &p, &workspace));
        Memory space(CUDNN_DATA_FLOAT, workspace / 4 + 1);
        OK(cudnnBackendExecute(handle, p, pack(ids, at, workspace ? space.p : nullptr)));
        CUDA_OK(cudaStreamSynchronize(stream));
    }
};

static const Case cases[] = {
    {2, 3, 7, 6, 5, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}},
    {3, 8, 9, 9, 8, 3, 3, 1, {2, 2}, {1, 1}, {1, 1}},
    {2, 8, 8, 8, 16, 1, 1, 1, {2, 2}, {0, 0}, {1, 1}},
    {1, 4, 9, 11, 6, 3, 2, 2, {2, 1}, {2, 1}, {2, 3}},
    {2, 6, 5, 5, 6, 3, 3, 6, {1, 1}, {1, 1}, {1, 1}},
    {1, 2, 12, 10, 3, 5, 4, 1, {3, 2}, {2, 0}, {1, 2}},
};

// |a - b| against what the type rounds to; the sums themselves are exact or nearly so.
static void near_enough(const std::vector<float> &got, const std::vector<double> &want,
                        cudnnDataType_t t)
{
    const double unit = t == CUDNN_DATA_FLOAT ? 0x1p-22 : t == CUDNN_DATA_HALF ? 0x1p-11 : 0x1p-8;
    assert_int_equal(got.size(), want.size());
    for (size_t i = 0; i < got.size(); i++)
        if (!(std::fabs(got[i] - want[i]) <= unit * (std::fabs(want[i]) + 0x1p-10)))
            fail_msg("element %zu: %.9g, not %.9g", i, got[i], want[i]);
}

static void one_pass(const Case &z, Pass pass, cudnnDataType_t type, cudnnConvolutionMode_t mode)
{
    Library l;
    const Ints stride(z.stride, z.stride + 2), pad(z.pad, z.pad + 2), dil(z.dil, z.dil + 2);
    const Desc c = l.bag.finished(conv(l.bag, stride, pad, dil, mode));
    const Desc g =
        l.graph({l.bag.finished(conv_op(l.bag, pass, c, l.tensor4(1, z.x(), type),
                                        l.tensor4(2, z.f(), type), l.tensor4(3, z.y(), type)))});
    const std::vector<float> x = values(numel(z.x()), 1), w = values(numel(z.f()), 2),
                             y = values(numel(z.y()), 3);
    Memory mx(type, numel(z.x())), mw(type, numel(z.f())), my(type, numel(z.y()));
    std::vector<double> want((pass == FORWARD ? y : pass == DATA ? x : w).size());
    mx.put(x), mw.put(w), my.put(y);
    products(z, [&](int64_t i, int64_t j, int64_t k) {
        if (mode == CUDNN_CONVOLUTION) { // the filter turned round
            const int64_t cg = z.c / z.g, one = z.r * z.s * cg, at = j % one;
            j = j - at + (z.r * z.s - 1 - at / cg) * cg + at % cg;
        }
        if (pass == FORWARD) want[(size_t)k] += (double)x[(size_t)i] * w[(size_t)j];
        if (pass == DATA) want[(size_t)i] += (double)y[(size_t)k] * w[(size_t)j];
        if (pass == FILTER) want[(size_t)j] += (double)x[(size_t)i] * y[(size_t)k];
    });
    l.run(g, 1, {3, 1, 2}, {my.p, mx.p, mw.p});
    near_enough((pass == FORWARD ? my : pass == DATA ? mx : mw).get(), want, type);
}

static void test_passes(void **)
{
    for (const Case &z : cases)
        for (const Pass pass : {FORWARD, DATA, FILTER}) {
            for (const cudnnDataType_t t : {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF})
                one_pass(z, pass, t, CUDNN_CROSS_CORRELATION);
            one_pass(z, pass, CUDNN_DATA_FLOAT, CUDNN_CONVOLUTION);
        }
}

// conv -> + bias -> + residual -> activation in bfloat16, and what a NaN becomes.
struct Chain {
    const Case z = {2, 8, 6, 6, 16, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}};
    const cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
    Memory x{type, numel(z.x())}, w{type, numel(z.f())}, y{type, numel(z.y())},
        r{type, numel(z.y())}, b{CUDNN_DATA_FLOAT, z.k};
    Desc graph(Library &l, cudnnPointwiseMode_t act)
    {
        const Ints per_channel = {1, z.k, 1, 1};
        const Desc v[3] = {l.tensor4(10, z.y(), CUDNN_DATA_FLOAT, true),
                           l.tensor4(11, z.y(), CUDNN_DATA_FLOAT, true),
                           l.tensor4(12, z.y(), CUDNN_DATA_FLOAT, true)};
        const Desc c = l.bag.finished(conv(l.bag));
        return l.graph(
            {l.bag.finished(conv_op(l.bag, FORWARD, c, l.tensor4(1, z.x(), type),
                                    l.tensor4(2, z.f(), type), v[0])),
             l.bag.finished(pointwise_op(l.bag, CUDNN_POINTWISE_ADD, v[0],
                                         l.tensor4(4, per_channel, CUDNN_DATA_FLOAT), v[1])),
             l.bag.finished(
                 pointwise_op(l.bag, CUDNN_POINTWISE_ADD, v[1], l.tensor4(5, z.y(), type), v[2])),
             l.bag.finished(pointwise_op(l.bag, act, v[2], nullptr, l.tensor4(3, z.y(), type)))});
    }
    void run(Library &l, Desc g, int64_t engine)
    {
        l.run(g, engine, {1, 2, 3, 4, 5}, {x.p, w.p, y.p, b.p, r.p});
    }
};

static double activation(cudnnPointwiseMode_t mode, double v)
{
    switch (mode) {
    case CUDNN_POINTWISE_RELU_FWD:
        return v > 0 ? v : 0;
    case CUDNN_POINTWISE_GELU_FWD:
        return v * 0.5 * std::erfc(-v / std::sqrt(2.0));
    case CUDNN_POINTWISE_GELU_APPROX_TANH_FWD:
        return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case CUDNN_POINTWISE_SWISH_FWD:
        return v / (1 + std::exp(-v));
    case CUDNN_POINTWISE_SIGMOID_FWD:
        return 1 / (1 + std::exp(-v));
    default:
        return std::tanh(v);
    }
}

static void test_fused(void **)
{
    Chain c;
    const std::vector<float> x = values(c.x.count, 1), w = values(c.w.count, 2),
                             r = values(c.r.count, 4), b = values(c.z.k, 5);
    std::vector<double> sum(r.begin(), r.end());
    c.x.put(x), c.w.put(w), c.r.put(r), c.b.put(b);
    for (size_t i = 0; i < sum.size(); i++) sum[i] += b[i % (size_t)c.z.k];
    products(c.z, [&](int64_t i, int64_t j, int64_t k) {
        sum[(size_t)k] += (double)x[(size_t)i] * w[(size_t)j];
    });
    for (const cudnnPointwiseMode_t mode :
         {CUDNN_POINTWISE_RELU_FWD, CUDNN_POINTWISE_GELU_FWD, CUDNN_POINTWISE_GELU_APPROX_TANH_FWD,
          CUDNN_POINTWISE_SWISH_FWD, CUDNN_POINTWISE_SIGMOID_FWD, CUDNN_POINTWISE_TANH_FWD}) {
        Library l;
        std::vector<double> want = sum;
        for (double &v : want) v = activation(mode, v);
        c.run(l, c.graph(l, mode), 0);
        near_enough(c.y.get(), want, c.type);
    }
}

static void test_nan(void **)
{
    Chain c;
    Library l;
    std::vector<float> x((size_t)c.x.count, 1.0f), zero((size_t)c.y.count, 0.0f);
    const Desc g = c.graph(l, CUDNN_POINTWISE_RELU_FWD);
    c.w.put(std::vector<float>((size_t)c.w.count, 1.0f));
    c.x.put(x), c.r.put(zero), c.b.put(std::vector<float>((size_t)c.z.k, NAN));
    c.run(l, g, 0); // no STRICT_NAN_PROP: a NaN is lost
    assert_true(c.y.get()[0] == 0.0f);
    c.run(l, g, 3);
    assert_true(std::isnan(c.y.get()[0]));
}

static void test_engines(void **)
{
    Chain c;
    Library l;
    std::vector<Engine> all;
    int refused = 0, big = 0;
    const Desc conv1 = l.bag.finished(conv(l.bag));
    const auto single = [&](cudnnDataType_t t, cudnnDataType_t out, const Case &z) {
        return l.graph({l.bag.finished(conv_op(l.bag, FILTER, conv1, l.tensor4(1, z.x(), t),
                                               l.tensor4(2, z.f(), out), l.tensor4(3, z.y(), t)))});
    };
    OK(l.heuristics(single(CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, c.z), CUDNN_HEUR_MODE_A, &all));
    assert_true(all[0].has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
    for (const Engine &e : all) {
        Desc p;
        int64_t workspace = 0;
        const int s = l.plan(e, &p, &workspace);
        assert_true(s == 0 || s == CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT ||
                    s == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED);
        refused += s != 0, big += workspace > (int64_t)1 << 32;
    }
    assert_int_equal(refused, 2);
    assert_int_equal(big, 1);
    assert_int_equal(
        l.heuristics(single(CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT, c.z), CUDNN_HEUR_MODE_A, &all),
        CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    setenv("FAKEGPU_CUDNN_NO_GRAPH", "epilogue", 1);
    assert_int_equal(l.heuristics(c.graph(l, CUDNN_POINTWISE_TANH_FWD), CUDNN_HEUR_MODE_A, &all),
                     CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
    setenv("FAKEGPU_CUDNN_NO_GRAPH", "fused", 1);
    OK(l.heuristics(single(CUDNN_DATA_HALF, CUDNN_DATA_HALF, c.z), CUDNN_HEUR_MODE_A, &all));
    assert_int_equal(l.heuristics(c.graph(l, CUDNN_POINTWISE_TANH_FWD), CUDNN_HEUR_MODE_A, &all),
                     CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
    setenv("FAKEGPU_CUDNN_NO_GRAPH", "1", 1);
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B})
        assert_int_equal(l.heuristics(single(CUDNN_DATA_HALF, CUDNN_DATA_HALF, c.z), mode, &all),
                         CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
    OK(l.heuristics(single(CUDNN_DATA_HALF, CUDNN_DATA_HALF, c.z), CUDNN_HEUR_MODE_FALLBACK, &all));
    assert_int_equal(all.size(), 0);
    unsetenv("FAKEGPU_CUDNN_NO_GRAPH");
    const Case none = {0, 8, 6, 6, 16, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}};
    assert_int_equal(
        l.heuristics(single(CUDNN_DATA_HALF, CUDNN_DATA_HALF, none), CUDNN_HEUR_MODE_A, &all),
        CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
}

static void test_notes_are_true(void **)
{
    Chain c;
    Library l;
    const Case z = {4, 8, 12, 12, 8, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}};
    const auto once = [&](cudnnDataType_t t, int64_t engine) {
        Memory x(t, numel(z.x())), w(t, numel(z.f())), y(t, numel(z.y()));
        std::vector<float> v = values(x.count, 9);
        for (float &f : v) f *= 1.0009765625f;
        x.put(v), w.put(values(w.count, 8));
        const Desc k = l.bag.finished(conv(l.bag));
        const Desc g =
            l.graph({l.bag.finished(conv_op(l.bag, FORWARD, k, l.tensor4(1, z.x(), t),
                                            l.tensor4(2, z.f(), t), l.tensor4(3, z.y(), t)))});
        l.run(g, engine, {1, 2, 3}, {x.p, w.p, y.p});
        return y.get();
    };
    assert_true(once(CUDNN_DATA_FLOAT, 57) != once(CUDNN_DATA_FLOAT, 57)); // NONDETERMINISTIC
    assert_true(once(CUDNN_DATA_FLOAT, 1) == once(CUDNN_DATA_FLOAT, 1));
    assert_true(once(CUDNN_DATA_FLOAT, 1) == once(CUDNN_DATA_FLOAT, 0));
    assert_true(once(CUDNN_DATA_FLOAT, 1) != once(CUDNN_DATA_FLOAT, 4)); // DOWN_CONVERT_INPUTS
    assert_true(once(CUDNN_DATA_BFLOAT16, 1) != once(CUDNN_DATA_BFLOAT16, 38)); // REDUCED_PRECISION
}

// Recorded once, run three times with other data each time.
static void test_capture(void **)
{
    Chain c;
    Library l;
    Desc p;
    int64_t workspace = 0;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    OK(l.plan(l.engine(c.graph(l, CUDNN_POINTWISE_RELU_FWD), 3), &p, &workspace));
    const Desc pack = l.pack({1, 2, 3, 4, 5}, {c.x.p, c.w.p, c.y.p, c.b.p, c.r.p}, nullptr);
    c.w.put(std::vector<float>((size_t)c.w.count, 0.0f)),
        c.b.put(std::vector<float>((size_t)c.z.k, 0.0f));
    c.x.put(values(c.x.count, 1));
    CUDA_OK(cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
    OK(cudnnBackendExecute(l.handle, p, pack));
    CUDA_OK(cudaStreamEndCapture(l.stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 1; i <= 3; i++) {
        c.r.put(std::vector<float>((size_t)c.r.count, (float)i));
        CUDA_OK(cudaDeviceSynchronize());
        CUDA_OK(cudaGraphLaunch(exec, l.stream));
        CUDA_OK(cudaStreamSynchronize(l.stream));
        for (float v : c.y.get())
            if (v != (float)i) fail_msg("run %d: %g", i, v);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
}

static void test_misuse(void **)
{
    Chain c;
    Library l;
    Desc p;
    int64_t workspace = 0;
    const Desc g = c.graph(l, CUDNN_POINTWISE_TANH_FWD);
    OK(l.plan(l.engine(g, 0), &p, &workspace));
    Memory space(CUDNN_DATA_FLOAT, workspace / 4);
    const auto execute = [&](const Ints &ids, const std::vector<void *> &at, void *where) {
        return (int)cudnnBackendExecute(l.handle, p, l.pack(ids, at, where));
    };
    const Ints ids = {1, 2, 3, 4, 5};
    char *const x = static_cast<char *>(c.x.p);
    float host[4];
    assert_int_equal(execute({1, 2, 3, 4}, {x, c.w.p, c.y.p, c.b.p}, space.p),
                     CUDNN_STATUS_BAD_PARAM);
    assert_int_equal(execute(ids, {x, c.w.p, c.y.p, c.b.p, c.r.p}, nullptr),
                     CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    OK(execute(ids, {x, c.w.p, c.r.p, c.b.p, c.r.p}, space.p)); // the residual in place
    CUDA_OK(cudaStreamSynchronize(l.stream));
    const auto violates = [&](const std::vector<void *> &at, void *where) {
        assert_int_equal(status_of_child([&] { execute(ids, at, where); }), 99);
    };
    violates({x + 2, c.w.p, c.y.p, c.b.p, c.r.p}, space.p);  // alignment
    violates({host, c.w.p, c.y.p, c.b.p, c.r.p}, space.p);   // not device memory
    violates({x + 16, c.w.p, c.y.p, c.b.p, c.r.p}, space.p); // beyond the end
    Memory twice(c.type, 2 * c.y.count);
    char *const y = static_cast<char *>(twice.p);
    violates({x, c.w.p, y, c.b.p, y + 16}, space.p);  // the residual partly in place
    violates({y, c.w.p, y, c.b.p, c.r.p}, space.p);   // the convolution in place
    violates({x, c.w.p, c.y.p, c.b.p, c.r.p}, c.b.p); // workspace too small
    assert_int_equal(status_of_child([&] { cudnnBackendDestroyDescriptor(x); }), 99);
    const Desc v = l.tensor4(10, c.z.y(), CUDNN_DATA_FLOAT, true);
    assert_int_equal(
        status_of_child([&] { // nobody makes v
            l.graph({l.bag.finished(pointwise_op(l.bag, CUDNN_POINTWISE_TANH_FWD, v, nullptr,
                                                 l.tensor4(3, c.z.y(), CUDNN_DATA_FLOAT)))});
        }),
        99);
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_engines),
        cmocka_unit_test(test_notes_are_true),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_capture),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
