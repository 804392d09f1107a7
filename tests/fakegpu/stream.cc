// Streams and events. What is put into a stream waits there (engine.cc runs it) or, while the
// stream is being captured, becomes a node of a graph (graph.cc). The default streams serve the
// synchronous calls only: the backend has no business there, so its work in them is a violation.
#include <cstdio>
#include <cstring>

#include "tests/fakegpu/engine.h"

namespace fakegpu
{

namespace
{

bool is_default(cudaStream_t s)
{
    return s == nullptr || s == cudaStreamLegacy || s == cudaStreamPerThread;
}

cudaError_t check_event(cudaEvent_t ev)
{
    return engine().live_events.count(ev) != 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

CUstream_st *make_stream(unsigned flags, int priority)
{
    Engine &e = engine();
    for (size_t i = e.streams.size();
         i-- > 0;) // those that were destroyed before their work was done
        if (e.streams[i]->destroyed && e.streams[i]->items.empty())
            e.streams.erase(e.streams.begin() + (long)i);
    auto *s = new CUstream_st;
    s->device = current_device();
    s->flags = flags;
    s->priority = priority;
    s->id = ++e.streams_ever;
    e.streams.push_back(s);
    return s;
}

cudaError_t create_stream(cudaStream_t *out, unsigned flags, int priority)
{
    if (out == nullptr || (flags & ~(unsigned)cudaStreamNonBlocking) != 0)
        return cudaErrorInvalidValue;
    *out = make_stream(flags, priority);
    engine().live_streams.insert(*out);
    return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t *out, unsigned flags)
{
    if (out == nullptr ||
        (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        return cudaErrorInvalidValue;
    auto *ev = new CUevent_st;
    ev->device = current_device();
    ev->flags = flags;
    engine().live_events.insert(ev);
    *out = ev;
    return cudaSuccess;
}

// An event that was recorded in a capture says nothing about the present.
cudaError_t check_not_captured(const CUevent_st *ev)
{
    if (ev->mark == nullptr || ev->mark->capture == nullptr) return cudaSuccess;
    break_capture(*ev->mark->capture);
    return cudaErrorCapturedEvent;
}

cudaError_t wait_in_capture(CUstream_st *s, CUevent_st *ev)
{
    const MarkPtr &m = ev->mark;
    if (m == nullptr || m->capture == nullptr) { // recorded outside
        break_capture(*s->capture);
        return cudaErrorStreamCaptureIsolation;
    }
    if (m->capture != s->capture) {
        break_capture(*s->capture);
        break_capture(*m->capture);
        return cudaErrorStreamCaptureMerge;
    }
    for (const int node : m->nodes) {
        bool known = false;
        for (const int n : s->nodes) known = known || n == node;
        if (!known) s->nodes.push_back(node);
    }
    return cudaSuccess;
}

cudaError_t wait_event(CUstream_st *s, CUevent_st *ev)
{
    cudaError_t st = check_stream(s);
    if (st == cudaSuccess) st = check_event(ev);
    if (st != cudaSuccess) return st;
    if (s->capture && s->capture->broken) return cudaErrorStreamCaptureInvalidated;
    if (s->capture) return wait_in_capture(s, ev);
    const MarkPtr &m = ev->mark;
    if (m == nullptr) return cudaSuccess; // never recorded: nothing to wait for
    if (m->capture == nullptr) {
        if (!m->done) s->items.push_back(Item{Item::wait, {}, false, m, {}});
        return cudaSuccess;
    }
    if (m->capture->ended) return cudaErrorCapturedEvent;
    if (m->capture->broken) return cudaErrorStreamCaptureInvalidated;
    s->capture = m->capture; // the stream is drawn into the capture
    s->nodes = m->nodes;
    m->capture->streams.insert(s);
    return cudaSuccess;
}

cudaError_t synchronize(CUstream_st *s)
{
    if (is_default(s))
        s = legacy_stream();
    else if (engine().live_streams.count(s) == 0)
        return cudaErrorInvalidResourceHandle;
    if (s->capture) {
        break_capture(*s->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    cudaError_t st = forbid_in_capture();
    if (st == cudaSuccess) settle(s);
    return st;
}

} // namespace

CUstream_st *legacy_stream()
{
    CUstream_st *&s = engine().legacy[current_device()];
    if (s == nullptr) s = make_stream(cudaStreamDefault, 0);
    return s;
}

cudaError_t check_stream(cudaStream_t s)
{
    if (is_default(s))
        violation("stream", "work for the default stream, which waits for all others");
    if (engine().live_streams.count(s) == 0 || s->device != current_device())
        return cudaErrorInvalidResourceHandle;
    return cudaSuccess;
}

cudaError_t enqueue_into(CUstream_st *s, Task task)
{
    Engine &e = engine();
    if (s->capture) {
        Capture &c = *s->capture;
        if (c.broken) return cudaErrorStreamCaptureInvalidated;
        c.nodes.push_back(Node{std::move(task), s->nodes, s->priority});
        s->nodes.assign(1, (int)c.nodes.size() - 1);
        return cudaSuccess;
    }
    // The default stream and those that were not made with cudaStreamNonBlocking wait for each
    // other.
    const auto found = e.legacy.find(s->device);
    CUstream_st *legacy = found != e.legacy.end() ? found->second : nullptr;
    const auto wait = [s](CUstream_st *other) {
        if (!other->items.empty())
            s->items.push_back(Item{Item::wait, {}, false, mark_here(other), {}});
    };
    if (s == legacy) {
        for (CUstream_st *other : e.streams) {
            if (other == s || other->device != s->device ||
                (other->flags & cudaStreamNonBlocking) != 0)
                continue;
            if (other->capture) {
                break_capture(*other->capture);
                return cudaErrorStreamCaptureImplicit;
            }
            wait(other);
        }
    } else if (legacy != nullptr && (s->flags & cudaStreamNonBlocking) == 0) {
        wait(legacy);
    }
    s->items.push_back(Item{Item::task, std::move(task), false, {}, {}});
    after_enqueue();
    return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, Task task)
{
    Engine &e = engine();
    std::lock_guard<std::recursive_mutex> hold(e.lock);
    if (is_default(stream))
        violation(task.what, "put into the default stream, which waits for all others");
    cudaError_t st = check_stream(stream);
    if (st == cudaSuccess) st = e.sticky;
    if (st == cudaSuccess) st = enqueue_into(stream, std::move(task));
    close_device();
    return st;
}

std::string leaks()
{
    Engine &e = engine();
    std::string s;
    const auto say = [&s](size_t n, const char *what) {
        if (n > 0)
            s += "  " + std::to_string(n) + " " + what + (n > 1 ? "s" : "") + " not destroyed\n";
    };
    for (const auto &b : e.blocks) s += "  not freed: " + name_of(b.second.at) + "\n";
    say(e.live_streams.size(), "stream");
    say(e.live_events.size(), "event");
    say(e.live_graphs.size(), "graph");
    say(e.live_execs.size(), "instantiated graph");
    return s;
}

} // namespace fakegpu

using namespace fakegpu;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    FAKEGPU_ENTER("cudaStreamCreate");
    return entry.done(create_stream(out, cudaStreamDefault, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    FAKEGPU_ENTER("cudaStreamCreateWithFlags");
    return entry.done(create_stream(out, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    FAKEGPU_ENTER("cudaStreamCreateWithPriority");
    return entry.done(create_stream(out, flags, priority));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    FAKEGPU_ENTER("cudaDeviceGetStreamPriorityRange");
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
}

// Work that is left in it goes on.
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    Entry entry("cudaStreamDestroy");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    Engine &e = engine();
    if (is_default(s) || e.live_streams.erase(s) == 0)
        return entry.done(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        break_capture(*s->capture);
        s->capture->streams.erase(s);
        s->capture.reset();
    }
    s->destroyed = true;
    e.graves.push_back(s);
    if (s->items.empty())
        for (size_t i = 0; i < e.streams.size(); i++)
            if (e.streams[i] == s) e.streams.erase(e.streams.begin() + (long)i);
    return entry.refused() ? entry.refusal() : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    FAKEGPU_ENTER("cudaStreamSynchronize");
    return entry.done(synchronize(s));
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    FAKEGPU_ENTER("cudaStreamQuery");
    if (is_default(s))
        s = legacy_stream();
    else if (engine().live_streams.count(s) == 0)
        return entry.done(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        break_capture(*s->capture);
        return entry.done(cudaErrorStreamCaptureUnsupported);
    }
    const cudaError_t st = forbid_in_capture();
    if (st != cudaSuccess) return entry.done(st);
    if (!s->items.empty()) nudge(s, nullptr, s->asked);
    if (!s->items.empty()) return entry.done(cudaErrorNotReady);
    s->asked = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *flags)
{
    FAKEGPU_ENTER("cudaStreamGetFlags");
    const cudaError_t st = check_stream(s);
    if (st == cudaSuccess) *flags = s->flags;
    return entry.done(st);
}

cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority)
{
    FAKEGPU_ENTER("cudaStreamGetPriority");
    const cudaError_t st = check_stream(s);
    if (st == cudaSuccess) *priority = s->priority;
    return entry.done(st);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t ev, unsigned flags)
{
    FAKEGPU_ENTER("cudaStreamWaitEvent");
    if (flags != cudaEventWaitDefault) return entry.done(cudaErrorInvalidValue);
    return entry.done(wait_event(s, ev));
}

cudaError_t cudaDeviceSynchronize(void)
{
    FAKEGPU_ENTER("cudaDeviceSynchronize");
    Engine &e = engine();
    for (Capture *c : e.captures) {
        if (c->origin->device != current_device()) continue;
        break_capture(*c);
        return entry.done(cudaErrorStreamCaptureUnsupported);
    }
    const std::vector<CUstream_st *> streams = e.streams; // it changes while they run
    for (size_t i = 0; i < streams.size(); i++) {
        CUstream_st *s = streams[e.order == Order::lazy ? streams.size() - 1 - i : i];
        if (s->device == current_device()) settle(s);
    }
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    FAKEGPU_ENTER("cudaEventCreate");
    return entry.done(create_event(out, cudaEventDefault));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    FAKEGPU_ENTER("cudaEventCreateWithFlags");
    return entry.done(create_event(out, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t ev)
{
    Entry entry("cudaEventDestroy");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    if (engine().live_events.erase(ev) == 0) return entry.done(cudaErrorInvalidResourceHandle);
    engine().graves.push_back(ev);
    ev->mark.reset();
    return entry.refused() ? entry.refusal() : cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t s)
{
    FAKEGPU_ENTER("cudaEventRecord");
    cudaError_t st = check_stream(s);
    if (st == cudaSuccess) st = check_event(ev);
    if (st == cudaSuccess && ev->device != s->device) st = cudaErrorInvalidResourceHandle;
    if (st == cudaSuccess && s->capture && s->capture->broken)
        st = cudaErrorStreamCaptureInvalidated;
    if (st != cudaSuccess) return entry.done(st);
    if (s->capture) {
        ev->mark = std::make_shared<Mark>();
        ev->mark->capture = s->capture;
        ev->mark->nodes = s->nodes;
    } else {
        ev->mark = mark_here(s);
        after_enqueue();
    }
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t ev)
{
    FAKEGPU_ENTER("cudaEventQuery");
    cudaError_t st = check_event(ev);
    if (st == cudaSuccess) st = check_not_captured(ev);
    if (st == cudaSuccess) st = forbid_in_capture();
    if (st != cudaSuccess) return entry.done(st);
    const MarkPtr m = ev->mark;
    if (m == nullptr || m->done) return cudaSuccess;
    nudge(m->stream, m.get(), m->asked);
    return entry.done(m->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t ev)
{
    FAKEGPU_ENTER("cudaEventSynchronize");
    cudaError_t st = check_event(ev);
    if (st == cudaSuccess) st = check_not_captured(ev);
    if (st == cudaSuccess) st = forbid_in_capture();
    if (st != cudaSuccess) return entry.done(st);
    const MarkPtr m = ev->mark;
    if (m != nullptr) wait_for(m);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    FAKEGPU_ENTER("cudaEventElapsedTime");
    for (cudaEvent_t ev : {start, end}) {
        cudaError_t st = check_event(ev);
        if (st == cudaSuccess && (ev->mark == nullptr || (ev->flags & cudaEventDisableTiming) != 0))
            st = cudaErrorInvalidResourceHandle;
        if (st == cudaSuccess) st = check_not_captured(ev);
        if (st != cudaSuccess) return entry.done(st);
    }
    if (!start->mark->done || !end->mark->done) return entry.done(cudaErrorNotReady);
    *ms = (float)((double)(end->mark->when - start->mark->when) * 1e-6);
    return cudaSuccess;
}

// The function runs on whatever thread moves the stream on. It is the host's: device memory is
// closed to it, and it must make no calls.
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *data)
{
    FAKEGPU_ENTER("cudaLaunchHostFunc");
    if (fn == nullptr) return entry.done(cudaErrorInvalidValue);
    return entry.done(enqueue(s, Task{"cudaLaunchHostFunc",
                                      {},
                                      [fn, data] {
                                          close_device_within();
                                          fn(data);
                                          open_device();
                                          return true;
                                      },
                                      {}}));
}

} // extern "C"
