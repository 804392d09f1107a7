// Races in shared memory: two threads of a block touch one byte, at least one of them writes, and
// no barrier stands between them. Which of them comes first is chance on a device; here threads
// take turns, so that most such kernels give the right numbers all the same.
//
// Kernels are compiled with the compiler's instrumentation for ThreadSanitizer (-fsanitize=thread,
// CMakeLists.txt), which calls a function before every access to memory. Those functions are here,
// and not the sanitizer's own. An access outside the block's shared arrays costs two comparisons.
// For a byte inside, the last writer and the readers are known, with the time of their access: the
// number of barriers that the block had passed, and of __syncwarp that the warp had. Times of
// different blocks differ, so that nothing is cleared between them.
//
// Shuffles and votes order nothing, as on the device: values that pass through registers need no
// order. Atomics race with nobody. Global memory is not looked at.
#include "tests/fakegpu/races.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>

#include "tests/fakegpu/device.h"
#include "tests/fakegpu/engine.h"

namespace fakegpu
{

namespace
{

constexpr uint16_t several = 0xffff, no_warp = 0xffff;

// What is known of one byte.
struct Touch {
    uint32_t write_time, read_time; // barriers; 0: never
    uint16_t writer, reader;        // threads; `several` readers
    uint16_t write_turn, read_turn; // of the warp
    uint16_t read_warp;             // of all readers; no_warp: of several
    int32_t where;                  // the write: its code, from `anchor` on
};

struct Range {
    uintptr_t begin;
    size_t nbytes;
    bool has(uintptr_t p) const
    {
        return p - begin < nbytes;
    }
};

uint32_t now = 1;      // barriers of all blocks so far
uint16_t turn[32];     // by warp
Range dynamic, arrays; // arrays: from the first to the end of the last
SharedHead *seen;
Touch *dynamic_touches;
constexpr size_t dynamic_most = 256 << 10;

void anchor()
{
}

// "FILE:LINE", or what can be found out without addr2line.
std::string line_of(const void *code)
{
    Dl_info info;
    char text[1024];
    if (dladdr(code, &info) == 0 || info.dli_fname == nullptr) return "";
    const auto offset =
        reinterpret_cast<uintptr_t>(code) - 1 - reinterpret_cast<uintptr_t>(info.dli_fbase);
    snprintf(text, sizeof text, "addr2line -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
             (size_t)offset);
    FILE *pipe = popen(text, "r");
    if (pipe == nullptr) return "";
    const bool read = fgets(text, sizeof text, pipe) != nullptr;
    pclose(pipe);
    if (!read || text[0] == '?') return "";
    text[strcspn(text, " \n")] = '\0';
    const char *file = strrchr(text, '/');
    return std::string(" (") + (file != nullptr ? file + 1 : text) + ")";
}

[[noreturn]] void race(const char *array, size_t at, const Touch &t, bool wrote, bool writes,
                       const void *code)
{
    const unsigned other = wrote ? t.writer : t.reader;
    char who[32];
    if (other == several)
        snprintf(who, sizeof who, "several threads");
    else
        snprintf(who, sizeof who, "thread %u", other);
    const std::string there =
        wrote ? line_of(reinterpret_cast<const char *>(&anchor) + t.where) : "";
    violation(
        running_kernel(),
        "byte %zu of shared %s: %s %s it%s, thread %u %s it%s, and no barrier is between them", at,
        array, who, wrote ? "wrote" : "read", there.c_str(), running_thread(),
        writes ? "writes" : "reads", line_of(code).c_str());
}

void touch(const char *array, Touch *touches, size_t at, size_t n, bool writes, const void *code)
{
    const auto me = (uint16_t)running_thread(), warp = (uint16_t)(me / 32);
    for (size_t i = at; i < at + n; i++) {
        Touch &t = touches[i];
        if (t.write_time == now && t.writer != me &&
            !(t.writer / 32 == warp && t.write_turn != turn[warp]))
            race(array, i, t, true, writes, code);
        const bool read_before =
            t.read_time == now && !(t.read_warp == warp && t.read_turn != turn[warp]);
        if (writes) {
            if (read_before && t.reader != me) race(array, i, t, false, writes, code);
            t.write_time = now;
            t.writer = me;
            t.write_turn = turn[warp];
            t.where = (int32_t)(static_cast<const char *>(code) -
                                reinterpret_cast<const char *>(&anchor));
        } else if (!read_before) {
            t.read_time = now;
            t.reader = me;
            t.read_turn = turn[warp];
            t.read_warp = warp;
        } else if (t.reader != me) {
            t.reader = several;
            if (t.read_warp != warp) t.read_warp = no_warp;
        }
    }
}

// An access to one of the arrays, or beside them all.
void look(uintptr_t p, size_t n, bool writes, const void *code)
{
    if (dynamic.has(p)) {
        const size_t left = dynamic.nbytes - (p - dynamic.begin);
        touch("memory (dynamic)", dynamic_touches, p - dynamic.begin, n < left ? n : left, writes,
              code);
        return;
    }
    for (const SharedHead *h = seen; h != nullptr; h = h->next) {
        const Range r = {reinterpret_cast<uintptr_t>(h->guard[0]) + SHARED_GUARD, h->nbytes};
        if (!r.has(p)) continue;
        const size_t left = r.nbytes - (p - r.begin);
        touch(h->name, static_cast<Touch *>(h->touches), p - r.begin, n < left ? n : left, writes,
              code);
    }
}

inline void access(const volatile void *address, size_t n, bool writes, const void *code)
{
    const auto p = reinterpret_cast<uintptr_t>(address);
    if (arrays.has(p) || dynamic.has(p)) look(p, n, writes, code);
}

void *new_touches(size_t n)
{
    void *p = calloc(n, sizeof(Touch));
    if (p == nullptr)
        violation(running_kernel(), "no memory to watch %zu bytes of shared memory", n);
    return p;
}

} // namespace

void races_begin_block(const void *at, size_t nbytes)
{
    now++;
    seen = nullptr;
    arrays = {0, 0};
    dynamic = {reinterpret_cast<uintptr_t>(at), nbytes};
    if (nbytes > 0 && dynamic_touches == nullptr)
        dynamic_touches = static_cast<Touch *>(new_touches(dynamic_most));
}

void races_see(SharedHead *head, const void *bytes)
{
    if (head->touches == nullptr) head->touches = new_touches(head->nbytes);
    const auto from = reinterpret_cast<uintptr_t>(bytes), to = from + head->nbytes;
    const uintptr_t first = arrays.nbytes > 0 && arrays.begin < from ? arrays.begin : from;
    const uintptr_t end =
        arrays.nbytes > 0 && arrays.begin + arrays.nbytes > to ? arrays.begin + arrays.nbytes : to;
    arrays = {first, end - first};
    seen = head;
}

void races_pass_barrier()
{
    now++;
}

void races_pass_warp(unsigned warp)
{
    turn[warp]++;
}

} // namespace fakegpu

// ---- What the instrumentation calls ----

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER
#endif

#ifndef THREAD_SANITIZER // which has its own
#define CODE __builtin_return_address(0)
#define ACCESS(n)                                                                                  \
    void __tsan_read##n(void *p)                                                                   \
    {                                                                                              \
        fakegpu::access(p, n, false, CODE);                                                        \
    }                                                                                              \
    void __tsan_write##n(void *p)                                                                  \
    {                                                                                              \
        fakegpu::access(p, n, true, CODE);                                                         \
    }                                                                                              \
    void __tsan_unaligned_read##n(void *p)                                                         \
    {                                                                                              \
        fakegpu::access(p, n, false, CODE);                                                        \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *p)                                                        \
    {                                                                                              \
        fakegpu::access(p, n, true, CODE);                                                         \
    }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *p, size_t n)
{
    fakegpu::access(p, n, false, CODE);
}
void __tsan_write_range(void *p, size_t n)
{
    fakegpu::access(p, n, true, CODE);
}
void *__tsan_memcpy(void *to, const void *from, size_t n)
{
    fakegpu::access(from, n, false, CODE);
    fakegpu::access(to, n, true, CODE);
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n)
{
    fakegpu::access(from, n, false, CODE);
    fakegpu::access(to, n, true, CODE);
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int byte, size_t n)
{
    fakegpu::access(to, n, true, CODE);
    return memset(to, byte, n);
}
// What launchers need, which are in the same files: the counts of std::shared_ptr.
void __tsan_init()
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
int __tsan_atomic32_fetch_add(volatile int *p, int v, int)
{
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(volatile int *p, int v, int)
{
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_load(const volatile int *p, int)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
long __tsan_atomic64_load(const volatile long *p, int)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
}
#endif
