// Stream capture and graphs. A captured task becomes a node behind those that its stream stood
// behind; events carry that over to other streams. A launch runs the nodes in any order that this
// leaves open. Which calls break a capture, and with which error: CUDA C++ Programming Guide,
// "Creating a graph using stream capture", and the runtime's reference.
#include "tests/fakegpu/engine.h"

namespace fakegpu
{

void break_capture(Capture &c)
{
    if (!c.ended) c.broken = true;
}

cudaError_t forbid_in_capture()
{
    for (Capture *c : engine().captures) {
        const bool mine = c->thread == std::this_thread::get_id();
        if (c->mode == cudaStreamCaptureModeRelaxed ||
            (c->mode == cudaStreamCaptureModeThreadLocal && !mine))
            continue;
        break_capture(*c);
        return cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

namespace
{

// Every node lies before the place where the origin stands.
bool joined(const Capture &c)
{
    std::vector<char> seen(c.nodes.size(), 0);
    std::vector<int> todo = c.origin->nodes;
    size_t n = 0;
    while (!todo.empty()) {
        const auto i = (size_t)todo.back();
        todo.pop_back();
        if (seen[i] != 0) continue;
        seen[i] = 1;
        n++;
        todo.insert(todo.end(), c.nodes[i].after.begin(), c.nodes[i].after.end());
    }
    return n == c.nodes.size();
}

cudaError_t begin_capture(CUstream_st *s, cudaStreamCaptureMode mode)
{
    Engine &e = engine();
    if (s == nullptr || s == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    cudaError_t st = check_stream(s);
    if (st != cudaSuccess) return st;
    if (s->capture) return cudaErrorIllegalState;
    auto c = std::make_shared<Capture>();
    c->origin = s;
    c->mode = mode;
    c->thread = std::this_thread::get_id();
    c->id = ++e.captures_ever;
    c->streams.insert(s);
    s->capture = c;
    s->nodes.clear();
    e.captures.insert(c.get());
    return cudaSuccess;
}

cudaError_t end_capture(CUstream_st *s, cudaGraph_t *out)
{
    Engine &e = engine();
    cudaError_t st = check_stream(s);
    if (st != cudaSuccess) return st;
    if (!s->capture) return cudaErrorIllegalState;
    const std::shared_ptr<Capture> c = s->capture;
    if (c->origin != s) {
        break_capture(*c);
        return cudaErrorStreamCaptureUnmatched;
    }
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    st = c->broken    ? cudaErrorStreamCaptureInvalidated
         : joined(*c) ? cudaSuccess
                      : cudaErrorStreamCaptureUnjoined;
    c->ended = true;
    e.captures.erase(c.get());
    for (CUstream_st *other : c->streams) {
        other->capture.reset();
        other->nodes.clear();
    }
    if (st != cudaSuccess) return st;
    auto *g = new CUgraph_st;
    g->nodes = std::move(c->nodes);
    g->handles.resize(g->nodes.size());
    for (size_t i = 0; i < g->handles.size(); i++) g->handles[i].index = (int)i;
    e.live_graphs.insert(g);
    *out = g;
    return cudaSuccess;
}

// Without a flag all nodes run at the priority of the stream that the graph is launched into.
void keeps_priorities(cudaGraph_t g, unsigned long long flags)
{
    if ((flags & cudaGraphInstantiateFlagUseNodePriority) != 0) return;
    for (const Node &n : g->nodes)
        if (n.priority != g->nodes[0].priority)
            violation("cudaGraphInstantiate",
                      "nodes were captured at priorities %d and %d, which are lost without "
                      "cudaGraphInstantiateFlagUseNodePriority",
                      g->nodes[0].priority, n.priority);
}

cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    Engine &e = engine();
    if (out == nullptr || e.live_graphs.count(g) == 0) return cudaErrorInvalidValue;
    if (flags > 15) return cudaErrorInvalidValue;
    if ((flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority) != 0)
        violation("cudaGraphInstantiate", "flags %#llx are not imitated", flags);
    keeps_priorities(g, flags);
    auto plan = std::make_shared<GraphPlan>();
    plan->nodes = g->nodes;
    plan->then.resize(g->nodes.size());
    for (size_t i = 0; i < g->nodes.size(); i++)
        for (const int before : g->nodes[i].after) plan->then[(size_t)before].push_back((int)i);
    auto *exec = new CUgraphExec_st;
    exec->plan = std::move(plan);
    e.live_execs.insert(exec);
    *out = exec;
    return cudaSuccess;
}

cudaError_t launch_graph(cudaGraphExec_t exec, CUstream_st *s)
{
    if (engine().live_execs.count(exec) == 0) return cudaErrorInvalidValue;
    cudaError_t st = check_stream(s);
    if (st != cudaSuccess) return st;
    if (s->capture) violation("cudaGraphLaunch", "a graph within a graph is not imitated");
    auto run = std::make_shared<GraphRun>();
    run->plan = exec->plan;
    const std::vector<Node> &nodes = exec->plan->nodes;
    run->left = nodes.size();
    run->begun.assign(nodes.size(), 0);
    for (size_t i = 0; i < nodes.size(); i++) {
        run->waits_for.push_back((int)nodes[i].after.size());
        if (nodes[i].after.empty()) run->ready.push_back((int)i);
    }
    // Behind what is in the stream, and behind the launch of the same graph before.
    if (exec->last != nullptr && !exec->last->done)
        s->items.push_back(Item{Item::wait, {}, false, exec->last, {}});
    s->items.push_back(Item{Item::graph, {}, false, {}, run});
    exec->last = mark_here(s);
    after_enqueue();
    return cudaSuccess;
}

} // namespace
} // namespace fakegpu

using namespace fakegpu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    FAKEGPU_ENTER("cudaStreamBeginCapture");
    return entry.done(begin_capture(s, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    Entry entry("cudaStreamEndCapture");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    if (out == nullptr) return entry.done(cudaErrorInvalidValue);
    *out = nullptr;
    if (entry.refused() && engine().live_streams.count(s) != 0 && s->capture)
        break_capture(*s->capture);
    const cudaError_t st = end_capture(s, out); // whatever comes back, the capture is over
    return entry.refused() ? entry.refusal() : entry.done(st);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    FAKEGPU_ENTER("cudaStreamIsCapturing");
    const cudaError_t st = check_stream(s);
    if (st != cudaSuccess) return entry.done(st);
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

static cudaError_t capture_info(cudaStream_t s, cudaStreamCaptureStatus *status,
                                unsigned long long *id)
{
    FAKEGPU_ENTER("cudaStreamGetCaptureInfo");
    const cudaError_t st = check_stream(s);
    if (st != cudaSuccess) return entry.done(st);
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    if (id != nullptr && s->capture) *id = s->capture->id;
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n)
{
    if (graph != nullptr || nodes != nullptr || edges != nullptr || n != nullptr)
        violation("cudaStreamGetCaptureInfo",
                  "the graph of a capture that goes on is not imitated");
    return capture_info(s, status, id);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, size_t *n)
{
    if (graph != nullptr || nodes != nullptr || n != nullptr)
        violation("cudaStreamGetCaptureInfo",
                  "the graph of a capture that goes on is not imitated");
    return capture_info(s, status, id);
}
#endif

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    FAKEGPU_ENTER("cudaGraphInstantiate");
    return entry.done(instantiate(out, g, flags));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s)
{
    FAKEGPU_ENTER("cudaGraphUpload");
    if (engine().live_execs.count(exec) == 0) return entry.done(cudaErrorInvalidValue);
    return entry.done(check_stream(s));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    FAKEGPU_ENTER("cudaGraphLaunch");
    return entry.done(launch_graph(exec, s));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    FAKEGPU_ENTER("cudaGraphGetNodes");
    if (engine().live_graphs.count(g) == 0 || n == nullptr)
        return entry.done(cudaErrorInvalidValue);
    if (nodes != nullptr)
        for (size_t i = 0; i < *n; i++) nodes[i] = i < g->handles.size() ? &g->handles[i] : nullptr;
    if (nodes == nullptr || *n > g->handles.size()) *n = g->handles.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    Entry entry("cudaGraphDestroy");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    if (engine().live_graphs.erase(g) == 0) return entry.done(cudaErrorInvalidValue);
    g->nodes.clear();
    g->nodes.shrink_to_fit();
    engine().graves.push_back(g);
    return entry.refused() ? entry.refusal() : cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    Entry entry("cudaGraphExecDestroy");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    if (engine().live_execs.erase(exec) == 0) return entry.done(cudaErrorInvalidValue);
    engine().graves.push_back(exec);
    exec->plan.reset(); // launches that are under way hold it
    return entry.refused() ? entry.refusal() : cudaSuccess;
}

} // extern "C"
