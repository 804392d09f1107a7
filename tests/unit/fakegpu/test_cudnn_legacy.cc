// The stand-in's imperative convolutions of cuDNN: results against the definition, which algorithms
// are named, what wrong calls answer.
#include "tests/unit/fakegpu/cudnn_harness.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

struct Library {
    cudnnHandle_t handle = nullptr;
    cudaStream_t stream = nullptr;
    cudnnTensorDescriptor_t x = nullptr, y = nullptr;
    cudnnFilterDescriptor_t w = nullptr;
    cudnnConvolutionDescriptor_t c = nullptr;
    Library(const Case &z, cudnnDataType_t t, cudnnTensorFormat_t format = CUDNN_TENSOR_NHWC)
    {
        CUDA_OK(cudaStreamCreate(&stream));
        OK(cudnnCreate(&handle));
        OK(cudnnSetStream(handle, stream));
        OK(cudnnCreateTensorDescriptor(&x));
        OK(cudnnCreateTensorDescriptor(&y));
        OK(cudnnCreateFilterDescriptor(&w));
        OK(cudnnCreateConvolutionDescriptor(&c));
        OK(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, t, (int)z.n, (int)z.c, (int)z.h,
                                      (int)z.w));
        OK(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, t, (int)z.n, (int)z.k, (int)z.p(),
                                      (int)z.q()));
        OK(cudnnSetFilter4dDescriptor(w, t, format, (int)z.k, (int)(z.c / z.g), (int)z.r,
                                      (int)z.s));
        OK(cudnnSetConvolution2dDescriptor(c, (int)z.pad[0], (int)z.pad[1], (int)z.stride[0],
                                           (int)z.stride[1], (int)z.dil[0], (int)z.dil[1],
                                           CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
        OK(cudnnSetConvolutionGroupCount(c, (int)z.g));
        OK(cudnnSetConvolutionMathType(c, CUDNN_FMA_MATH));
    }
    Library(const Library &) = delete;
    ~Library()
    {
        cudnnDestroyConvolutionDescriptor(c);
        cudnnDestroyFilterDescriptor(w);
        cudnnDestroyTensorDescriptor(y);
        cudnnDestroyTensorDescriptor(x);
        cudnnDestroy(handle);
        cudaStreamDestroy(stream);
    }
};

static const Case cases[] = {
    {2, 3, 7, 6, 5, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}},
    {1, 4, 9, 11, 6, 3, 2, 2, {2, 1}, {2, 1}, {2, 3}},
    {2, 6, 5, 5, 6, 3, 3, 6, {2, 2}, {1, 1}, {1, 1}},
};

// y = 2 conv(x, w) + y / 2, and so on.
static void run(const Case &z, Pass pass, cudnnDataType_t t)
{
    Library l(z, t);
    const float alpha = 2, beta = 0.5f;
    Memory x(t, numel(z.x())), w(t, numel(z.f())), y(t, numel(z.y())),
        space(CUDNN_DATA_FLOAT, 1 << 16);
    const std::vector<float> vx = values(x.count, 1), vw = values(w.count, 2),
                             vy = values(y.count, 3);
    const std::vector<float> &before = pass == FORWARD ? vy : pass == DATA ? vx : vw;
    std::vector<double> want(before.begin(), before.end());
    const double unit = t == CUDNN_DATA_FLOAT ? 0x1p-22 : t == CUDNN_DATA_HALF ? 0x1p-11 : 0x1p-8;
    x.put(vx), w.put(vw), y.put(vy);
    for (double &v : want) v *= beta;
    products(z, [&](int64_t i, int64_t j, int64_t k) {
        if (pass == FORWARD) want[(size_t)k] += (double)alpha * vx[(size_t)i] * vw[(size_t)j];
        if (pass == DATA) want[(size_t)i] += (double)alpha * vy[(size_t)k] * vw[(size_t)j];
        if (pass == FILTER) want[(size_t)j] += (double)alpha * vx[(size_t)i] * vy[(size_t)k];
    });
    if (pass == FORWARD)
        OK(cudnnConvolutionForward(l.handle, &alpha, l.x, x.p, l.w, w.p, l.c,
                                   CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, space.p,
                                   1 << 18, &beta, l.y, y.p));
    else if (pass == DATA)
        OK(cudnnConvolutionBackwardData(l.handle, &alpha, l.w, w.p, l.y, y.p, l.c,
                                        CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, space.p, 1 << 18, &beta,
                                        l.x, x.p));
    else
        OK(cudnnConvolutionBackwardFilter(l.handle, &alpha, l.x, x.p, l.y, y.p, l.c,
                                          CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, space.p, 1 << 18,
                                          &beta, l.w, w.p));
    CUDA_OK(cudaStreamSynchronize(l.stream));
    const std::vector<float> got = (pass == FORWARD ? y : pass == DATA ? x : w).get();
    for (size_t i = 0; i < got.size(); i++)
        if (!(std::fabs(got[i] - want[i]) <= unit * (std::fabs(want[i]) + 0x1p-10)))
            fail_msg("element %zu: %.9g, not %.9g", i, got[i], want[i]);
}

static void test_results(void **)
{
    for (const Case &z : cases)
        for (const Pass pass : {FORWARD, DATA, FILTER})
            for (const cudnnDataType_t t : {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF})
                run(z, pass, t);
}

static void test_algorithms(void **)
{
    cudnnConvolutionFwdAlgoPerf_t f[8];
    cudnnConvolutionBwdDataAlgoPerf_t d[8];
    cudnnConvolutionBwdFilterAlgoPerf_t w[8];
    int n = 0;
    size_t size = 1;
    Library nhwc(cases[0], CUDNN_DATA_FLOAT), nchw(cases[0], CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW);
    OK(cudnnGetConvolutionForwardAlgorithm_v7(nhwc.handle, nhwc.x, nhwc.w, nhwc.c, nhwc.y, 8, &n,
                                              f));
    assert_int_equal(f[0].algo, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    assert_int_equal(f[n - 1].status, CUDNN_STATUS_NOT_SUPPORTED);
    OK(cudnnGetConvolutionForwardAlgorithm_v7(nchw.handle, nchw.x, nchw.w, nchw.c, nchw.y, 1, &n,
                                              f));
    assert_int_equal(n, 1);
    assert_int_equal(f[0].algo, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD);
    OK(cudnnGetConvolutionBackwardDataAlgorithm_v7(nhwc.handle, nhwc.w, nhwc.y, nhwc.c, nhwc.x, 8,
                                                   &n, d));
    assert_int_equal(d[0].determinism, CUDNN_NON_DETERMINISTIC);
    OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(nhwc.handle, nhwc.x, nhwc.y, nhwc.c, nhwc.w, 8,
                                                     &n, w));
    assert_int_equal(w[0].algo, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0);
    OK(cudnnGetConvolutionForwardWorkspaceSize(nhwc.handle, nhwc.x, nhwc.w, nhwc.c, nhwc.y,
                                               CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, &size));
    assert_int_equal(size, 0);
    assert_int_equal(
        cudnnGetConvolutionForwardWorkspaceSize(nhwc.handle, nhwc.x, nhwc.w, nhwc.c, nhwc.y,
                                                CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, &size),
        CUDNN_STATUS_NOT_SUPPORTED);
}

static void test_misuse(void **)
{
    const Case &z = cases[0];
    const float one = 1, zero = 0;
    Library l(z, CUDNN_DATA_FLOAT);
    Memory x(CUDNN_DATA_FLOAT, numel(z.x())), w(CUDNN_DATA_FLOAT, numel(z.f())),
        y(CUDNN_DATA_FLOAT, numel(z.y()));
    const auto forward = [&](const void *from, void *space, size_t room) {
        return (int)cudnnConvolutionForward(l.handle, &one, l.x, from, l.w, w.p, l.c,
                                            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, space,
                                            room, &zero, l.y, y.p);
    };
    assert_int_equal(forward(x.p, nullptr, 0), CUDNN_STATUS_BAD_PARAM);
    assert_int_equal(forward(x.p, y.p, 16), CUDNN_STATUS_BAD_PARAM);
    assert_int_equal(forward(nullptr, y.p, 1 << 18), CUDNN_STATUS_BAD_PARAM);
    assert_int_equal(status_of_child([&] { forward(x.p, y.p, 1 << 18); }), 99); // beyond y's end
    assert_int_equal(
        cudnnSetTensor4dDescriptor(l.x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 0, 1, 1, 1),
        CUDNN_STATUS_BAD_PARAM);
    assert_int_equal(cudnnSetConvolutionGroupCount(l.c, 0), CUDNN_STATUS_BAD_PARAM);
    OK(cudnnSetConvolutionGroupCount(l.c, 2)); // does not fit the filter
    assert_int_equal(forward(x.p, nullptr, 0), CUDNN_STATUS_BAD_PARAM);
    OK(cudnnSetConvolutionGroupCount(l.c, 1));
    OK(cudnnSetTensor4dDescriptor(l.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_HALF, (int)z.n, (int)z.k,
                                  (int)z.p(), (int)z.q()));
    assert_int_equal(forward(x.p, nullptr, 0), CUDNN_STATUS_NOT_SUPPORTED);
}

// This program once more, as a process of its own.
static int again(const char *how, const char *fault)
{
    char command[200];
    snprintf(command, sizeof command, "FAKEGPU_FAIL=%s exec /proc/%d/exe %s", fault, (int)getpid(),
             how);
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_end(void **)
{
    assert_int_equal(again("leave", "none:1"), 99); // a descriptor is left
    assert_int_equal(again("tidy", "none:1"), 0);
    assert_int_equal(again("tidy", "cudnnCreateTensorDescriptor:1"), 7);
}

static int other_process(const char *how)
{
    cudnnTensorDescriptor_t t = nullptr;
    const cudnnStatus_t s = cudnnCreateTensorDescriptor(&t);
    if (s == CUDNN_STATUS_EXECUTION_FAILED) return 7;
    if (!strcmp(how, "tidy")) cudnnDestroyTensorDescriptor(t);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return other_process(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_end),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
