// The engine: settings, the lock, the order in which streams advance, the thread that moves things
// on, violations, faults, and what is looked at when the process ends.
//
// lazy: nothing runs until somebody waits; then only what that wait needs, stream by stream, and of
// a graph's nodes the one recorded last that may run. eager: everything runs as soon as it can.
// seeded: after each call some steps anywhere, and waits mix what they need with what they do not.
#include "tests/fakegpu/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <pthread.h>
#include <time.h>
#include <unistd.h>

namespace fakegpu
{

thread_local int depth;

namespace
{

constexpr size_t queue_length = 1024; // what is put into a stream before a call blocks

Engine *the_engine;
std::once_flag opened;
std::atomic<bool> forked{false};

const char *setting(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    return v != nullptr && *v != '\0' ? v : otherwise;
}

int rank()
{
    return atoi(setting("OMPI_COMM_WORLD_RANK", "0"));
}

// A setting's value without its `@RANK`; false: it is another rank's.
bool ours(std::string &value)
{
    const size_t who = value.find('@');
    if (who == std::string::npos) return true;
    if (atoi(value.c_str() + who + 1) != rank()) return false;
    value.resize(who);
    return true;
}

// ---- Faults ----

struct Faults {
    std::mutex lock;
    std::map<std::string, uint64_t> calls;
    uint64_t all = 0, at = 0; // at: the call that fails; 0: none
    std::string name;         // of what; empty: of all calls
    std::string count_path;
    Faults()
    {
        std::string fail = setting("FAKEGPU_FAIL", "");
        count_path = setting("FAKEGPU_COUNT", "");
        if (!ours(fail)) return;
        const size_t colon = fail.find(':');
        if (colon != std::string::npos) name = fail.substr(0, colon);
        at = strtoull(fail.c_str() + (colon == std::string::npos ? 0 : colon + 1), nullptr, 10);
    }
};
Faults &faults()
{
    static auto *f = new Faults;
    return *f;
}

// Written whatever the end is like; what is left over matters where the job says that it ended
// well.
void at_exit(int status, void *)
{
    if (forked) return;
    Faults &f = faults();
    if (!f.count_path.empty()) {
        const std::string path = f.count_path + "." + std::to_string(rank());
        FILE *out = fopen(path.c_str(), "w");
        if (out != nullptr) {
            for (const auto &call : f.calls)
                fprintf(out, "%s %llu\n", call.first.c_str(), (unsigned long long)call.second);
            fclose(out);
        }
    }
    Engine &e = *the_engine;
    const bool orderly =
        status == 0 || status == 75 || strcmp(setting("FAKEGPU_LEAKS", ""), "strict") == 0;
    if (!orderly || e.sticky != cudaSuccess) return;
    e.lock.lock(); // for ever: nothing runs any more
    check_guards("the end of the process");
    const std::string left = e.left_at_reset + leaks();
    if (!left.empty()) violation("exit", "the process ended with\n%s", left.c_str());
}

void pump()
{
    Engine &e = engine();
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(e.pump_ms));
        std::lock_guard<std::recursive_mutex> hold(e.lock);
        if (now_ns() - e.last_call < e.pump_ms * 1000000LL) continue;
        const int64_t until = now_ns() + 2000000;
        while (now_ns() < until && run_something()) {
        }
        close_device();
    }
}

void list_devices(Engine &e)
{
    const int on_machine = atoi(setting("FAKEGPU_DEVICES", "8"));
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == nullptr) {
        for (int d = 0; d < on_machine; d++) e.visible.push_back(d);
    } else { // the list ends where an entry is not a device
        for (const char *p = visible; *p != '\0';) {
            char *end;
            const long d = strtol(p, &end, 10);
            if (end == p || d < 0 || d >= on_machine) break;
            e.visible.push_back((int)d);
            if (*end != ',') break;
            p = end + 1;
        }
    }
    e.devices = (int)e.visible.size();
}

void open_engine()
{
    auto *e = new Engine;
    const char *order = setting("FAKEGPU_ORDER", "lazy");
    if (strcmp(order, "eager") == 0)
        e->order = Order::eager;
    else if (strcmp(order, "lazy") != 0) {
        e->order = Order::seeded;
        e->random = strtoull(order, nullptr, 10) + 1;
    }
    e->memory = strtoull(setting("FAKEGPU_MEMORY", "2147483648"), nullptr, 10);
    e->instances = std::max(1, atoi(setting("FAKEGPU_MIG", "1")));
    e->guard = strcmp(setting("FAKEGPU_GUARD", "1"), "0") != 0;
    e->pump_ms = atoi(setting("FAKEGPU_PUMP", "10"));
    e->counted = strcmp(setting("FAKEGPU_CLOCK", "time"), "work") == 0;
    std::string capability = setting("FAKEGPU_CAPABILITY", "");
    if (ours(capability)) sscanf(capability.c_str(), "%d.%d", &e->major, &e->minor);
    e->code = atoi(setting("FAKEGPU_CODE", std::to_string(10 * e->major + e->minor).c_str()));
    list_devices(*e);
    the_engine = e;
    install_fault_handler();
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    on_exit(at_exit, nullptr);
    e->last_call = now_ns();
    if (e->pump_ms > 0) std::thread(pump).detach();
}

} // namespace

Engine &engine()
{
    if (the_engine == nullptr) std::call_once(opened, open_engine);
    return *the_engine;
}

uint64_t pick(uint64_t n)
{
    uint64_t &s = engine().random; // splitmix64 (Steele, Lea, Flood 2014)
    uint64_t z = (s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return n < 2 ? 0 : z % n;
}

int64_t now_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void end_process()
{
    fflush(nullptr);
    _exit(99);
}

void violation(const char *call, const char *format, ...)
{
    char text[2048];
    va_list a;
    va_start(a, format);
    vsnprintf(text, sizeof text, format, a);
    va_end(a);
    fflush(stdout);
    fprintf(stderr, "fakegpu: %s: %s\n", call, text);
    end_process();
}

bool fails(const char *call)
{
    engine().last_call = now_ns();
    Faults &f = faults();
    std::lock_guard<std::mutex> hold(f.lock);
    const uint64_t n = ++f.calls[call], all = ++f.all;
    if (f.at == 0) return false;
    return f.name.empty() ? all == f.at : f.name == call && n == f.at;
}

Broken broken(const char *library, int64_t algorithm)
{
    std::string all = setting("FAKEGPU_BROKEN", "");
    if (!ours(all)) return Broken::no;
    all = "," + all + ",";
    for (const std::string &what : {std::to_string(algorithm), std::string("*")}) {
        const std::string name = "," + std::string(library) + ":" + what;
        if (all.find(name + ",") != std::string::npos) return Broken::call;
        if (all.find(name + "!,") != std::string::npos) return Broken::context;
        if (all.find(name + "~,") != std::string::npos) return Broken::slow;
    }
    return Broken::no;
}

void spoil(cudaError_t e)
{
    engine().sticky = e;
}

void take_longer(int pieces)
{
    engine().tasks += pieces;
}

// ---- Entries ----

Entry::Entry(const char *call) : call_(call)
{
    Engine &e = engine();
    if (depth > 0) violation(call, "called by %s while that runs on the device", e.running);
    e.lock.lock();
    injected_ = fails(call);
    if (forked)
        refusal_ = cudaErrorInitializationError;
    else if (e.devices == 0)
        refusal_ = cudaErrorNoDevice;
    else if (e.sticky != cudaSuccess)
        refusal_ = e.sticky;
    else if (injected_)
        refusal_ = plausible(call);
    if (injected_ && strcmp(setting("FAKEGPU_STICKY", "0"), "1") == 0) e.sticky = refusal_;
}

Entry::~Entry()
{
    Engine &e = engine();
    close_device();
    e.lock.unlock();
}

cudaError_t Entry::done(cudaError_t e) const
{
    if (e == cudaSuccess) e = engine().sticky; // what ran meanwhile may have spoiled the context
    if (e != cudaSuccess) last_error() = e;
    return e;
}

// ---- Progress ----

void finish_mark(Mark &m)
{
    Engine &e = engine();
    m.done = true;
    m.when = e.counted ? e.last_mark + 500 + 1000 * e.tasks : now_ns();
    if (m.when < e.last_mark + 500) m.when = e.last_mark + 500; // as fine as the device's clock
    e.last_mark = m.when;
    e.tasks = 0;
    m.stream = nullptr;
}

static bool step(const Task &t, bool &begun)
{
    Engine &e = engine();
    open_device();
    e.running = t.what;
    depth++;
    if (!begun && t.begin) t.begin();
    begun = true;
    const bool done = t.step();
    depth--;
    if (done) check_near_guards(t.what);
    e.tasks += done;
    e.running = nullptr;
    return done;
}

// Of the nodes that may run, the one recorded last (lazy), first (eager), or any.
static bool run_node(GraphRun &run)
{
    const Order order = engine().order;
    const size_t n = run.ready.size();
    const size_t first = order == Order::lazy ? n - 1 : order == Order::eager ? 0 : pick(n);
    for (size_t k = 0; k < n; k++) { // one that waits for a peer must not hold up the others
        const size_t at = order == Order::lazy ? n - 1 - k : (first + k) % n;
        const auto i = (size_t)run.ready[at];
        bool begun = run.begun[i] != 0;
        const bool done = step(run.plan->nodes[i].task, begun);
        run.begun[i] = 1;
        if (!done) continue;
        run.ready.erase(run.ready.begin() + (long)at);
        for (const int then : run.plan->then[i])
            if (--run.waits_for[(size_t)then] == 0)
                run.ready.insert(std::lower_bound(run.ready.begin(), run.ready.end(), then), then);
        run.left--;
        return true;
    }
    return false;
}

bool run_head(CUstream_st *s)
{
    if (s->items.empty()) return false;
    Item &item = s->items.front();
    switch (item.kind) {
    case Item::wait:
        if (!item.mark->done) return false;
        break;
    case Item::record:
        finish_mark(*item.mark);
        break;
    case Item::task:
        if (!step(item.work, item.begun)) return false;
        break;
    case Item::graph:
        if (item.run->left > 0 && !run_node(*item.run)) return false;
        if (item.run->left > 0) return true;
        break;
    }
    s->items.pop_front();
    return true;
}

bool advance(CUstream_st *s, const Mark *until)
{
    if (s == nullptr || s->items.empty() || (until != nullptr && until->done)) return false;
    const Item &head = s->items.front();
    if (head.kind == Item::wait && !head.mark->done)
        return advance(head.mark->stream, head.mark.get());
    return run_head(s);
}

bool run_something()
{
    Engine &e = engine();
    const size_t n = e.streams.size();
    if (n == 0) return false;
    const size_t first = e.order == Order::lazy ? n - 1 : pick(n);
    for (size_t k = 0; k < n; k++) { // lazy: the stream made last goes first
        CUstream_st *s = e.streams[(first + n - k) % n];
        if (!run_head(s)) continue;
        if (s->destroyed && s->items.empty())
            for (size_t i = 0; i < e.streams.size(); i++)
                if (e.streams[i] == s) e.streams.erase(e.streams.begin() + (long)i);
        return true;
    }
    return false;
}

// Collectives wait for other processes: then everything else goes on, and the lock is free now and
// then.
void wait_for(const MarkPtr &m)
{
    Engine &e = engine();
    int idle = 0;
    while (!m->done) {
        if (e.order == Order::seeded && pick(3) == 0) run_something();
        if (advance(m->stream, m.get())) {
            idle = 0;
            continue;
        }
        if (m->done || (idle > 2 && run_something())) continue;
        close_device();
        e.lock.unlock();
        if (++idle < 20)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(idle < 200 ? 50 : 500));
        e.lock.lock();
        e.last_call = now_ns();
    }
}

MarkPtr mark_here(CUstream_st *s)
{
    auto m = std::make_shared<Mark>();
    m->stream = s;
    s->items.push_back(Item{Item::record, {}, false, m, {}});
    return m;
}

void settle(CUstream_st *s)
{
    if (!s->items.empty()) wait_for(mark_here(s));
}

void nudge(CUstream_st *s, const Mark *m, unsigned &asked)
{
    const unsigned steps = 1u << (asked < 16 ? asked : 16);
    asked++;
    for (unsigned i = 0; i < steps; i++)
        if (!advance(s, m) && ((m != nullptr ? m->done : s->items.empty()) || !run_something()))
            return;
}

void after_enqueue()
{
    Engine &e = engine();
    if (e.order == Order::eager) {
        while (run_something()) {
        }
    } else if (e.order == Order::seeded) {
        for (uint64_t k = pick(4); k > 0; k--) run_something();
    }
    for (CUstream_st *s : e.streams) {
        if (s->items.size() <= queue_length) continue;
        auto m = std::make_shared<Mark>(); // the call blocks until half of it is done
        m->stream = s;
        s->items.insert(s->items.begin() + queue_length / 2, Item{Item::record, {}, false, m, {}});
        wait_for(m);
        break;
    }
}

} // namespace fakegpu
