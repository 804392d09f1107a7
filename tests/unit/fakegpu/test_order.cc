// Streams, events and copies: what is not ordered comes in the wrong order, what is ordered does
// not.
#include "child.h"

#include <cstring>

// Producer in one stream, consumer in another.
static int across(bool event)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e = new_event();
    int *x = new_device<int>(1), *y = new_device<int>(1);
    OK(LAUNCH(set_kernel, 1, 1, 0, a, x, 1));
    OK(cudaStreamSynchronize(a));
    OK(LAUNCH(set_kernel, 1, 1, 0, a, x, 41));
    if (event) {
        OK(cudaEventRecord(e, a));
        OK(cudaStreamWaitEvent(b, e, 0));
    }
    OK(LAUNCH(add_kernel, 1, 1, 0, b, y, x, 1));
    const int got = fetch(y, b);
    OK(cudaStreamSynchronize(a));
    OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    return got;
}

static void test_missing_event(void **)
{
    assert_int_equal(
        in_child({{"FAKEGPU_ORDER", "lazy"}}, [] { return across(false) == 2 ? 0 : 1; }).status, 0);
    for (const char *order : {"lazy", "eager", "1", "2", "3", "99"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] { return across(true) == 42 ? 0 : 1; });
}

// What a number gives differs between numbers, and is the same for one.
static void test_seeds(void **)
{
    int right = 0, wrong = 0;
    for (int seed = 0; seed < 40; seed++) {
        const std::string order = std::to_string(seed);
        const auto body = [] {
            const int got = across(false);
            return got == 42 ? 10 : got == 2 ? 11 : 1;
        };
        const int first = in_child({{"FAKEGPU_ORDER", order.c_str()}}, body).status;
        assert_int_equal(in_child({{"FAKEGPU_ORDER", order.c_str()}}, body).status, first);
        right += first == 10;
        wrong += first == 11;
    }
    assert_int_equal(right + wrong, 40);
    assert_true(right > 0 && wrong > 0);
}

// Eager finds the consumer that is issued before its producer.
static void test_consumer_first(void **)
{
    const auto body = [] {
        cudaStream_t a = new_stream(), b = new_stream();
        int *x = new_device<int>(1), *y = new_device<int>(1);
        OK(cudaMemsetAsync(x, 0, 4, a));
        OK(cudaStreamSynchronize(a));
        OK(LAUNCH(add_kernel, 1, 1, 0, b, y, x, 1));
        OK(LAUNCH(set_kernel, 1, 1, 0, a, x, 41));
        OK(cudaStreamSynchronize(a));
        const int got = fetch(y, b);
        cudaFree(x), cudaFree(y), cudaStreamDestroy(a), cudaStreamDestroy(b);
        return got;
    };
    assert_int_equal(in_child({{"FAKEGPU_ORDER", "eager"}}, body).status, 1);
    assert_int_equal(in_child({{"FAKEGPU_ORDER", "lazy"}}, body).status, 42);
}

// A pinned buffer is read when the copy runs; a pageable one when the call is made.
static int reuse(bool pinned, bool wait)
{
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();
    int *x = new_device<int>(1), *h = pinned ? new_pinned<int>(1) : static_cast<int *>(malloc(4));
    *h = 1;
    OK(cudaMemcpyAsync(x, h, 4, cudaMemcpyHostToDevice, s));
    OK(cudaEventRecord(e, s));
    if (wait) OK(cudaEventSynchronize(e));
    *h = 2;
    const int got = fetch(x, s);
    if (pinned)
        OK(cudaFreeHost(h));
    else
        free(h);
    OK(cudaFree(x));
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
    return got;
}

static void test_reuse(void **)
{
    assert_int_equal(in_child({}, [] { return reuse(true, false); }).status, 2);
    assert_int_equal(in_child({}, [] { return reuse(true, true); }).status, 1);
    assert_int_equal(in_child({}, [] { return reuse(false, false); }).status, 1);
}

// To pinned memory: there after a wait, not before.
static void test_download(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(1), *h = new_pinned<int>(1);
        *h = 5;
        OK(cudaMemsetAsync(x, 0, 4, s));
        OK(cudaMemcpyAsync(h, x, 4, cudaMemcpyDeviceToHost, s));
        NEED(*h == 5);
        OK(cudaStreamSynchronize(s));
        NEED(*h == 0);
        GIVES(cudaErrorInvalidValue, cudaMemcpyAsync(h, x, 4, cudaMemcpyHostToDevice, s));
        cudaFree(x), cudaFreeHost(h), cudaStreamDestroy(s);
        return 0;
    });
}

// cudaMemset and cudaMemcpy from pageable memory hold up blocking streams, and no others.
static void test_default_stream(void **)
{
    for (const bool blocking : {false, true})
        ends_well({}, [=] {
            cudaStream_t s;
            OK(cudaStreamCreateWithFlags(&s, blocking ? cudaStreamDefault : cudaStreamNonBlocking));
            int *x = new_device<int>(1), *y = new_device<int>(1);
            const int seven = 7;
            OK(cudaMemcpy(x, &seven, 4, cudaMemcpyHostToDevice));
            OK(LAUNCH(add_kernel, 1, 1, 0, s, y, x, 0));
            NEED(fetch(y, s) == (blocking ? 7 : -1));
            OK(cudaDeviceSynchronize());
            int back = 0;
            OK(cudaMemcpy(&back, x, 4, cudaMemcpyDeviceToHost));
            NEED(back == 7);
            cudaFree(x), cudaFree(y), cudaStreamDestroy(s);
            return 0;
        });
    is_violation({}, {"set_kernel", "default stream"}, [] {
        int *x = new_device<int>(1);
        OK(LAUNCH(set_kernel, 1, 1, 0, nullptr, x, 1));
        return 0;
    });
}

// A wait means the record before it, whatever is recorded later; one that never was is no wait.
static void test_records(void **)
{
    ends_well({}, [] {
        cudaStream_t a = new_stream(), b = new_stream();
        cudaEvent_t e = new_event();
        int *x = new_device<int>(1), *y = new_device<int>(1);
        OK(cudaStreamWaitEvent(b, e, 0));
        OK(cudaEventQuery(e));
        OK(cudaEventSynchronize(e));
        OK(LAUNCH(set_kernel, 1, 1, 0, a, x, 1));
        OK(cudaEventRecord(e, a));
        OK(cudaStreamWaitEvent(b, e, 0));
        OK(LAUNCH(set_kernel, 1, 1, 0, a, x, 2));
        OK(cudaEventRecord(e, a));
        OK(LAUNCH(add_kernel, 1, 1, 0, b, y, x, 0));
        NEED(fetch(y, b) == 1);
        OK(cudaEventSynchronize(e));
        NEED(fetch(x, b) == 2);
        cudaFree(x), cudaFree(y), cudaEventDestroy(e), cudaStreamDestroy(a), cudaStreamDestroy(b);
        return 0;
    });
}

// Polling ends, and says "not ready" first; that is a last error as well.
static void test_polling(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        cudaEvent_t e = new_event();
        int *x = new_device<int>(1);
        for (int i = 0; i < 5000; i++) OK(LAUNCH(set_kernel, 1, 1, 0, s, x, i));
        OK(cudaEventRecord(e, s));
        GIVES(cudaErrorNotReady, cudaEventQuery(e));
        GIVES(cudaErrorNotReady, cudaPeekAtLastError());
        GIVES(cudaErrorNotReady, LAUNCH(set_kernel, 1, 1, 0, s, x, 1));
        GIVES(cudaSuccess, cudaGetLastError());
        int polls = 0;
        while (cudaEventQuery(e) == cudaErrorNotReady) polls++;
        NEED(polls > 3 && polls < 30);
        for (int i = 0; i < 100; i++) LAUNCH(set_kernel, 1, 1, 0, s, x, i);
        for (polls = 0; cudaStreamQuery(s) == cudaErrorNotReady;) polls++;
        NEED(polls > 2 && polls < 30);
        cudaFree(x), cudaEventDestroy(e), cudaStreamDestroy(s);
        return 0;
    });
}

static void test_times(void **)
{
    ends_well({}, [] {
        cudaStream_t s = new_stream();
        cudaEvent_t a, b, untimed = new_event();
        OK(cudaEventCreate(&a));
        OK(cudaEventCreate(&b));
        float ms = -1;
        GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, a, b));
        OK(cudaEventRecord(a, s));
        OK(cudaEventRecord(b, s));
        OK(cudaEventRecord(untimed, s));
        GIVES(cudaErrorNotReady, cudaEventElapsedTime(&ms, a, b));
        OK(cudaStreamSynchronize(s));
        OK(cudaEventElapsedTime(&ms, a, b));
        NEED(ms > 0 && ms < 1000);
        GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, a, untimed));
        OK(cudaEventDestroy(a));
        GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(a, s));
        GIVES(cudaErrorInvalidResourceHandle, cudaEventDestroy(a));
        cudaEventDestroy(b), cudaEventDestroy(untimed);
        OK(cudaStreamDestroy(s));
        GIVES(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(s));
        return 0;
    });
}

// Three pieces of work, however long they took.
static void test_counted_times(void **)
{
    ends_well({{"FAKEGPU_CLOCK", "work"}}, [] {
        cudaStream_t s = new_stream();
        cudaEvent_t a, b;
        char *x = nullptr;
        float ms = -1;
        OK(cudaEventCreate(&a));
        OK(cudaEventCreate(&b));
        OK(cudaMalloc(&x, 16));
        OK(cudaEventRecord(a, s));
        for (int i = 0; i < 3; i++) OK(cudaMemsetAsync(x, i, 16, s));
        OK(cudaEventRecord(b, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaEventElapsedTime(&ms, a, b));
        NEED(ms > 0.00345F && ms < 0.00355F);
        cudaFree(x), cudaEventDestroy(a), cudaEventDestroy(b), cudaStreamDestroy(s);
        return 0;
    });
}

// The flag is written while it is polled, as by a device: no data race that could be mended.
__attribute__((no_sanitize("thread"))) static int poll_flag(const volatile int *h)
{
    return *h;
}

// A host that calls nothing is served by the engine's own thread.
static void test_pump(void **)
{
    ends_well({{"FAKEGPU_PUMP", "1"}}, [] {
        cudaStream_t s = new_stream();
        int *x = new_device<int>(1);
        volatile int *h = new_pinned<int>(1);
        *h = 0;
        OK(LAUNCH(set_kernel, 1, 1, 0, s, x, 77));
        OK(cudaMemcpyAsync(const_cast<int *>(h), x, 4, cudaMemcpyDeviceToHost, s));
        for (int i = 0; i < 20000 && poll_flag(h) != 77; i++) usleep(1000);
        NEED(poll_flag(h) == 77);
        cudaFree(x), cudaFreeHost(const_cast<int *>(h)), cudaStreamDestroy(s);
        return 0;
    });
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_event),  cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_consumer_first), cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_download),       cmocka_unit_test(test_default_stream),
        cmocka_unit_test(test_records),        cmocka_unit_test(test_polling),
        cmocka_unit_test(test_times),          cmocka_unit_test(test_counted_times),
        cmocka_unit_test(test_pump),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
