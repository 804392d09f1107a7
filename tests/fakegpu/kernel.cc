// Running a grid on one host thread. Blocks come one after the other, in an order that the seed
// gives, and so do the threads of a block: a thread runs as plain code until it must wait for
// others (a barrier, a shuffle); only then is it suspended and another one goes on, on another
// stack. A kernel in which nobody waits is a loop over all its threads on one stack.
//
// A barrier opens when all threads of the block are there. When nobody can go on any more, somebody
// waits for a thread that ended or that waits elsewhere: a violation, with who waits where.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "tests/fakegpu/device.h"
#include "tests/fakegpu/engine.h"
#include "tests/fakegpu/fiber.h"
#include "tests/fakegpu/races.h"

namespace fakegpu
{

Built built;
uint64_t block_epoch;

namespace
{

// Lanes of a warp at one shuffle, ballot or __syncwarp.
struct Meet {
    Meeting kind;
    unsigned mask, arrived, ballot;
    int left; // that have not taken their result yet
    uint64_t bits[32];
    Fiber *waiting[32];
    Meet *next;
};

struct Warp {
    Meet *open;
    unsigned ended; // lanes
};

// The launch that runs, and its present block.
struct Running {
    const Launch *l;
    unsigned nthreads;
    uint64_t nblocks;
    // Thread number k of the order is (first + k * stride) mod n; blocks likewise.
    uint64_t blocks_begun, block, block_stride;
    unsigned begun, ended, thread, stride;
    bool ready_first; // those who can go on come before those who have not begun
    bool flat;        // one dimension
    Fiber *ready[max_threads];
    unsigned head, nready;
    Fiber *at_barrier[max_threads];
    unsigned nbarrier, barrier_votes;
    int barrier_result;
    Warp warps[max_threads / 32];
    SharedHead *shared;
    Fiber *current, *host, *idle;
    Meet *meets; // not in use
    bool over;
};
Running run;

unsigned char *dynamic_end; // the page behind it cannot be touched
constexpr size_t dynamic_most = 256 << 10;

void place(unsigned thread)
{
    if (run.flat) {
        built.thread.x = thread;
        return;
    }
    const dim3 &b = run.l->block;
    built.thread = uint3{thread % b.x, thread / b.x % b.y, thread / (b.x * b.y)};
}

unsigned gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t r = a % b;
        a = b;
        b = r;
    }
    return (unsigned)a;
}

// A stride without a common factor with n.
uint64_t stride_of(uint64_t n)
{
    if (n < 3) return 1;
    for (;;) {
        const uint64_t s = 1 + pick(n - 1);
        if (gcd(s, n) == 1) return s;
    }
}

void begin_block()
{
    if (run.blocks_begun == 0) {
        run.block = pick(run.nblocks);
        run.block_stride = stride_of(run.nblocks);
    } else {
        run.block = (run.block + run.block_stride) % run.nblocks;
    }
    run.blocks_begun++;
    const dim3 &g = run.l->grid;
    built.block = uint3{(unsigned)(run.block % g.x), (unsigned)(run.block / g.x % g.y),
                        (unsigned)(run.block / ((uint64_t)g.x * g.y))};
    block_epoch++;
    run.begun = run.ended = 0;
    // Neighbours mostly follow each other, forwards or backwards, which is easy on the caches; now
    // and then they do not.
    const uint64_t how = pick(8);
    run.stride = how < 4 ? 1 : how < 7 ? run.nthreads - 1 : (unsigned)stride_of(run.nthreads);
    if (run.stride == 0) run.stride = 1;
    run.thread = (unsigned)pick(run.nthreads);
    run.ready_first = pick(2) != 0;
    memset(run.warps, 0, sizeof(run.warps[0]) * ((run.nthreads + 31) / 32));
    if (run.l->shared > 0) {
        unsigned char *p = dynamic_shared();
        memset(p, 0xff, (size_t)(dynamic_end - p));
    }
    races_begin_block(dynamic_shared(), run.l->shared);
}

void end_block()
{
    size_t held = 0;
    for (SharedHead *h = run.shared; h != nullptr; h = h->next) {
        held += h->nbytes;
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < SHARED_GUARD; i++)
                if (h->guard[side][i] != 0xfd)
                    violation(run.l->what,
                              "wrote out of bounds of shared array %s (%zu bytes), %s it", h->name,
                              h->nbytes, side == 0 ? "before" : "behind");
    }
    run.shared = nullptr;
    if (copies_under_way() > 0)
        violation(run.l->what,
                  "%zu asynchronous copies of a block that ended were never waited for",
                  copies_under_way());
    if (held > max_static)
        violation(run.l->what, "holds %zu bytes of static shared memory; %zu are the limit", held,
                  max_static);
    if (run.l->shared > 0)
        for (unsigned char *p = dynamic_shared() + run.l->shared; p < dynamic_end; p++)
            if (*p != 0xff)
                violation(run.l->what, "wrote behind its %zu bytes of dynamic shared memory",
                          run.l->shared);
}

// The next thread that has not begun, to be run on the fiber that runs.
void begin_thread()
{
    if (run.begun > 0) {
        run.thread += run.stride;
        if (run.thread >= run.nthreads) run.thread -= run.nthreads;
    }
    run.begun++;
    run.current->thread = run.thread;
    place(run.thread);
}

void make_ready(Fiber *f)
{
    run.ready[(run.head + run.nready++) % max_threads] = f;
}

Fiber *take_ready()
{
    Fiber *f = run.ready[run.head];
    run.head = (run.head + 1) % max_threads;
    run.nready--;
    return f;
}

// Goes on with `to`; comes back when somebody goes on with the one that runs now.
void go(Fiber *to)
{
    Fiber *self = run.current;
    run.current = to;
    fiber_switch(self, to);
}

void thread_main()
{
    fiber_entered();
    for (;;) {
        begin_thread();
        run.l->threads(run.l->call.get());
        run.current->next = run.idle;
        run.idle = run.current;
        go(run.over ? run.host : take_ready());
    }
}

Fiber *take_idle()
{
    Fiber *f = run.idle;
    if (f == nullptr) return fiber_open(thread_main);
    run.idle = f->next;
    return f;
}

// Lanes of the warp that are there and have not ended. Those that have are excused, as on the
// device.
unsigned lanes_of(unsigned warp)
{
    const unsigned first = warp * 32, n = run.nthreads - first;
    return (n >= 32 ? 0xffffffffu : (1u << n) - 1) & ~run.warps[warp].ended;
}

const char *name_of(Meeting kind)
{
    static const char *const names[] = {"shuffle", "ballot", "__syncwarp", "mma", "ldmatrix"};
    return names[(int)kind];
}

bool is_whole(Meeting kind)
{
    return kind == Meeting::mma || kind == Meeting::ldmatrix;
}

[[noreturn]] void not_whole(Meeting kind, unsigned warp)
{
    violation(run.l->what, "%s: lanes %08x of warp %u alone; the others ended or never were",
              name_of(kind), lanes_of(warp), warp);
}

[[noreturn]] void stuck()
{
    char text[512];
    int n = 0;
    auto say = [&](const char *format, auto... a) {
        if (n < (int)sizeof text) n += snprintf(text + n, sizeof text - (size_t)n, format, a...);
    };
    if (run.nbarrier > 0)
        say("%u of %u threads wait at __syncthreads, ", run.nbarrier, run.nthreads);
    for (unsigned w = 0; w < (run.nthreads + 31) / 32; w++)
        for (const Meet *m = run.warps[w].open; m != nullptr; m = m->next)
            say("lanes %08x of warp %u wait at a %s with mask %08x, ", m->arrived, w,
                name_of(m->kind), m->mask);
    say("%u ended (block %u, %u, %u)", run.ended, built.block.x, built.block.y, built.block.z);
    violation(run.l->what, "threads of a block wait for each other for ever: %s", text);
}

// The one that runs waits; it was noted where. Comes back when it was made ready and is its turn.
void suspend()
{
    Fiber *self = run.current;
    if (run.nready > 0 && (run.ready_first || run.begun == run.nthreads))
        go(take_ready());
    else if (run.begun < run.nthreads)
        go(take_idle());
    else
        stuck();
    place(self->thread);
}

void close_meet(unsigned warp, Meet **at)
{
    Meet *m = *at;
    *at = m->next;
    if (m->kind == Meeting::sync && (lanes_of(warp) & ~m->arrived) == 0) races_pass_warp(warp);
    m->left = __builtin_popcount(m->arrived);
    const bool backwards = run.ready_first;
    for (int i = 0; i < 32; i++) {
        const int lane = backwards ? 31 - i : i;
        if (m->waiting[lane] != nullptr) make_ready(m->waiting[lane]);
    }
}

} // namespace

bool next_thread()
{
    Running &r = run;
    const unsigned thread = r.current->thread, warp = thread / 32;
    r.ended++;
    r.warps[warp].ended |= 1u << thread % 32;
    for (Meet **m = &r.warps[warp].open; *m != nullptr;) {
        if (is_whole((*m)->kind)) not_whole((*m)->kind, warp);
        if (((*m)->mask & lanes_of(warp) & ~(*m)->arrived) == 0)
            close_meet(warp, m);
        else
            m = &(*m)->next;
    }
    if (r.begun < r.nthreads && (r.nready == 0 || !r.ready_first)) {
        begin_thread();
        return true;
    }
    if (r.nready > 0) return false;
    if (r.ended < r.nthreads) stuck();
    end_block();
    if (r.blocks_begun == r.nblocks) {
        r.over = true;
        return false;
    }
    begin_block();
    begin_thread();
    return true;
}

int barrier(Reduce reduce, bool predicate)
{
    Running &r = run;
    r.barrier_votes += predicate;
    if (r.nbarrier + 1 < r.nthreads) {
        r.at_barrier[r.nbarrier++] = r.current;
        suspend();
    } else {
        const unsigned n = r.nbarrier;
        r.barrier_result = reduce == Reduce::count ? (int)r.barrier_votes
                           : reduce == Reduce::all ? r.barrier_votes == n + 1
                                                   : r.barrier_votes > 0;
        r.barrier_votes = 0;
        r.nbarrier = 0;
        races_pass_barrier();
        if (n > 0) {
            const unsigned first = (unsigned)pick(n);
            for (unsigned i = 0; i < n; i++)
                make_ready(r.at_barrier[first + i < n ? first + i : first + i - n]);
            if (first % 2 != 0) { // the last to come is not the first to go
                make_ready(r.current);
                suspend();
            }
        }
    }
    return r.barrier_result;
}

uint64_t meet(Meeting kind, unsigned mask, uint64_t bits, int from, Together together)
{
    Running &r = run;
    const unsigned thread = r.current->thread, warp = thread / 32, lane = thread % 32;
    const unsigned self = 1u << lane;
    if ((mask & self) == 0)
        violation(r.l->what, "lane %u takes part in a shuffle or vote whose mask %08x lacks it",
                  lane, mask);
    Meet **at = &r.warps[warp].open;
    while (*at != nullptr &&
           ((*at)->mask != mask || (*at)->kind != kind || ((*at)->arrived & self) != 0))
        at = &(*at)->next;
    Meet *m = *at;
    if (m == nullptr) {
        m = r.meets;
        if (m == nullptr)
            m = new Meet;
        else
            r.meets = m->next;
        m->kind = kind;
        m->mask = mask;
        m->arrived = m->ballot = 0;
        m->next = nullptr;
        memset(m->waiting, 0, sizeof m->waiting);
        *at = m;
    }
    m->bits[lane] = bits;
    m->arrived |= self;
    if (bits != 0) m->ballot |= self;
    if ((mask & lanes_of(warp) & ~m->arrived) == 0) {
        if (together != nullptr) together(m->bits);
        close_meet(warp, at);
    } else {
        m->waiting[lane] = r.current;
        suspend();
    }
    // A lane that did not take part has no value that could be relied on.
    uint64_t result = kind == Meeting::ballot                   ? m->ballot
                      : ((m->arrived >> (from & 31)) & 1u) != 0 ? m->bits[from & 31]
                                                                : ~(uint64_t)0;
    if (--m->left == 0) {
        m->next = r.meets;
        r.meets = m;
    }
    return result;
}

void meet_all(Meeting kind, void *mine, Together together)
{
    const unsigned warp = run.current->thread / 32;
    if (engine().code < 80)
        violation(run.l->what, "%s in code for compute capability %d.%d", name_of(kind),
                  engine().code / 10, engine().code % 10);
    if (lanes_of(warp) != 0xffffffffu) not_whole(kind, warp);
    meet(kind, 0xffffffffu, reinterpret_cast<uintptr_t>(mine), 0, together);
}

bool in_shared(const void *p, size_t n)
{
    const auto *at = static_cast<const unsigned char *>(p);
    const unsigned char *dynamic = dynamic_shared();
    if (at >= dynamic && at + n <= dynamic + run.l->shared) return true;
    for (const SharedHead *h = run.shared; h != nullptr; h = h->next)
        if (at >= h->guard[0] + SHARED_GUARD && at + n <= h->guard[1]) return true;
    return false;
}

void trap()
{
    violation(run.l->what, "__trap");
}

void misaligned(const char *access, const void *p)
{
    violation(run.l->what, "%s of an address that is not aligned for it: %p", access, p);
}

void open_shared(SharedHead *head, unsigned char *bytes, size_t nbytes, const char *name)
{
    head->epoch = block_epoch;
    head->nbytes = nbytes;
    head->name = name;
    head->guard[0] = bytes;
    head->guard[1] = bytes + SHARED_GUARD + nbytes;
    memset(head->guard[0], 0xfd, SHARED_GUARD);
    memset(bytes + SHARED_GUARD, 0xff, nbytes);
    memset(head->guard[1], 0xfd, SHARED_GUARD);
    head->next = run.shared;
    run.shared = head;
    races_see(head, bytes + SHARED_GUARD);
}

unsigned running_thread()
{
    return run.current->thread;
}

const char *running_kernel()
{
    return run.l != nullptr ? run.l->what : "no kernel";
}

unsigned char *dynamic_shared()
{
    const size_t n = run.l->shared;
    return dynamic_end - (n + 15) / 16 * 16;
}

const char *kernel_place(char *buf, size_t size)
{
    buf[0] = '\0';
    if (run.l != nullptr)
        snprintf(buf, size, " in block (%u, %u, %u), thread (%u, %u, %u)", built.block.x,
                 built.block.y, built.block.z, built.thread.x, built.thread.y, built.thread.z);
    return buf;
}

void run_grid(const Launch &l)
{
    if (dynamic_end == nullptr) {
        void *p = mmap(nullptr, dynamic_most + 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED ||
            mprotect(static_cast<char *>(p) + dynamic_most, 4096, PROT_NONE) != 0)
            violation(l.what, "no memory for shared memory");
        dynamic_end = static_cast<unsigned char *>(p) + dynamic_most;
    }
    Fiber host{};
    run.l = &l;
    run.nthreads = l.block.x * l.block.y * l.block.z;
    run.nblocks = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
    run.blocks_begun = 0;
    run.head = run.nready = run.nbarrier = run.barrier_votes = 0;
    run.flat = l.block.y == 1 && l.block.z == 1;
    run.over = false;
    run.host = run.current = &host;
    built.thread = uint3{0, 0, 0};
    built.block_dim = l.block;
    built.grid_dim = l.grid;
    begin_block();
    go(take_idle());
    run.l = nullptr;
}

} // namespace fakegpu
