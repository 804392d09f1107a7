// NCCL's operations, and the groups that they are put into streams as. Each one is checked as the
// real library does when it is called; the outermost ncclGroupEnd makes one kernel of what a
// communicator has in the group, which a blocking communicator puts into its stream at once and a
// non-blocking one later (nccl.cc). Violations: a second stream of one communicator, operands that
// overlap otherwise than in place, a stream that is no more.
#include "tests/fakegpu/nccl.h"

using fakegpu::engine;
using fakegpu::violation;
using namespace fakenccl;

namespace
{

struct Group {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<std::shared_ptr<Launch>> launches;
};
thread_local Group group;

// ---- Launching ----

// Launch order: what NCCL adds to streams and graphs, so that a group starts after the one that was
// issued before it, whichever communicator that was on.
void order_behind(const State &s, const std::shared_ptr<Launch> &l)
{
    static std::map<unsigned long long, std::weak_ptr<Launch>> last; // by capture; 0: none
    if (!ordered()) return;
    std::weak_ptr<Launch> &before = last[l->captured ? l->stream->capture->id : 0];
    l->before = before;
    before = l;
    const uint64_t order = ++issued()[s.nranks];
    for (Op &o : l->ops) o.words.order = order;
}

int32_t registered(const State &s, const void *p, size_t n)
{
    for (const auto &r : s.registered)
        if (p >= r.first &&
            static_cast<const char *>(p) + n <= static_cast<const char *>(r.first) + r.second)
            return 1;
    return 0;
}

ncclResult_t put(State &s, const std::shared_ptr<Launch> &l)
{
    if (l->captured) s.recordings.push_back(l);
    order_behind(s, l);
    s.launched += l->captured ? 0 : 1;
    fakegpu::Task task;
    task.what = l->ops[0].call;
    task.begin = [l] { begin(*l); };
    task.step = [l] { return run(*l); };
    if (fakegpu::enqueue(l->stream, task) == cudaSuccess) return ncclSuccess;
    last_error = std::string(l->ops[0].call) + " could not be launched";
    return s.failed = ncclUnhandledCudaError;
}

ncclResult_t end_group(const Call &call)
{
    if (group.depth == 0) return call.fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--group.depth > 0) return group.failed;
    std::vector<std::shared_ptr<Launch>> launches;
    launches.swap(group.launches);
    ncclResult_t rc = group.failed;
    group.failed = ncclSuccess;
    for (const auto &l : launches) {
        State &s = *l->state;
        if (rc != ncclSuccess && rc != ncclInProgress)
            continue; // nothing of a group with an error is run
        for (size_t i = 0; i < l->ops.size(); i++) {
            Words &w = l->ops[i].words;
            w.number = s.number++;
            w.place = (int32_t)i;
            w.places = (int32_t)l->ops.size();
        }
        if (s.blocking) {
            rc = put(s, l);
        } else {
            s.pending.push_back(l);
            s.polls = 0;
            rc = ncclInProgress;
        }
    }
    return rc;
}

// Where this operation goes in the group.
Launch &launch_for(const char *name, ncclComm_t comm, cudaStream_t stream)
{
    State &s = *comm->state;
    for (const auto &l : group.launches)
        if (l->state == comm->state) {
            if (l->stream != stream) violation(name, "one group, one communicator, two streams");
            return *l;
        }
    if (s.stream == nullptr) s.stream = stream;
    if (s.stream != stream)
        violation(name,
                  "the communicator's operations go into two streams: nothing keeps their order");
    auto l = std::make_shared<Launch>();
    l->state = comm->state;
    l->stream = stream;
    l->captured = stream->capture != nullptr;
    group.launches.push_back(l);
    return *l;
}

ncclResult_t check_operation(const Call &call, const Op &o, State &s, cudaStream_t stream)
{
    const Words &w = o.words;
    const ncclResult_t rc = need_ready(call, s);
    if (rc != ncclSuccess) return rc;
    if (size_of((ncclDataType_t)w.type) == 0) return call.fail(ncclInvalidArgument, "invalid type");
    if (w.op < ncclSum || w.op > ncclAvg)
        return call.fail(ncclInvalidArgument, "invalid reduction operation");
    if (w.root < 0 || w.root >= s.nranks) return call.fail(ncclInvalidArgument, "invalid root");
    if (engine().live_streams.count(stream) == 0)
        violation(o.call, "the stream was destroyed, or never was");
    if (w.count == 0) return ncclSuccess;
    if (o.send == nullptr || o.recv == nullptr)
        return call.fail(ncclInvalidArgument, "a buffer is NULL");
    fakegpu::need_device(o.call, "sendbuff", o.send, o.send_bytes);
    fakegpu::need_device(o.call, "recvbuff", o.recv, o.recv_bytes);
    fakegpu::need_aligned(o.call, "sendbuff", o.send, size_of((ncclDataType_t)w.type));
    fakegpu::need_aligned(o.call, "recvbuff", o.recv, size_of((ncclDataType_t)w.type));
    const char *s0 = o.send, *s1 = s0 + o.send_bytes, *r0 = o.recv, *r1 = r0 + o.recv_bytes;
    const size_t size = size_of((ncclDataType_t)w.type);
    bool in_place = s0 == r0;
    if (w.kind == Kind::all_gather) in_place = s0 == r0 + (size_t)s.rank * w.count * size;
    if (w.kind == Kind::reduce_scatter) in_place = r0 == s0 + (size_t)s.rank * w.count * size;
    if (!in_place && s0 < r1 && r0 < s1)
        violation(o.call, "sendbuff and recvbuff overlap, but not as in place");
    return ncclSuccess;
}

ncclResult_t operate(const char *name, Kind kind, const void *send, void *recv, size_t count,
                     ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                     cudaStream_t stream)
{
    Call call(name);
    State &s = call.state(comm);
    Op o{};
    o.call = name;
    o.words.kind = kind;
    o.words.type = type;
    o.words.op = op;
    o.words.root = root;
    o.words.count = count;
    o.send = static_cast<const char *>(send);
    o.recv = static_cast<char *>(recv);
    const size_t all = count * (size_t)s.nranks * size_of(type);
    o.send_bytes = kind == Kind::reduce_scatter ? all : count * size_of(type);
    o.recv_bytes = kind == Kind::all_gather ? all : count * size_of(type);
    ncclResult_t rc = call.injected() ? call.injection() : check_operation(call, o, s, stream);
    if (call.injected() && !s.blocking) s.failed = rc;
    if (rc != ncclSuccess) {
        if (group.depth > 0) group.failed = rc;
        return rc;
    }
    if (count == 0) return ncclSuccess;
    group.depth++;
    Launch &l = launch_for(name, comm, stream);
    o.words.captured = l.captured;
    o.words.registered = registered(s, send, o.send_bytes) | registered(s, recv, o.recv_bytes) << 1;
    l.ops.push_back(o);
    rc = end_group(call);
    return group.depth > 0 ? ncclSuccess : rc;
}

} // namespace

std::map<int, uint64_t> &fakenccl::issued()
{
    static auto *groups = new std::map<int, uint64_t>;
    return *groups;
}

bool fakenccl::in_group()
{
    return group.depth > 0;
}

ncclResult_t fakenccl::put_pending(State &s)
{
    ncclResult_t rc = ncclSuccess;
    for (const auto &l : s.pending)
        if (rc == ncclSuccess) rc = put(s, l);
    s.pending.clear();
    return rc;
}

// ---- The interface ----

extern "C" {

ncclResult_t ncclGroupStart()
{
    NCCL_ENTER("ncclGroupStart");
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    Call call("ncclGroupEnd");
    if (call.injected()) {
        if (group.depth == 1) group.launches.clear();
        if (group.depth > 0) group.depth--;
        return call.injection();
    }
    return end_group(call);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return operate("ncclAllReduce", Kind::all_reduce, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return operate("ncclAllGather", Kind::all_gather, send, recv, count, type, ncclSum, 0, comm,
                   stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return operate("ncclReduceScatter", Kind::reduce_scatter, send, recv, count, type, op, 0, comm,
                   stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return operate("ncclBroadcast", Kind::broadcast, send, recv, count, type, ncclSum, root, comm,
                   stream);
}

} // extern "C"
