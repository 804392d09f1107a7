// The engine's own parts: streams and what is put into them, captures, memory, the lock. What its
// users see is fakegpu.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/fakegpu/fakegpu.h"

namespace fakegpu
{

// ---- Points in streams ----

struct Capture;

// A place in a stream that an event was recorded at.
struct Mark {
    CUstream_st *stream = nullptr; // null: in a capture, or reached
    bool done = false;
    int64_t when = 0;                 // nanoseconds, once done
    unsigned asked = 0;               // queries that found it not done
    std::shared_ptr<Capture> capture; // recorded there, at these nodes
    std::vector<int> nodes;
};
using MarkPtr = std::shared_ptr<Mark>;

// ---- Graphs ----

struct Node {
    Task task;
    std::vector<int> after;
    int priority; // of the stream that it was captured from
};

struct Capture {
    CUstream_st *origin = nullptr;
    cudaStreamCaptureMode mode{};
    std::thread::id thread;
    bool broken = false, ended = false;
    unsigned long long id = 0;
    std::set<CUstream_st *> streams;
    std::vector<Node> nodes;
};

// An instantiated graph, and one launch of it.
struct GraphPlan {
    std::vector<Node> nodes;
    std::vector<std::vector<int>> then; // the nodes that wait for this one
};
struct GraphRun {
    std::shared_ptr<const GraphPlan> plan;
    std::vector<int> waits_for; // nodes not done yet, by node
    std::vector<int> ready;     // nodes that may run, ascending
    std::vector<char> begun;
    size_t left = 0;
};

// ---- Streams ----

struct Item {
    enum Kind { task, graph, record, wait } kind;
    Task work;
    bool begun;
    MarkPtr mark;
    std::shared_ptr<GraphRun> run;
};

} // namespace fakegpu

struct CUstream_st {
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    unsigned long long id = 0;
    bool destroyed = false;
    unsigned asked = 0; // queries that found work in it
    std::deque<fakegpu::Item> items;
    std::shared_ptr<fakegpu::Capture> capture;
    std::vector<int> nodes; // of the capture: what the next one depends on
};

struct CUevent_st {
    int device = 0;
    unsigned flags = 0;
    fakegpu::MarkPtr mark; // last record
};

struct CUgraphNode_st {
    int index = 0;
};

struct CUgraph_st {
    std::vector<fakegpu::Node> nodes;
    std::vector<CUgraphNode_st> handles;
};

struct CUgraphExec_st {
    std::shared_ptr<const fakegpu::GraphPlan> plan;
    fakegpu::MarkPtr last; // launches of one graph follow each other
};

namespace fakegpu
{

// ---- Memory ----

struct Block {
    char *at; // what the program got
    size_t nbytes;
    char *pages;        // that belong to it, and how many bytes of them
    size_t span, taken; // taken: of the device's memory
    int device;         // -1: pinned
    uint64_t serial;    // order of allocation
    const char *call;
};

enum class Order { lazy, eager, seeded };

struct Engine {
    std::recursive_mutex lock;
    // Settings.
    Order order = Order::lazy;
    uint64_t random = 1; // state of the generator
    int devices = 8;
    std::vector<int> visible; // ordinals of the machine by those of the process
    int instances = 1;        // that each GPU is cut into (MIG): devices are these
    size_t memory = 0;        // bytes a device has
    int major = 9, minor = 0; // compute capability
    int code = 0;             // ten times the one that the kernels' code was made for
    bool guard = true;
    int pump_ms = 10;
    bool counted = false; // events tell the work that ran before them, not the time
    // State.
    std::map<uintptr_t, Block> blocks; // live, device and pinned, by `at`
    std::map<uintptr_t, Block> freed;
    std::vector<Block> guarded; // those of `blocks` one behind the other; empty: not gathered
    std::map<int, size_t> used; // bytes by device
    std::vector<CUstream_st *> streams; // live, or dying with work left; in order of creation
    std::set<CUstream_st *> live_streams;
    std::set<CUevent_st *> live_events;
    std::set<CUgraph_st *> live_graphs;
    std::set<CUgraphExec_st *> live_execs;
    // Destroyed: their addresses are not given out again, so that a use of them is noticed.
    std::vector<const void *> graves;
    std::set<Capture *> captures;                            // that go on
    std::unordered_map<const void *, size_t> dynamic_shared; // more than 48 KiB allowed
    std::map<int, CUstream_st *>
        legacy; // the default streams of devices, for synchronous calls only
    uint64_t serial = 0;
    unsigned long long captures_ever = 0, streams_ever = 0;
    std::atomic<int64_t> last_call{0};
    int64_t last_mark = 0, tasks = 0; // nanoseconds; that ran since
    bool open = false;                // device memory can be touched
    const char *running = nullptr;    // what runs now
    cudaError_t sticky = cudaSuccess;
    std::string left_at_reset; // what a reset found
};
Engine &engine(); // opened by the first call

uint64_t pick(uint64_t n); // [0, n), seeded
int64_t now_ns();
cudaError_t &last_error(); // of the thread
int &current_device();     // of the thread
int gpu_of(int device);    // of the machine's; some are cut into instances
// A code that `call` may really return.
cudaError_t plausible(const char *call);

// Every entry of the runtime: takes the lock, counts the call, protects device memory again at its
// end.
class Entry
{
  public:
    explicit Entry(const char *call);
    ~Entry();
    Entry(const Entry &) = delete;
    Entry &operator=(const Entry &) = delete;
    // The call is not to be made: with what.
    bool refused() const
    {
        return refusal_ != cudaSuccess;
    }
    cudaError_t refusal() const
    {
        return done(refusal_);
    }
    bool injected() const
    {
        return injected_;
    }
    cudaError_t done(cudaError_t e) const; // notes the thread's last error
    const char *call() const
    {
        return call_;
    }

  private:
    const char *call_;
    bool injected_ = false;
    cudaError_t refusal_ = cudaSuccess;
};
#define FAKEGPU_ENTER(name)                                                                        \
    ::fakegpu::Entry entry(name);                                                                  \
    if (entry.refused()) return entry.refusal()

// ---- engine.cc ----
bool run_head(CUstream_st *s); // one step of the stream's first item; false: it cannot go on
bool advance(CUstream_st *s,
             const Mark *until); // what the stream's first item needs first, wherever that is
bool run_something();            // a step anywhere
void wait_for(const MarkPtr &m);
void settle(CUstream_st *s); // runs everything in it
// A query's share of the work before `m` (null: in s): twice as much each time, so that polling
// ends.
void nudge(CUstream_st *s, const Mark *m, unsigned &asked);
MarkPtr mark_here(CUstream_st *s); // a mark at its end
void after_enqueue();              // what the order makes of new work
void finish_mark(Mark &m);
[[noreturn]] void end_process();
extern thread_local int depth; // tasks that this thread is inside of

// ---- memory.cc ----
void open_device();                        // tasks can touch device memory
void close_device();                       // nobody can, once no task runs
void close_device_within();                // not even the task that calls it
const Block *find_block(const void *p);    // that holds p
void check_near_guards(const char *after); // the line on either side of each block, after each task
void check_guards(const char *after);      // the 256 bytes, at the end
// n bytes of device or pinned memory, inside one allocation, or a violation.
void need_block(const char *call, const char *operand, const void *p, size_t n);
void install_fault_handler();
std::string name_of(const void *p); // "24 bytes into 100 bytes of device memory from cudaMalloc"
void release_all();                 // cudaDeviceReset
// ncclMemAlloc's: of a device's granularity, 2 MiB, and only ncclMemFree's to free.
cudaError_t lend(size_t n, void **out);
cudaError_t take_back(void *p);
bool is_lent(const Block &b);

// ---- graph.cc ----
// Unsafe while a capture forbids it: breaks the capture and gives the error, else cudaSuccess.
cudaError_t forbid_in_capture();
void break_capture(Capture &c);

// ---- stream.cc ----
CUstream_st *legacy_stream();
cudaError_t check_stream(cudaStream_t s); // live, of the current device
struct Launch;
constexpr unsigned max_threads = 1024;  // of a block
constexpr size_t max_static = 48 << 10; // bytes of shared memory that a block has unasked
void run_grid(const Launch &l);         // kernel.cc: all of it, now
cudaError_t enqueue_into(CUstream_st *s, Task task); // after the checks of enqueue
std::string leaks();                                 // "" or a list

// ---- kernel.cc ----
const char *kernel_place(char *buf, size_t size); // " in block (1, 0, 0), thread (3, 0, 0)" or ""

} // namespace fakegpu
