// Device and pinned memory. Each kind lies in one reserved range of addresses that are never given
// out twice. An allocation ends (to 256 bytes) where its pages end, and the page behind it cannot
// be touched; what is left of its pages holds guard bytes, of which the line on either side is
// looked at after each task, 256 bytes when it is freed and at the end of the process. Freed pages
// cannot be touched any more.
// Pages of device memory can be touched only while tasks run (FAKEGPU_GUARD=0: always), so the host
// that follows a device pointer is found. Whoever touches what it must not is told apart by the
// signal handler.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakegpu/engine.h"

namespace fakegpu
{

namespace
{

const char *const lent = "ncclMemAlloc";
constexpr size_t page = 4096, huge = 2 << 20, align = 256, line = 64;
constexpr unsigned char guard_byte = 0xfd;
constexpr size_t quarantine = 100000; // freed allocations that are remembered by name

struct Range {
    const char *what;
    char *begin, *end, *next;
    bool has(const void *p) const
    {
        return p >= begin && p < end;
    }
};
Range device_range{"device", nullptr, nullptr, nullptr},
    pinned_range{"pinned", nullptr, nullptr, nullptr};
struct sigaction old_segv, old_bus;

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void reserve(Range &r)
{
    for (size_t n = (size_t)256 << 30; n >= (size_t)1 << 30; n /= 2) {
        void *p = mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        r.begin = static_cast<char *>(p);
        r.end = r.begin + n;
        r.next = r.begin + page; // nor is there anything before the first
        return;
    }
    violation("start", "no address space for %s memory", r.what);
}

void protect(const Block &b, bool open)
{
    if (mprotect(b.pages, b.span, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        violation(b.call, "mprotect failed");
}

// "24 bytes into 100 bytes of device memory (cudaMalloc, the 3rd allocation)". No allocation: it is
// called by the signal handler.
void describe(const void *p, char *buf, size_t size)
{
    const Engine &e = engine();
    const auto at = reinterpret_cast<uintptr_t>(p);
    const char *what = device_range.has(p) ? "device" : "pinned";
    const auto near = [&](const std::map<uintptr_t, Block> &blocks) -> const Block * {
        auto it = blocks.upper_bound(at + align);
        while (it != blocks.begin()) {
            const Block &b = (--it)->second;
            if (device_range.has(b.at) != device_range.has(p)) continue;
            if (static_cast<const char *>(p) < b.pages + b.span + huge) return &b;
            return nullptr;
        }
        return nullptr;
    };
    const Block *freed = near(e.freed), *live = near(e.blocks);
    const Block *b = live != nullptr && (freed == nullptr || live->at > freed->at) ? live : freed;
    if (b == nullptr) {
        snprintf(buf, size, "address %p in the range of %s memory, of no allocation", p, what);
        return;
    }
    const long offset = (long)(static_cast<const char *>(p) - b->at), n = (long)b->nbytes;
    snprintf(buf, size, "%ld bytes %s %zu bytes of %s%s memory (allocation %llu, %s)",
             offset < 0    ? -offset
             : offset >= n ? offset - n
                           : offset,
             offset < 0    ? "before"
             : offset >= n ? "behind"
                           : "into",
             b->nbytes, b == freed ? "freed " : "", what, (unsigned long long)b->serial, b->call);
}

void on_fault(int sig, siginfo_t *info, void *context)
{
    const void *p = info->si_addr;
    char text[256], place[128];
    const Engine &e = engine();
    if (device_range.has(p) || pinned_range.has(p)) {
        describe(p, text, sizeof text);
        if (depth > 0 && (e.open || pinned_range.has(p)))
            violation(e.running, "touched %s%s", text, kernel_place(place, sizeof(place)));
        violation("host", "the host touched %s", text);
    }
    if (depth > 0)
        violation(e.running, "touched address %p, which is no memory%s", p,
                  kernel_place(place, sizeof(place)));
    const struct sigaction &old = sig == SIGSEGV ? old_segv : old_bus;
    if ((old.sa_flags & SA_SIGINFO) != 0 && old.sa_sigaction != nullptr) {
        old.sa_sigaction(sig, info, context);
        return;
    }
    sigaction(sig, &old, nullptr); // the fault comes again and is treated as without us
}

// The handler cannot run on a stack that is used up.
void own_signal_stack()
{
    static thread_local bool done;
    if (done) return;
    done = true;
    stack_t old;
    if (sigaltstack(nullptr, &old) != 0 || (old.ss_flags & SS_DISABLE) == 0) return;
    constexpr size_t size = 64 << 10;
    void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    stack_t s{};
    s.ss_sp = p;
    s.ss_size = size;
    sigaltstack(&s, nullptr);
}

cudaError_t allocate(const char *call, Range &r, int device, size_t n, size_t grain, void **out)
{
    Engine &e = engine();
    if (out == nullptr) return cudaErrorInvalidValue;
    *out = nullptr;
    if (n == 0) return cudaSuccess;
    if (n > (size_t)1 << 48) return cudaErrorMemoryAllocation;
    const size_t span = round_up(n, page);
    const size_t taken = round_up(span, grain);
    if (device >= 0 && e.used[device] + taken > e.memory) return cudaErrorMemoryAllocation;
    char *pages =
        span >= huge ? reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(r.next), huge))
                     : r.next;
    if (pages + span + page > r.end)
        violation(call, "the addresses of %s memory are used up", r.what);
    Block b{pages + span - round_up(n, align), n, pages, span, taken, device, ++e.serial, call};
    r.next = pages + span + page;
    // Large pages: few entries to change where the host's access is taken and given.
    if (span >= huge) madvise(pages, span, MADV_HUGEPAGE);
    // Unlike the pages around it, so that the kernel neither joins them nor cuts them apart at each
    // change.
    madvise(pages, span, MADV_DONTDUMP);
    if (mprotect(pages, span, PROT_READ | PROT_WRITE) != 0) return cudaErrorMemoryAllocation;
    memset(b.pages, guard_byte, (size_t)(b.at - b.pages));
    memset(b.at, 0xff, n);
    memset(b.at + n, guard_byte, (size_t)(b.pages + span - (b.at + n)));
    if (device >= 0) {
        e.used[device] += taken;
        if (e.guard && !e.open) protect(b, false);
    }
    e.blocks.emplace(reinterpret_cast<uintptr_t>(b.at), b);
    e.guarded.clear();
    *out = b.at;
    return cudaSuccess;
}

bool is_guard(const char *p, size_t n)
{
    constexpr uint64_t eight = guard_byte * 0x0101010101010101u;
    uint64_t word;
    for (; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        if (word != eight) return false;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != guard_byte) return false;
    return true;
}

// The guard bytes around a block, `most` on either side.
void check_guard(const Block &b, size_t most, const char *after)
{
    const char *end = b.at + b.nbytes;
    const size_t before = std::min((size_t)(b.at - b.pages), most);
    const size_t behind = std::min((size_t)(b.pages + b.span - end), most);
    const char *wrong = !is_guard(b.at - before, before) ? b.at - before
                        : !is_guard(end, behind)         ? end
                                                         : nullptr;
    if (wrong == nullptr) return;
    while ((unsigned char)*wrong == guard_byte) wrong++;
    char text[256];
    describe(wrong, text, sizeof text);
    violation(after, "wrote out of bounds: %s", text);
}

cudaError_t release(std::map<uintptr_t, Block>::iterator it)
{
    Engine &e = engine();
    Block b = it->second;
    if (b.device >= 0) open_device();
    check_guard(b, align, b.device >= 0 ? "cudaFree" : "cudaFreeHost");
    if (mmap(b.pages, b.span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) == MAP_FAILED)
        violation("cudaFree", "mmap failed");
    if (b.device >= 0) e.used[b.device] -= b.taken;
    e.blocks.erase(it);
    e.guarded.clear();
    if (e.freed.size() >= quarantine) e.freed.erase(e.freed.begin());
    e.freed.emplace(reinterpret_cast<uintptr_t>(b.at), b);
    return cudaSuccess;
}

cudaError_t free_one(void *p, bool device)
{
    Engine &e = engine();
    if (p == nullptr) return cudaSuccess;
    const auto it = e.blocks.find(reinterpret_cast<uintptr_t>(p));
    if (it == e.blocks.end() || (it->second.device >= 0) != device) return cudaErrorInvalidValue;
    if (is_lent(it->second))
        violation("cudaFree", "%s is ncclMemFree's to free", name_of(p).c_str());
    return release(it);
}

} // namespace

cudaError_t lend(size_t n, void **out)
{
    const cudaError_t st = forbid_in_capture();
    return st != cudaSuccess ? st : allocate(lent, device_range, current_device(), n, huge, out);
}

cudaError_t take_back(void *p)
{
    const auto it = engine().blocks.find(reinterpret_cast<uintptr_t>(p));
    if (it == engine().blocks.end() || !is_lent(it->second))
        violation("ncclMemFree", "%p is not what ncclMemAlloc gave", p);
    const cudaError_t st = forbid_in_capture();
    return st != cudaSuccess ? st : release(it);
}

bool is_lent(const Block &b)
{
    return strcmp(b.call, lent) == 0;
}

void open_device()
{
    Engine &e = engine();
    own_signal_stack();
    if (e.open) return;
    e.open = true;
    if (!e.guard) return;
    for (const auto &b : e.blocks)
        if (b.second.device >= 0) protect(b.second, true);
}

void close_device()
{
    if (depth == 0) close_device_within();
}

void close_device_within()
{
    Engine &e = engine();
    if (!e.open) return;
    e.open = false;
    if (!e.guard) return;
    for (const auto &b : e.blocks)
        if (b.second.device >= 0) protect(b.second, false);
}

const Block *find_block(const void *p)
{
    const auto &blocks = engine().blocks;
    auto it = blocks.upper_bound(reinterpret_cast<uintptr_t>(p));
    if (it == blocks.begin()) return nullptr;
    const Block &b = (--it)->second;
    return static_cast<const char *>(p) < b.at + b.nbytes ? &b : nullptr;
}

void check_near_guards(const char *after)
{
    Engine &e = engine();
    open_device();
    if (e.guarded.empty())
        for (const auto &b : e.blocks) e.guarded.push_back(b.second);
    for (size_t i = 0; i < e.guarded.size(); i++) {
        constexpr size_t ahead = 8; // each of them is a page of its own
        if (i + ahead < e.guarded.size()) {
            const Block &next = e.guarded[i + ahead];
            __builtin_prefetch(next.at - 1);
            __builtin_prefetch(next.at + next.nbytes);
        }
        check_guard(e.guarded[i], line, after);
    }
}

void check_guards(const char *after)
{
    open_device();
    for (const auto &b : engine().blocks) check_guard(b.second, align, after);
}

void install_fault_handler()
{
    reserve(device_range);
    reserve(pinned_range);
    struct sigaction a {
    };
    a.sa_sigaction = on_fault;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &a, &old_segv);
    sigaction(SIGBUS, &a, &old_bus);
}

std::string name_of(const void *p)
{
    char text[256];
    describe(p, text, sizeof text);
    return text;
}

void release_all()
{
    Engine &e = engine();
    while (!e.blocks.empty()) release(e.blocks.begin());
}

Where where(const void *p)
{
    std::lock_guard<std::recursive_mutex> hold(engine().lock);
    if (device_range.has(p)) return Where::device;
    return pinned_range.has(p) ? Where::pinned : Where::pageable;
}

void need_block(const char *call, const char *operand, const void *p, size_t n)
{
    if (n == 0) return;
    const Block *b = find_block(p);
    if (b == nullptr) violation(call, "%s is %s", operand, name_of(p).c_str());
    if (static_cast<const char *>(p) + n > b->at + b->nbytes)
        violation(call, "%s: %zu bytes do not lie inside one allocation: %s", operand, n,
                  name_of(p).c_str());
}

void need_device(const char *call, const char *operand, const void *p, size_t n)
{
    std::lock_guard<std::recursive_mutex> hold(engine().lock);
    if (n == 0) return;
    if (p == nullptr) violation(call, "%s is NULL", operand);
    if (where(p) == Where::pageable) violation(call, "%s (%p) is not in device memory", operand, p);
    need_block(call, operand, p, n); // pinned memory can be used by the device, too
}

void need_aligned(const char *call, const char *operand, const void *p, size_t to)
{
    if (reinterpret_cast<uintptr_t>(p) % to != 0)
        violation(call, "%s (%p) is not aligned to %zu bytes", operand, p, to);
}

} // namespace fakegpu

using namespace fakegpu;

extern "C" {

cudaError_t cudaMalloc(void **p, size_t n)
{
    FAKEGPU_ENTER("cudaMalloc");
    cudaError_t st = forbid_in_capture();
    if (st == cudaSuccess) st = allocate("cudaMalloc", device_range, current_device(), n, page, p);
    return entry.done(st);
}

// An injected failure of a release is told after the fact: nothing could be done about it.
cudaError_t cudaFree(void *p)
{
    Entry entry("cudaFree");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    cudaError_t st = forbid_in_capture();
    if (st == cudaSuccess) st = free_one(p, true);
    return entry.refused() ? entry.refusal() : entry.done(st);
}

static cudaError_t host_alloc(const char *call, void **p, size_t n)
{
    FAKEGPU_ENTER(call);
    cudaError_t st = forbid_in_capture();
    if (st == cudaSuccess) st = allocate(call, pinned_range, -1, n, page, p);
    return entry.done(st);
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
    return host_alloc("cudaHostAlloc", p, n);
}

cudaError_t cudaMallocHost(void **p, size_t n)
{
    return host_alloc("cudaMallocHost", p, n);
}

cudaError_t cudaFreeHost(void *p)
{
    Entry entry("cudaFreeHost");
    if (entry.refused() && !entry.injected()) return entry.refusal();
    cudaError_t st = forbid_in_capture();
    if (st == cudaSuccess) st = free_one(p, false);
    return entry.refused() ? entry.refusal() : entry.done(st);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned)
{
    FAKEGPU_ENTER("cudaHostGetDevicePointer");
    if (out == nullptr || where(p) != Where::pinned || find_block(p) == nullptr)
        return entry.done(cudaErrorInvalidValue);
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    FAKEGPU_ENTER("cudaMemGetInfo");
    Engine &e = engine();
    *total = e.memory;
    *available = e.memory - e.used[current_device()];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    FAKEGPU_ENTER("cudaPointerGetAttributes");
    if (a == nullptr) return entry.done(cudaErrorInvalidValue);
    memset(a, 0, sizeof *a);
    const Block *b = find_block(p);
    a->type = b == nullptr     ? cudaMemoryTypeUnregistered
              : b->device >= 0 ? cudaMemoryTypeDevice
                               : cudaMemoryTypeHost;
    a->device = b != nullptr && b->device >= 0 ? b->device : current_device();
    a->devicePointer = b != nullptr ? const_cast<void *>(p) : nullptr;
    a->hostPointer = b != nullptr && b->device >= 0 ? nullptr : const_cast<void *>(p);
    return cudaSuccess;
}

} // extern "C"
