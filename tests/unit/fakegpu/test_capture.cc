// Capture and graphs: replay, forks and joins, orders, and which calls break a capture with which
// error.
#include "child.h"

static __global__ void append(int *list, int v)
{
    list[++list[0]] = v;
}

struct Things {
    cudaStream_t a, b;
    cudaEvent_t e, f;
    int *x, *y;
    Things()
        : a(new_stream()), b(new_stream()), e(new_event()), f(new_event()), x(new_device<int>(64)),
          y(new_device<int>(1))
    {
    }
    ~Things()
    {
        cudaFree(x), cudaFree(y);
        cudaEventDestroy(e), cudaEventDestroy(f);
        cudaStreamDestroy(a), cudaStreamDestroy(b);
    }
};

static cudaError_t begin(cudaStream_t s,
                         cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
{
    return cudaStreamBeginCapture(s, mode);
}

// Nothing runs while it is recorded; each launch runs all of it, with the pinned memory of that
// moment.
static void test_replay(void **)
{
    for (const char *order : {"lazy", "eager", "1", "2"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] {
            Things t;
            int *h = new_pinned<int>(1);
            OK(cudaMemsetAsync(t.y, 0, 4, t.a));
            OK(cudaStreamSynchronize(t.a));
            OK(begin(t.a));
            OK(cudaMemcpyAsync(t.x, h, 4, cudaMemcpyHostToDevice, t.a));
            OK(cudaEventRecord(t.e, t.a));
            OK(cudaStreamWaitEvent(t.b, t.e, 0));
            OK(LAUNCH(add_kernel, 1, 1, 0, t.b, t.y, t.x, 1));
            OK(cudaEventRecord(t.f, t.b));
            OK(cudaStreamWaitEvent(t.a, t.f, 0));
            OK(LAUNCH(add_kernel, 1, 1, 0, t.a, t.y, t.y, 10));
            cudaStreamCaptureStatus status;
            OK(cudaStreamIsCapturing(t.b, &status));
            NEED(status == cudaStreamCaptureStatusActive);
            cudaGraph_t g;
            cudaGraphExec_t exec;
            OK(cudaStreamEndCapture(t.a, &g));
            OK(cudaStreamIsCapturing(t.b, &status));
            NEED(status == cudaStreamCaptureStatusNone);
            size_t n = 0;
            OK(cudaGraphGetNodes(g, nullptr, &n));
            NEED(n == 3);
            OK(cudaGraphInstantiate(&exec, g, 0));
            OK(cudaGraphDestroy(g));
            NEED(fetch(t.y, t.a) == 0);
            for (int i = 0; i < 5; i++) {
                *h = i;
                OK(cudaGraphLaunch(exec, t.a));
                NEED(fetch(t.y, t.a) == i + 11);
            }
            OK(cudaGraphLaunch(exec, t.a));
            OK(cudaGraphExecDestroy(exec)); // that launch still runs
            OK(cudaMemsetAsync(t.x, 0, 4, t.a));
            NEED(fetch(t.y, t.a) == 15);
            GIVES(cudaErrorInvalidValue, cudaGraphLaunch(exec, t.a));
            cudaFreeHost(h);
            return 0;
        });
}

// Two branches without an order between them: the one recorded later comes first; with it, not.
static int branches(bool ordered)
{
    Things t;
    OK(cudaMemsetAsync(t.x, 0, 256, t.a));
    OK(cudaStreamSynchronize(t.a));
    OK(begin(t.a));
    OK(cudaEventRecord(t.e, t.a));
    OK(cudaStreamWaitEvent(t.b, t.e, 0));
    OK(LAUNCH(append, 1, 1, 0, t.a, t.x, 1));
    if (ordered) {
        OK(cudaEventRecord(t.e, t.a));
        OK(cudaStreamWaitEvent(t.b, t.e, 0));
    }
    OK(LAUNCH(append, 1, 1, 0, t.b, t.x, 2));
    OK(cudaEventRecord(t.f, t.b));
    OK(cudaStreamWaitEvent(t.a, t.f, 0));
    OK(LAUNCH(append, 1, 1, 0, t.a, t.x, 3));
    cudaGraph_t g;
    cudaGraphExec_t exec;
    OK(cudaStreamEndCapture(t.a, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    OK(cudaGraphLaunch(exec, t.a));
    int got = 0;
    for (int i = 1; i <= 3; i++) got = got * 10 + fetch(t.x + i, t.a);
    cudaGraphDestroy(g), cudaGraphExecDestroy(exec);
    return got == 123 ? 0 : got == 213 ? 2 : 1;
}

static void test_branches(void **)
{
    assert_int_equal(in_child({}, [] { return branches(false); }).status, 2);
    for (const char *order : {"lazy", "eager", "1", "2", "3"})
        ends_well({{"FAKEGPU_ORDER", order}}, [] { return branches(true); });
}

// `call` gives `expected` within a capture of t.a; then the capture is broken or not.
static int within(cudaError_t expected, bool breaks,
                  const std::function<cudaError_t(Things &)> &call,
                  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
{
    Things t;
    OK(LAUNCH(set_kernel, 1, 1, 0, t.b, t.x, 1));
    OK(cudaEventRecord(t.f, t.b)); // recorded outside
    OK(begin(t.a, mode));
    OK(LAUNCH(set_kernel, 1, 1, 0, t.a, t.x, 1));
    OK(cudaEventRecord(t.e, t.a));
    GIVES(expected, call(t));
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(t.a, &status));
    NEED(status == (breaks ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive));
    if (breaks) GIVES(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(t.y, 0, 4, t.a));
    cudaGetLastError();
    cudaGraph_t g = nullptr;
    GIVES(breaks ? cudaErrorStreamCaptureInvalidated : cudaSuccess, cudaStreamEndCapture(t.a, &g));
    NEED((g == nullptr) == breaks);
    if (g != nullptr) OK(cudaGraphDestroy(g));
    OK(cudaMemsetAsync(t.y, 0, 4, t.a)); // usable again
    OK(cudaStreamSynchronize(t.a));
    return 0;
}

static void test_rules(void **)
{
    static void *p;
    const struct {
        cudaError_t gives;
        bool breaks;
        cudaError_t (*call)(Things &);
    } cases[] = {
        {cudaErrorStreamCaptureUnsupported, true,
         [](Things &t) { return cudaStreamSynchronize(t.a); }},
        {cudaErrorStreamCaptureUnsupported, true, [](Things &t) { return cudaStreamQuery(t.a); }},
        {cudaErrorStreamCaptureUnsupported, true, [](Things &) { return cudaDeviceSynchronize(); }},
        {cudaErrorStreamCaptureUnsupported, true, [](Things &) { return cudaMalloc(&p, 4); }},
        {cudaErrorStreamCaptureUnsupported, true, [](Things &) { return cudaHostAlloc(&p, 4, 0); }},
        {cudaErrorStreamCaptureUnsupported, true, [](Things &t) { return cudaMemset(t.y, 0, 4); }},
        {cudaErrorStreamCaptureUnsupported, true, [](Things &t) { return cudaEventQuery(t.f); }},
        {cudaErrorCapturedEvent, true, [](Things &t) { return cudaEventQuery(t.e); }},
        {cudaErrorCapturedEvent, true, [](Things &t) { return cudaEventSynchronize(t.e); }},
        {cudaErrorStreamCaptureIsolation, true,
         [](Things &t) { return cudaStreamWaitEvent(t.a, t.f, 0); }},
        {cudaErrorIllegalState, false, [](Things &t) { return begin(t.a); }},
        {cudaErrorIllegalState, false,
         [](Things &t) {
             cudaGraph_t g;
             return cudaStreamEndCapture(t.b, &g);
         }},
        {cudaSuccess, false, [](Things &t) { return LAUNCH(set_kernel, 1, 1, 0, t.b, t.x, 2); }},
        {cudaSuccess, false, [](Things &t) { return cudaEventRecord(t.f, t.a); }},
    };
    for (const auto &c : cases) ends_well({}, [&c] { return within(c.gives, c.breaks, c.call); });
    // Where the capture is relaxed, what does not concern it is allowed.
    ends_well({}, [] {
        return within(
            cudaSuccess, false,
            [](Things &) {
                const cudaError_t st = cudaMalloc(&p, 4);
                return st == cudaSuccess ? cudaFree(p) : st;
            },
            cudaStreamCaptureModeRelaxed);
    });
    is_violation({}, {"pageable"}, [] {
        return within(cudaSuccess, false, [](Things &t) {
            int v = 0;
            return cudaMemcpyAsync(t.x, &v, 4, cudaMemcpyHostToDevice, t.a);
        });
    });
}

static void test_joins(void **)
{
    ends_well({}, [] { // a branch that is not joined
        Things t;
        OK(begin(t.a));
        OK(cudaEventRecord(t.e, t.a));
        OK(cudaStreamWaitEvent(t.b, t.e, 0));
        OK(LAUNCH(set_kernel, 1, 1, 0, t.b, t.x, 1));
        cudaGraph_t g = nullptr;
        GIVES(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(t.b, &g));
        GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(t.a, &g));
        GIVES(cudaErrorStreamCaptureInvalidated, cudaGetLastError()); // else the launch gives it
        OK(begin(t.a));
        OK(cudaEventRecord(t.e, t.a));
        OK(cudaStreamWaitEvent(t.b, t.e, 0));
        OK(LAUNCH(set_kernel, 1, 1, 0, t.b, t.x, 1));
        GIVES(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(t.a, &g));
        NEED(g == nullptr);
        OK(cudaStreamSynchronize(t.b)); // out of the capture, too
        return 0;
    });
    ends_well({}, [] { // two captures
        Things t;
        OK(begin(t.a));
        OK(begin(t.b));
        OK(cudaEventRecord(t.e, t.a));
        GIVES(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(t.b, t.e, 0));
        cudaGraph_t g;
        GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(t.a, &g));
        GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(t.b, &g));
        return 0;
    });
    ends_well({}, [] { // the event of a capture that is over
        Things t;
        OK(begin(t.a));
        OK(cudaEventRecord(t.e, t.a));
        cudaGraph_t g;
        OK(cudaStreamEndCapture(t.a, &g));
        GIVES(cudaErrorCapturedEvent, cudaStreamWaitEvent(t.b, t.e, 0));
        OK(cudaGraphDestroy(g));
        return 0;
    });
    is_violation({}, {"1 graph not", "1 instantiated graph not"}, [] {
        Things t;
        cudaGraph_t g;
        cudaGraphExec_t exec;
        OK(begin(t.a));
        OK(cudaStreamEndCapture(t.a, &g));
        OK(cudaGraphInstantiate(&exec, g, 0));
        OK(cudaGraphLaunch(exec, t.a)); // empty ones are fine
        OK(cudaStreamSynchronize(t.a));
        return 0;
    });
}

// A high-priority branch of a capture keeps its priority only where that is asked for.
static int prioritized(unsigned long long flags)
{
    Things t;
    cudaStream_t high;
    cudaGraph_t g;
    cudaGraphExec_t exec = nullptr;
    OK(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, -5));
    OK(begin(t.a));
    OK(cudaMemsetAsync(t.x, 1, 4, t.a));
    OK(cudaEventRecord(t.e, t.a));
    OK(cudaStreamWaitEvent(high, t.e, 0));
    OK(cudaMemsetAsync(t.x, 2, 4, high));
    OK(cudaEventRecord(t.e, high));
    OK(cudaStreamWaitEvent(t.a, t.e, 0));
    OK(cudaStreamEndCapture(t.a, &g));
    if (flags > 15) {
        GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, g, flags));
    } else {
        OK(cudaGraphInstantiate(&exec, g, flags));
        OK(cudaGraphExecDestroy(exec));
    }
    OK(cudaGraphDestroy(g));
    OK(cudaStreamDestroy(high));
    return 0;
}

static void test_priorities(void **)
{
    is_violation({}, {"priorities 0 and -5"}, [] { return prioritized(0); });
    is_violation({}, {"not imitated"},
                 [] { return prioritized(cudaGraphInstantiateFlagDeviceLaunch); });
    ends_well({}, [] { return prioritized(cudaGraphInstantiateFlagUseNodePriority); });
    ends_well({}, [] { return prioritized(16); });
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay),     cmocka_unit_test(test_branches),
        cmocka_unit_test(test_rules),      cmocka_unit_test(test_joins),
        cmocka_unit_test(test_priorities),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
