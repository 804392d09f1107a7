// NCCL's calls: communicators, groups, errors. Ranks meet in a file (in /dev/shm, else TMPDIR or
// /tmp) named in the unique id, which is removed as soon as all have mapped it.
//
// Non-blocking communicators are as unhelpful as they may be: a group is put into its stream by the
// second ncclCommGetAsyncError after it, so that a program that does not wait for that sees its
// work come too late. Refused as there: two ranks on one GPU, use while in progress. Violations:
// use after destroy or abort, a second stream, recordings that outlive the communicator, what is
// left at the end.
//
// FAKENCCL_ASYNC_ERROR=N@RANK: the N-th group that RANK runs fails asynchronously.
// Ranks on pretended nodes (TRIREME_FAKE_NODES) have GPUs of their own.
#include "tests/fakegpu/nccl.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using fakegpu::engine;
using fakegpu::violation;
using namespace fakenccl;

struct ncclComm {
    std::shared_ptr<State> state;
};

namespace
{

struct Group {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<std::shared_ptr<Launch>> launches;
};
thread_local Group group;
thread_local std::string last_error;

std::set<ncclComm_t> &live()
{
    static auto *set = new std::set<ncclComm_t>;
    return *set;
}

// Every call: the engine's lock, the count of calls, and device memory closed again at its end.
class Call
{
  public:
    explicit Call(const char *name) : name_(name)
    {
        if (fakegpu::depth > 0) violation(name, "called by what runs on the device");
        engine().lock.lock();
        injected_ = fakegpu::fails(name);
    }
    ~Call()
    {
        fakegpu::close_device();
        engine().lock.unlock();
    }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    bool injected() const
    {
        return injected_;
    }
    ncclResult_t injection() const
    {
        return fail(ncclSystemError, "a fault was injected");
    }
    ncclResult_t fail(ncclResult_t rc, const std::string &text) const
    {
        last_error = text;
        return rc;
    }
    State &state(ncclComm_t comm) const
    {
        if (live().count(comm) == 0)
            violation(name_, "the communicator was destroyed or aborted, or never was");
        return *comm->state;
    }

  private:
    const char *name_;
    bool injected_;
};
#define NCCL_ENTER(name)                                                                           \
    Call call(name);                                                                               \
    if (call.injected()) return call.injection()

int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? atoi(text) : otherwise;
}

// ---- Meeting ----

size_t span_of(int nranks)
{
    return sizeof(File) + 2 * (size_t)nranks * sizeof(Slot);
}

bool map_file(State &s)
{
    const int fd = open(s.path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    s.span = span_of(s.nranks);
    void *p = MAP_FAILED;
    if (ftruncate(fd, (off_t)s.span) == 0)
        p = mmap(nullptr, s.span, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return false;
    s.file = static_cast<File *>(p);
    return true;
}

void attach(State &s)
{
    Member &m = s.file->members[s.rank];
    const int fakes = setting("TRIREME_FAKE_NODES", 1);
    m.device = engine().visible[(size_t)fakegpu::current_device()];
    m.host = fakes > 1 ? s.rank * fakes / s.nranks : 0;
    if (m.here.exchange(1) != 0) violation("ncclCommInitRank", "rank %d is there already", s.rank);
    if (s.file->attached.fetch_add(1) + 1 == s.nranks) unlink(s.path.c_str());
}

// Once all are there.
ncclResult_t meet(State &s)
{
    if (s.file->attached.load() < s.nranks) return ncclInProgress;
    for (int r = 0; r < s.nranks; r++) {
        const Member &a = s.file->members[r], &b = s.file->members[s.rank];
        if (r == s.rank || a.device != b.device || a.host != b.host) continue;
        last_error = "Duplicate GPU detected : rank " + std::to_string(s.rank) + " and rank " +
                     std::to_string(r) + " both on CUDA device " + std::to_string(a.device);
        return s.failed = ncclInvalidUsage;
    }
    s.ready = true;
    return ncclSuccess;
}

// The lock is free while others are waited for.
template <typename Done> void spin(Done done)
{
    while (!done()) {
        fakegpu::close_device();
        engine().lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        engine().lock.lock();
        fakegpu::run_something();
    }
}

// ---- Launching ----

bool recorded(State &s)
{
    bool any = false;
    for (const auto &r : s.recordings) any = any || !r.expired();
    return any;
}

ncclResult_t put(State &s, const std::shared_ptr<Launch> &l)
{
    if (l->captured) s.recordings.push_back(l);
    s.launched += l->captured ? 0 : 1;
    fakegpu::Task task;
    task.what = l->ops[0].call;
    task.begin = [l] { begin(*l); };
    task.step = [l] { return run(*l); };
    if (fakegpu::enqueue(l->stream, task) == cudaSuccess) return ncclSuccess;
    last_error = std::string(l->ops[0].call) + " could not be launched";
    return s.failed = ncclUnhandledCudaError;
}

ncclResult_t put_pending(State &s)
{
    ncclResult_t rc = ncclSuccess;
    for (const auto &l : s.pending)
        if (rc == ncclSuccess) rc = put(s, l);
    s.pending.clear();
    return rc;
}

// What ncclCommGetAsyncError says, and moves on.
ncclResult_t progress(State &s)
{
    if (s.failed != ncclSuccess) return s.failed;
    if (!s.ready) {
        if (++s.polls < 3) return ncclInProgress;
        const ncclResult_t rc = meet(s);
        if (rc != ncclInProgress) s.polls = 0;
        return rc;
    }
    if (!s.pending.empty()) {
        if (++s.polls < 2) return ncclInProgress;
        s.polls = 0;
        return put_pending(s);
    }
    if (s.finalized && s.done < s.launched) {
        fakegpu::run_something();
        return ncclInProgress;
    }
    return ncclSuccess;
}

ncclResult_t need_ready(const Call &call, State &s)
{
    if (s.failed != ncclSuccess) return s.failed;
    if (s.finalized) violation("NCCL", "an operation after ncclCommFinalize");
    if (!s.ready || !s.pending.empty())
        return call.fail(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    return ncclSuccess;
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
    l.ops.push_back(o);
    rc = end_group(call);
    return group.depth > 0 ? ncclSuccess : rc;
}

// ---- Communicators ----

// The file where ranks meet, until all have: some may have failed before they came.
std::string &meeting()
{
    static auto *path = new std::string;
    return *path;
}

void at_exit(int status, void *)
{
    if (!meeting().empty()) unlink(meeting().c_str());
    if ((status == 0 || status == 75) && !live().empty())
        violation("exit", "%zu communicators were neither destroyed nor aborted", live().size());
}

void watch_exit()
{
    static const bool once = on_exit(at_exit, nullptr) == 0;
    (void)once;
}

ncclResult_t init_rank(const Call &call, ncclComm_t *out, int nranks, const ncclUniqueId &id,
                       int rank, bool blocking)
{
    if (out == nullptr || nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks)
        return call.fail(ncclInvalidArgument, "ncclCommInitRank: invalid rank or number of ranks");
    auto s = std::make_shared<State>();
    s->rank = rank;
    s->nranks = nranks;
    s->blocking = blocking;
    s->path.assign(id.internal, strnlen(id.internal, sizeof(id.internal)));
    const char *fail = getenv("FAKENCCL_ASYNC_ERROR"),
               *at = fail != nullptr ? strchr(fail, '@') : nullptr;
    if (at != nullptr && atoi(at + 1) == rank) s->fail_at = strtoull(fail, nullptr, 10);
    if (!map_file(*s)) return call.fail(ncclSystemError, "cannot map " + s->path);
    attach(*s);
    watch_exit();
    *out = new ncclComm{s};
    live().insert(*out);
    if (!blocking) return ncclInProgress;
    spin([&] { return meet(*s) != ncclInProgress; });
    return s->failed;
}

// What is in flight ends, or is told to.
void forget(ncclComm_t comm)
{
    live().erase(comm);
    delete comm;
}

} // namespace

fakenccl::State::~State()
{
    if (file != nullptr) munmap(file, span);
}

// ---- The interface ----

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    NCCL_ENTER("ncclGetVersion");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    NCCL_ENTER("ncclGetUniqueId");
    const char *tmp = getenv("TMPDIR");
    const std::string dirs[] = {"/dev/shm", tmp != nullptr && *tmp != '\0' ? tmp : "/tmp"};
    memset(id, 0, sizeof(*id));
    for (const std::string &dir : dirs) {
        std::string path = dir + "/fakenccl-XXXXXX";
        if (path.size() >= sizeof(id->internal)) continue;
        const int fd = mkstemp(path.data());
        if (fd < 0) continue;
        close(fd);
        memcpy(id->internal, path.c_str(), path.size());
        watch_exit();
        meeting() = path;
        return ncclSuccess;
    }
    return call.fail(ncclSystemError, "no folder to meet in");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    NCCL_ENTER("ncclCommInitRankConfig");
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (config != nullptr && (config->size != fresh.size || config->magic != fresh.magic))
        return call.fail(ncclInvalidArgument,
                         "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    return init_rank(call, comm, nranks, id, rank, config == nullptr || config->blocking != 0);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    NCCL_ENTER("ncclCommInitRank");
    return init_rank(call, comm, nranks, id, rank, true);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    NCCL_ENTER("ncclCommGetAsyncError");
    State &s = call.state(comm);
    if (group.depth > 0) violation("ncclCommGetAsyncError", "called inside a group");
    *error = progress(s);
    if (s.fail_at && s.begun >= s.fail_at && *error == ncclRemoteError)
        last_error = "an asynchronous fault was injected";
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    NCCL_ENTER("ncclCommFinalize");
    State &s = call.state(comm);
    const ncclResult_t rc = need_ready(call, s);
    if (rc != ncclSuccess) return rc;
    if (recorded(s))
        violation("ncclCommFinalize",
                  "a graph still holds its operations: NCCL would wait for ever");
    s.finalized = true;
    if (!s.blocking) return ncclInProgress;
    spin([&] { return s.done >= s.launched; });
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    NCCL_ENTER("ncclCommDestroy");
    if (comm == nullptr) return ncclSuccess;
    State &s = call.state(comm);
    if (recorded(s))
        violation("ncclCommDestroy",
                  "a graph still holds its operations: NCCL would wait for ever");
    if (!s.ready || !s.pending.empty())
        return call.fail(ncclInvalidArgument, "the communicator is in progress");
    if (!s.blocking && s.done < s.launched)
        violation("ncclCommDestroy", "operations are under way: finalize, and wait");
    spin([&] { return s.done >= s.launched; });
    s.destroyed = true;
    forget(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    Call call("ncclCommAbort");
    if (comm == nullptr) return ncclSuccess;
    State &s = call.state(comm);
    s.aborted = s.destroyed = true; // also where the call fails: what it stops, it stops first
    s.pending.clear();
    spin([&] { return !recorded(s); }); // so does the real one, blocking or not
    forget(comm);
    return call.injected() ? call.injection() : ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    NCCL_ENTER("ncclCommCount");
    *count = call.state(comm).nranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    NCCL_ENTER("ncclCommUserRank");
    *rank = call.state(comm).rank;
    return ncclSuccess;
}

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

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (size_t)result < sizeof(texts) / sizeof(texts[0]) ? texts[result]
                                                             : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}

} // extern "C"
