// Stacks that take turns on one host thread: the threads of a block. Switching saves the registers
// that a call must keep (x86-64), or uses ucontext.
#pragma once

#include <cstddef>

namespace fakegpu
{

struct Fiber {
    void *sp;           // where it stopped (or its ucontext_t)
    Fiber *next;        // in the list of idle ones
    unsigned thread;    // of the block, when it runs or waits
    void *fake_stack;   // AddressSanitizer's
    void *tsan;         // ThreadSanitizer's
    const void *bottom; // of the stack; null: the host thread's own
    size_t size;
};

// A fiber that calls entry() when first switched to; entry never returns. Its stack has pages
// without access below it. Never freed: they are kept for the next launch.
Fiber *fiber_open(void (*entry)());
// Stops `from`, the one that runs, and goes on with `to`.
void fiber_switch(Fiber *from, Fiber *to);
// To be called first on a fiber's own stack.
void fiber_entered();

} // namespace fakegpu
