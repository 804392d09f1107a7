// Injected faults, counts, devices, and what may not be called from a task.
#include "child.h"

#include <cstring>

static void test_named(void **)
{
    ends_well({{"FAKEGPU_FAIL", "cudaMalloc:2"}}, [] {
        void *a = nullptr, *b = nullptr, *c = nullptr;
        OK(cudaMalloc(&a, 8));
        GIVES(cudaErrorMemoryAllocation, cudaMalloc(&b, 8));
        NEED(b == nullptr);
        NEED(strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorMemoryAllocation") == 0);
        OK(cudaMalloc(&c, 8));
        cudaFree(a), cudaFree(c);
        return 0;
    });
    ends_well({{"FAKEGPU_FAIL", "cudaLaunchKernel:1"}}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(1);
        GIVES(cudaErrorLaunchOutOfResources, LAUNCH(set_kernel, 1, 1, 0, s, x, 1));
        NEED(fetch(x, s) == -1); // it had no effect
        OK(LAUNCH(set_kernel, 1, 1, 0, s, x, 1));
        NEED(fetch(x, s) == 1);
        cudaFree(x), cudaStreamDestroy(s);
        return 0;
    });
}

static void test_nth(void **)
{
    ends_well({{"FAKEGPU_FAIL", "3"}}, [] {
        void *a = nullptr;
        OK(cudaSetDevice(0));
        OK(cudaMalloc(&a, 8));
        GIVES(cudaErrorIllegalAddress, cudaFree(a)); // told after the fact: no leak is left
        OK(cudaSetDevice(0));
        return 0;
    });
    // For another rank.
    ends_well({{"FAKEGPU_FAIL", "1@1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
              [] { return cudaSetDevice(0) != cudaSuccess; });
    ends_well({{"FAKEGPU_FAIL", "1@1"}, {"OMPI_COMM_WORLD_RANK", "1"}},
              [] { return cudaSetDevice(0) == cudaSuccess; });
    // One that spoils the context, as a failed kernel does.
    ends_well({{"FAKEGPU_FAIL", "cudaStreamSynchronize:1"}, {"FAKEGPU_STICKY", "1"}}, [] {
        cudaStream_t s = new_stream();
        void *p;
        GIVES(cudaErrorLaunchFailure, cudaStreamSynchronize(s));
        GIVES(cudaErrorLaunchFailure, cudaMalloc(&p, 8));
        GIVES(cudaErrorLaunchFailure, cudaGetLastError());
        GIVES(cudaErrorLaunchFailure, cudaGetLastError());
        return 0;
    });
}

// Every call of a small program in turn: none crashes, and the one that fails is the one meant.
static int program()
{
    cudaStream_t s = nullptr;
    cudaEvent_t e = nullptr;
    void *x = nullptr, *h = nullptr;
    cudaGraph_t g = nullptr;
    cudaGraphExec_t exec = nullptr;
    int failed = 0;
    const auto ok = [&failed](cudaError_t st) { return st == cudaSuccess || (failed++, false); };
    if (ok(cudaStreamCreate(&s)) && ok(cudaEventCreate(&e)) && ok(cudaMalloc(&x, 4)) &&
        ok(cudaMallocHost(&h, 4)) && ok(cudaMemcpyAsync(x, h, 4, cudaMemcpyHostToDevice, s)) &&
        ok(cudaStreamSynchronize(s))) {
        if (ok(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal))) {
            ok(LAUNCH(set_kernel, 1, 1, 0, s, static_cast<int *>(x), 1));
            ok(cudaStreamEndCapture(s, &g));
        }
        if (g != nullptr && ok(cudaGraphInstantiate(&exec, g, 0))) ok(cudaGraphLaunch(exec, s));
        ok(cudaEventRecord(e, s));
        ok(cudaEventSynchronize(e));
    }
    if (exec != nullptr) ok(cudaGraphExecDestroy(exec));
    if (g != nullptr) ok(cudaGraphDestroy(g));
    if (s != nullptr) cudaStreamSynchronize(s);
    ok(cudaFreeHost(h));
    ok(cudaFree(x));
    if (e != nullptr) ok(cudaEventDestroy(e));
    if (s != nullptr) ok(cudaStreamDestroy(s));
    return failed;
}

static void test_each(void **)
{
    const std::string path = "fakegpu-calls." + std::to_string(getpid()), file = path + ".3";
    assert_int_equal(in_child({{"FAKEGPU_COUNT", path.c_str()}, {"OMPI_COMM_WORLD_RANK", "3"}},
                              [] { return program(); })
                         .status,
                     0);
    FILE *in = fopen(file.c_str(), "r");
    assert_non_null(in);
    char name[64];
    unsigned n, all = 0, names = 0;
    while (fscanf(in, "%63s %u", name, &n) == 2) {
        for (unsigned i = 1; i <= n; i++) {
            const std::string which = std::string(name) + ":" + std::to_string(i);
            const Child c =
                in_child({{"FAKEGPU_FAIL", which.c_str()}}, [] { return program() + 10; });
            // The last wait of all is not looked at.
            if (strcmp(name, "cudaStreamSynchronize") != 0 || i == 1)
                assert_in_range(c.status, 11, 12);
        }
        all += n;
        names++;
    }
    fclose(in);
    unlink(file.c_str());
    assert_int_equal(names, 19);
    assert_int_equal(all, 20);
    for (unsigned i = 1; i <= all; i++) {
        const std::string which = std::to_string(i);
        assert_in_range(
            in_child({{"FAKEGPU_FAIL", which.c_str()}}, [] { return program() + 10; }).status, 10,
            12);
    }
}

static void test_devices(void **)
{
    ends_well({{"FAKEGPU_DEVICES", "3"}}, [] {
        int n = 0, v = 0;
        OK(cudaGetDeviceCount(&n));
        NEED(n == 3);
        OK(cudaSetDevice(2));
        GIVES(cudaErrorInvalidDevice, cudaSetDevice(3));
        OK(cudaGetDevice(&v));
        NEED(v == 2);
        cudaDeviceProp p;
        OK(cudaGetDeviceProperties(&p, 2));
        NEED(p.major == 9 && p.minor == 0 && p.multiProcessorCount == 132 &&
             p.sharedMemPerBlockOptin == 232448);
        OK(cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 2));
        NEED(v == 132);
        return 0;
    });
    ends_well({{"FAKEGPU_DEVICES", "4"}, {"CUDA_VISIBLE_DEVICES", "3,1,7,2"}}, [] {
        int n = 0;
        OK(cudaGetDeviceCount(&n));
        NEED(n == 2); // the list ends at the first that is not there
        char id[32];
        OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
        NEED(strcmp(id, "0000:13:00.0") == 0);
        return 0;
    });
    ends_well({{"FAKEGPU_DEVICES", "0"}}, [] {
        int n = 5;
        void *p;
        GIVES(cudaErrorNoDevice, cudaGetDeviceCount(&n));
        NEED(n == 0);
        GIVES(cudaErrorNoDevice, cudaMalloc(&p, 4));
        return 0;
    });
}

static void test_host_functions(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        int called = 0;
        OK(cudaLaunchHostFunc(
            s, [](void *p) { ++*static_cast<int *>(p); }, &called));
        NEED(called == 0);
        OK(cudaStreamSynchronize(s));
        NEED(called == 1);
        return cudaStreamDestroy(s) == cudaSuccess ? 0 : 1;
    });
    is_violation({}, {"cudaStreamQuery", "called by cudaLaunchHostFunc"}, [] {
        cudaStream_t s = new_stream();
        OK(cudaLaunchHostFunc(
            s, [](void *p) { cudaStreamQuery(static_cast<cudaStream_t>(p)); }, s));
        OK(cudaStreamSynchronize(s));
        return 0;
    });
    is_violation({}, {"the host touched"}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(1);
        OK(cudaLaunchHostFunc(
            s, [](void *p) { *static_cast<volatile int *>(p) = 1; }, x));
        OK(cudaStreamSynchronize(s));
        return 0;
    });
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named),          cmocka_unit_test(test_nth),
        cmocka_unit_test(test_each),           cmocka_unit_test(test_devices),
        cmocka_unit_test(test_host_functions),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
