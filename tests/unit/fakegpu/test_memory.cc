// Memory: what the device or the host must not touch, what is left behind, how much there is.
#include "child.h"

#include <cstring>

static __global__ void write_at(char *p, long i)
{
    p[i] = 1;
}
static __global__ void read_at(const char *p, long i, char *to)
{
    *to = p[i];
}

static void test_use_after_free(void **)
{
    is_violation({}, {"set_kernel", "freed device memory", "thread (0, 0, 0)"}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(100);
        OK(LAUNCH(set_kernel, 1, 1, 0, s, x + 6, 1));
        OK(cudaFree(x));
        OK(cudaStreamSynchronize(s));
        return 0;
    });
    is_violation({}, {"cudaMemcpyAsync", "24 bytes into 400 bytes of freed device memory"}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(100), *h = new_pinned<int>(1);
        OK(cudaMemcpyAsync(h, x + 6, 4, cudaMemcpyDeviceToHost, s));
        OK(cudaFree(x));
        OK(cudaStreamSynchronize(s));
        return 0;
    });
    is_violation({}, {"host", "freed pinned memory"}, [] {
        volatile int *h = new_pinned<int>(1);
        OK(cudaFreeHost(const_cast<int *>(h)));
        *h = 1;
        return 0;
    });
}

static int write_out(long n, long i)
{
    cudaStream_t s = new_stream();
    char *x = new_device<char>((size_t)n);
    OK(LAUNCH(write_at, 1, 1, 0, s, x, i));
    OK(cudaStreamSynchronize(s));
    return 0;
}

static void test_out_of_bounds(void **)
{
    is_violation({}, {"write_at", "0 bytes behind 100 bytes"}, [] { return write_out(100, 100); });
    is_violation({}, {"end of the process", "100 bytes behind 100 bytes"},
                 [] { return write_out(100, 200); });
    is_violation({}, {"write_at", "1 bytes before 100 bytes"}, [] { return write_out(100, -1); });
    is_violation({}, {"write_at", "touched 0 bytes behind 256 bytes"},
                 [] { return write_out(256, 256); });
    is_violation({}, {"write_at", "behind 4096 bytes"}, [] { return write_out(4096, 4100); });
    is_violation({}, {"write_at", "before 8192 bytes"}, [] { return write_out(8192, -8); });
    is_violation({}, {"read_at", "behind 256 bytes"}, [] {
        cudaStream_t s = new_stream();
        char *x = new_device<char>(256), *y = new_device<char>(1);
        OK(LAUNCH(read_at, 1, 1, 0, s, x, 300L, y));
        OK(cudaStreamSynchronize(s));
        return 0;
    });
    is_violation({}, {"cudaMemsetAsync", "101 bytes do not lie inside"}, [] {
        OK(cudaMemsetAsync(new_device<char>(100), 0, 101, new_stream()));
        return 0;
    });
    is_violation({}, {"set_kernel", "no memory"}, [] {
        cudaStream_t s = new_stream();
        OK(LAUNCH(set_kernel, 1, 1, 0, s, static_cast<int *>(nullptr), 1));
        OK(cudaStreamSynchronize(s));
        return 0;
    });
}

static void test_host_touches(void **)
{
    const auto body = [] {
        volatile int *x = new_device<int>(4);
        x[1] = 3;
        const int got = x[1];
        cudaFree(const_cast<int *>(x));
        return got - 3;
    };
    is_violation({}, {"the host touched 4 bytes into 16 bytes of device memory"}, body);
    ends_well({{"FAKEGPU_GUARD", "0"}}, body);
}

static void test_leaks(void **)
{
    is_violation({}, {"12 bytes of device memory", "cudaMalloc"},
                 [] { return new_device<int>(3) == nullptr; });
    is_violation({}, {"pinned memory"}, [] { return new_pinned<int>(3) == nullptr; });
    is_violation({}, {"2 streams", "1 event"}, [] {
        new_stream(), new_stream(), new_event();
        return 0;
    });
    is_violation({}, {"not freed"}, [] {
        new_device<int>(3);
        return cudaDeviceReset() != cudaSuccess;
    });
    // A process that says that it failed has other worries, unless it is asked.
    assert_int_equal(in_child({}, [] { return new_device<int>(3) != nullptr ? 1 : 0; }).status, 1);
    is_violation({{"FAKEGPU_LEAKS", "strict"}}, {"not freed"},
                 [] { return new_device<int>(3) != nullptr ? 1 : 0; });
}

static void test_amounts(void **)
{
    ends_well({{"FAKEGPU_MEMORY", "1048576"}}, [] {
        size_t available = 0, total = 0;
        OK(cudaMemGetInfo(&available, &total));
        NEED(total == 1048576 && available == total);
        void *a = nullptr, *b = &a;
        OK(cudaMalloc(&a, 600000));
        NEED((uintptr_t)a % 256 == 0);
        OK(cudaMemGetInfo(&available, &total));
        NEED(available <= 1048576 - 600000);
        GIVES(cudaErrorMemoryAllocation, cudaMalloc(&b, 600000));
        NEED(b == nullptr);
        GIVES(cudaErrorMemoryAllocation, cudaGetLastError());
        OK(cudaSetDevice(1)); // another device, its own memory
        OK(cudaMalloc(&b, 600000));
        OK(cudaFree(a));
        GIVES(cudaErrorInvalidValue, cudaFree(a));
        GIVES(cudaErrorInvalidValue, cudaFreeHost(b));
        OK(cudaFree(b));
        OK(cudaFree(nullptr));
        return 0;
    });
}

static void test_contents_and_kinds(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(5), *h = new_pinned<int>(5), local = 0;
        NEED(fetch(x + 4, s) == -1); // nobody wrote it
        cudaPointerAttributes a;
        OK(cudaPointerGetAttributes(&a, x + 1));
        NEED(a.type == cudaMemoryTypeDevice && a.device == 0);
        OK(cudaPointerGetAttributes(&a, h));
        NEED(a.type == cudaMemoryTypeHost);
        OK(cudaPointerGetAttributes(&a, &local));
        NEED(a.type == cudaMemoryTypeUnregistered);
        cudaFree(x), cudaFreeHost(h), cudaStreamDestroy(s);
        return 0;
    });
}

static void test_large(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        const size_t n = (5 << 20) + 123; // more than one large page
        char *x = new_device<char>(n), *h = new_pinned<char>(n);
        for (int round = 0; round < 3; round++) {
            memset(h, round, n);
            OK(cudaMemcpyAsync(x, h, n, cudaMemcpyHostToDevice, s));
            OK(cudaStreamSynchronize(s));
            memset(h, 9, n);
            OK(cudaMemcpyAsync(h, x, n, cudaMemcpyDeviceToHost, s));
            OK(cudaStreamSynchronize(s));
            for (size_t i = 0; i < n; i++) NEED(h[i] == round);
        }
        cudaFree(x), cudaFreeHost(h), cudaStreamDestroy(s);
        return 0;
    });
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_use_after_free), cmocka_unit_test(test_out_of_bounds),
        cmocka_unit_test(test_host_touches),   cmocka_unit_test(test_leaks),
        cmocka_unit_test(test_amounts),        cmocka_unit_test(test_contents_and_kinds),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
