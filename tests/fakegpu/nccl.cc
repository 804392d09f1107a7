// NCCL's calls about communicators and errors; operations and their groups are in nccl_group.cc.
// Ranks meet in a file (in /dev/shm, else TMPDIR or /tmp) named in the unique id, which is removed
// as soon as all have mapped it.
//
// Non-blocking communicators are as unhelpful as they may be: a group is put into its stream by the
// second ncclCommGetAsyncError after it, so that a program that does not wait for that sees its
// work come too late. Refused as there: two ranks on one GPU, use while in progress. Violations:
// use after destroy or abort, recordings that outlive the communicator, what is left at the end.
//
// FAKENCCL_ASYNC_ERROR=N@RANK: the N-th group that RANK runs fails asynchronously. FAKENCCL_HOLD=N:
// the N-th group of a communicator that adds something up ends only when one of another
// communicator has ended that started later. FAKENCCL_VERSION=N: what ncclGetVersion says; up to
// 21899 there is no ncclMemAlloc. Ranks on pretended nodes (TRIREME_FAKE_NODES) have GPUs of their
// own.
#include "tests/fakegpu/nccl.h"

#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using fakegpu::engine;
using fakegpu::violation;
using namespace fakenccl;

namespace
{

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
    m.device = fakegpu::gpu_of(fakegpu::current_device()); // instances of one are the same to it
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

// ---- Moving on ----

bool recorded(State &s)
{
    bool any = false;
    for (const auto &r : s.recordings) any = any || !r.expired();
    return any;
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

int version()
{
    return setting("FAKENCCL_VERSION", NCCL_VERSION_CODE);
}

// Operands lie in it as a whole, or not at all.
bool can_register(const void *p, size_t n)
{
    const fakegpu::Block *b = fakegpu::find_block(p);
    if (b == nullptr || !fakegpu::is_lent(*b)) return false;
    return static_cast<const char *>(p) + n <= b->at + b->nbytes;
}

void need_deregistered(const char *name, const State &s)
{
    if (!s.registered.empty())
        violation(name, "%zu arrays are still registered", s.registered.size());
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
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    s->nvls = nvls == nullptr || strcmp(nvls, "0") != 0;
    s->path.assign(id.internal, strnlen(id.internal, sizeof id.internal));
    const char *fail = getenv("FAKENCCL_ASYNC_ERROR"),
               *at = fail != nullptr ? strchr(fail, '@') : nullptr;
    if (at != nullptr && atoi(at + 1) == rank) s->fail_at = strtoull(fail, nullptr, 10);
    issued()[nranks] = 0;
    s->hold_at = (uint64_t)setting("FAKENCCL_HOLD", 0);
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

thread_local std::string fakenccl::last_error;

std::set<ncclComm_t> &fakenccl::live()
{
    static auto *set = new std::set<ncclComm_t>;
    return *set;
}

ncclResult_t fakenccl::need_ready(const Call &call, State &s)
{
    if (s.failed != ncclSuccess) return s.failed;
    if (s.finalized) violation("NCCL", "an operation after ncclCommFinalize");
    if (!s.ready || !s.pending.empty())
        return call.fail(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    return ncclSuccess;
}

fakenccl::State::~State()
{
    if (file != nullptr) munmap(file, span);
}

// ---- The interface ----

extern "C" {

ncclResult_t ncclGetVersion(int *number)
{
    NCCL_ENTER("ncclGetVersion");
    *number = version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    NCCL_ENTER("ncclGetUniqueId");
    const char *tmp = getenv("TMPDIR");
    const std::string dirs[] = {"/dev/shm", tmp != nullptr && *tmp != '\0' ? tmp : "/tmp"};
    memset(id, 0, sizeof *id);
    for (const std::string &dir : dirs) {
        std::string path = dir + "/fakenccl-XXXXXX";
        if (path.size() >= sizeof id->internal) continue;
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
    if (in_group()) violation("ncclCommGetAsyncError", "called inside a group");
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
    need_deregistered("ncclCommFinalize", s);
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
    need_deregistered("ncclCommDestroy", s);
    s.destroyed = true;
    forget(comm);
    return ncclSuccess;
}

// ---- Memory ----

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    NCCL_ENTER("ncclMemAlloc");
    if (version() < 21900)
        return call.fail(ncclInvalidUsage, "ncclMemAlloc is not in this version");
    return fakegpu::lend(size, ptr) == cudaSuccess
               ? ncclSuccess
               : call.fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
}

ncclResult_t ncclMemFree(void *ptr)
{
    Call call("ncclMemFree");
    for (const ncclComm_t comm : live())
        for (const auto &r : comm->state->registered)
            if (fakegpu::find_block(ptr) != nullptr &&
                fakegpu::find_block(ptr) == fakegpu::find_block(r.first))
                violation("ncclMemFree", "a communicator still has it registered");
    const cudaError_t e = fakegpu::take_back(ptr);
    if (call.injected()) return call.injection();
    return e == cudaSuccess ? ncclSuccess : call.fail(ncclUnhandledCudaError, "Cuda failure");
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    NCCL_ENTER("ncclCommRegister");
    State &s = call.state(comm);
    const ncclResult_t rc = need_ready(call, s);
    if (rc != ncclSuccess) return rc;
    if (!can_register(buff, size))
        violation("ncclCommRegister", "%s: not one of ncclMemAlloc's, or not so large",
                  fakegpu::name_of(buff).c_str());
    if (!s.registered.emplace(buff, size).second) violation("ncclCommRegister", "registered twice");
    *handle = buff;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    Call call("ncclCommDeregister");
    if (call.state(comm).registered.erase(handle) == 0)
        return call.fail(ncclInvalidUsage, "Deregister: Could not find handle");
    return call.injected() ? call.injection() : ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    Call call("ncclCommAbort");
    if (comm == nullptr) return ncclSuccess;
    State &s = call.state(comm);
    s.aborted = s.destroyed = true; // also where the call fails: what it stops, it stops first
    s.pending.clear();
    s.registered.clear();
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
    return (size_t)result < sizeof texts / sizeof texts[0] ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}

} // extern "C"
