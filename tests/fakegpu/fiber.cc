// Fibers (fiber.h). A switch is six pushes, an exchange of stack pointers and six pops. Stacks
// start at different distances from a page boundary, or all threads of a block would meet in the
// same cache lines.
#include "tests/fakegpu/fiber.h"

#include <cstdint>
#include <cstring>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakegpu/fakegpu.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace fakegpu
{

namespace
{

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t stack_size = 256 << 10; // frames are larger there
#else
constexpr size_t stack_size = 128 << 10;
#endif

Fiber *previous; // the one that was left by the last switch

} // namespace

#if defined(__x86_64__)
extern "C" void fakegpu_switch(void **save, void *load);
asm(R"(
    .text
    .p2align 4
    .type fakegpu_switch, @function
    .globl fakegpu_switch
    .hidden fakegpu_switch
fakegpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size fakegpu_switch, .-fakegpu_switch
)");
#endif

Fiber *fiber_open(void (*entry)())
{
    static unsigned opened; // under the engine's lock, as all of this
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(nullptr, stack_size + page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at, page, PROT_NONE) != 0)
        violation("launch", "no memory for the stack of a thread");
    auto *f = new Fiber{};
    f->bottom = static_cast<char *>(at) + page;
    f->size = stack_size;
    const size_t stagger = (opened++ % 32) * 64;
#if defined(__x86_64__)
    auto *top =
        reinterpret_cast<uintptr_t *>(static_cast<char *>(at) + page + stack_size - 64 - stagger);
    *--top = 0; // entry's caller: none
    *--top = reinterpret_cast<uintptr_t>(entry);
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    f->sp = top;
#else
    auto *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = const_cast<void *>(f->bottom);
    context->uc_stack.ss_size = stack_size - stagger;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    f->sp = context;
#endif
#if defined(__SANITIZE_THREAD__)
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

static void fiber_arrived(Fiber *f);

void fiber_switch(Fiber *from, Fiber *to)
{
    previous = from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
#endif
#if defined(__SANITIZE_THREAD__)
    if (from->bottom == nullptr) from->tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if defined(__x86_64__)
    fakegpu_switch(&from->sp, to->sp);
#else
    ucontext_t here; // its frame lives until it is resumed
    from->sp = &here;
    swapcontext(&here, static_cast<ucontext_t *>(to->sp));
#endif
    fiber_arrived(from);
}

static void fiber_arrived(Fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(f != nullptr ? f->fake_stack : nullptr, &bottom, &size);
    if (previous->size == 0) { // the host thread: its stack is known from here on
        previous->bottom = bottom;
        previous->size = size;
    }
#else
    (void)f;
#endif
}

void fiber_entered()
{
    fiber_arrived(nullptr);
}

} // namespace fakegpu
