// The stand-in for NCCL: communicators between processes, through one file of shared memory. What
// the calls (nccl.cc: communicators, nccl_group.cc: operations) and what runs on the device
// (nccl_run.cc) share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/fakegpu/engine.h"

namespace fakenccl
{

constexpr int MAX_RANKS = 64;
constexpr size_t CHUNK = 64 << 10; // bytes that change hands at once

enum class Kind : int32_t { all_reduce, all_gather, reduce_scatter, broadcast };

// What every rank must say alike about an operation.
struct Words {
    Kind kind;
    int32_t type, op, root, captured, place, places; // place: within its group
    int32_t registered;                              // of its operands, bit by bit
    uint64_t count, number, chunk;                   // number: of the operation on its communicator
    uint64_t
        order; // of the group among those of all communicators with as many ranks; 0: no matter
    bool operator==(const Words &o) const;
};

struct Slot {
    Words words;
    alignas(64) char bytes[CHUNK];
};

struct Member {
    alignas(64) std::atomic<uint64_t> seq; // chunks given, ever
    std::atomic<int32_t> here;
    int32_t device, host; // of the machine; the pretended node
};

struct File {
    std::atomic<int32_t> attached;
    int32_t nranks;
    Member members[MAX_RANKS];
    // and Slot [nranks][2]
};

struct State;

struct Op {
    const char *call;
    Words words;
    const char *send;
    char *recv;
    size_t send_bytes, recv_bytes;
};

// A group: one kernel. Lives in the streams and graphs that hold it.
struct Launch {
    std::shared_ptr<State> state;
    cudaStream_t stream = nullptr;
    bool captured = false;
    std::vector<Op> ops;
    std::weak_ptr<Launch> before; // must have started first; expired: nothing
    uint64_t started_ever = 0;
    // Of the run that goes on:
    size_t op = 0, offset = 0;
    bool given = false, started = false, held = false;
    uint64_t others = 0; // groups of other communicators that had ended when it started
    ~Launch();
};

// A communicator, as its operations see it.
struct State {
    int rank = 0, nranks = 0;
    bool nvls = true; // NCCL_NVLS_ENABLE: sums in an order that depends on what went before
    bool blocking = true, ready = false, finalized = false, destroyed = false, aborted = false;
    ncclResult_t failed = ncclSuccess;
    std::string path;
    File *file = nullptr;
    size_t span = 0;
    int polls = 0;                                 // of what is in progress
    std::vector<std::shared_ptr<Launch>> pending;  // not yet in the stream
    std::vector<std::weak_ptr<Launch>> recordings; // in graphs
    cudaStream_t stream = nullptr;                 // of its first operation
    uint64_t number = 0, seq = 0, launched = 0, done = 0, begun = 0;
    uint64_t fail_at = 0; // FAKENCCL_ASYNC_ERROR: the launch that fails
    uint64_t hold_at =
        0;             // FAKENCCL_HOLD: the sum that ends after something of another communicator
    uint64_t sums = 0; // groups with sums that started
    std::map<const void *, size_t> registered; // ncclCommRegister: where, bytes
    Launch *current = nullptr;
    ~State();
    Slot &slot(int r, uint64_t n) const
    {
        return reinterpret_cast<Slot *>(reinterpret_cast<char *>(file) +
                                        sizeof(File))[2 * (size_t)r + (n & 1)];
    }
};

size_t size_of(ncclDataType_t type); // 0: none
bool ordered();                      // NCCL_LAUNCH_ORDER_IMPLICIT
// On the device: false while peers are missing.
bool run(Launch &l);
void begin(Launch &l);

} // namespace fakenccl

struct ncclComm {
    std::shared_ptr<fakenccl::State> state;
};

namespace fakenccl
{

extern thread_local std::string last_error;
std::set<ncclComm_t> &live(); // communicators

// Every call: the engine's lock, the count of calls, and device memory closed again at its end.
class Call
{
  public:
    explicit Call(const char *name) : name_(name)
    {
        if (fakegpu::depth > 0) fakegpu::violation(name, "called by what runs on the device");
        fakegpu::engine().lock.lock();
        injected_ = fakegpu::fails(name);
    }
    ~Call()
    {
        fakegpu::close_device();
        fakegpu::engine().lock.unlock();
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
            fakegpu::violation(name_, "the communicator was destroyed or aborted, or never was");
        return *comm->state;
    }

  private:
    const char *name_;
    bool injected_;
};
#define NCCL_ENTER(name)                                                                           \
    ::fakenccl::Call call(name);                                                                   \
    if (call.injected()) return call.injection()

// ---- nccl.cc ----
// ncclSuccess: the next operation may come.
ncclResult_t need_ready(const Call &call, State &s);

// ---- nccl_group.cc ----
bool in_group();                    // of this thread
std::map<int, uint64_t> &issued();  // groups, by the number of ranks; since one more communicator
ncclResult_t put_pending(State &s); // into the stream: the groups that wait for it

} // namespace fakenccl
