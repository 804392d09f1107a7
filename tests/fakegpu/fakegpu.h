// The stand-in's inside: what its parts (CUDA runtime, cuBLASLt, cuDNN, NCCL, NVML) share. C++17.
//
// One engine a process. Work is put into streams as tasks and runs later, in an order that events
// allow and that is otherwise as unhelpful as the seed makes it: FAKEGPU_ORDER=lazy (default; only
// what a wait needs runs, as late as it can), eager, or a number (seeded choice). A thread of the
// engine's own moves work on when the host has called nothing for some milliseconds, as a host may
// wait for another process. Tasks run one at a time, holding the engine's lock; device memory can
// be touched by tasks only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <cuda_runtime_api.h>

namespace fakegpu
{

// ---- Tasks ----

// Returns true when it is done; false: not yet, ask again later (a collective waiting for its
// peers). Must not call the API. Whatever it captured by value lives as long as the task; a task
// that was recorded in a graph runs many times, so state of one run starts afresh in `begin`.
struct Task {
    const char *what;            // the API call or kernel, for messages
    std::function<void()> begin; // may be empty: called before each first `step`
    std::function<bool()> step;
    std::function<void()> abandon; // may be empty: the task will not be asked again (abort)
};

// Puts a task into a stream (or records it where the stream is being captured). Fails as the
// runtime would: an unknown or destroyed stream, a broken capture, a sticky error.
cudaError_t enqueue(cudaStream_t stream, Task task);

// ---- Checks ----

// A violation of what the real libraries demand or would do wrong silently: printed with the call
// and the text, and the process ends with status 99, so that no test can miss it. For what the real
// library answers with an error code, return that code instead.
[[noreturn]] void violation(const char *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum class Where { device, pinned, pageable };
Where where(const void *p);
// The bytes [p, p + n) lie inside one live device allocation; else a violation naming the operand.
// To be called when the call is made, and again by the task when it runs (the memory may be freed
// meanwhile).
void need_device(const char *call, const char *operand, const void *p, size_t n);
// p is a multiple of `to`.
void need_aligned(const char *call, const char *operand, const void *p, size_t to);

// ---- Faults ----

// Every API function starts with it: counts the call, and is true when FAKEGPU_FAIL says that this
// one fails. FAKEGPU_FAIL="N" (the N-th call of all, from 1), "NAME:N" (the N-th call of NAME),
// optionally
// "@RANK" behind (only in the process with that OMPI_COMM_WORLD_RANK). FAKEGPU_COUNT=PATH: at exit
// the number of calls by name is written there (PATH.RANK), so that a test can go through all of
// them.
bool fails(const char *call);

// What FAKEGPU_BROKEN says of a library's algorithm: a list, comma-separated, of "LIBRARY:NUMBER"
// (or "LIBRARY:*"), each of which fails whenever it is called; with a "!" behind, the call goes
// well, and the work spoils the context; with a "~" behind, it is only slow: it counts as
// SLOW_PIECES pieces of work where these are the clock. "@RANK" behind all: as with FAKEGPU_FAIL.
// Read at each call.
enum class Broken { no, call, context, slow };
constexpr int SLOW_PIECES = 100;
Broken broken(const char *library, int64_t algorithm);
// The task that runs counts as so many pieces of work more.
void take_longer(int pieces);
// A task's work went wrong on the device: from now on every call gives this error.
void spoil(cudaError_t e);

} // namespace fakegpu
