// Races of a block's threads in shared memory (races.cc): what kernel.cc tells it.
#pragma once

#include <cstddef>

namespace fakegpu
{

struct SharedHead;

// A block begins, with so many bytes of dynamic shared memory at `dynamic`.
void races_begin_block(const void *dynamic, size_t nbytes);
// An array of the block, seen for the first time in it.
void races_see(SharedHead *head, const void *bytes);
// All threads of the block have met: nobody's accesses so far race with those to come.
void races_pass_barrier();
// The same of one warp.
void races_pass_warp(unsigned warp);

// Of kernel.cc: the thread that runs, and its kernel.
unsigned running_thread();
const char *running_kernel();

} // namespace fakegpu
