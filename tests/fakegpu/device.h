// What a .cu file finds in place of the device compiler's language when it is compiled for the
// host: included before it (-include) by an ordinary C++17 compiler. Threads of a block take turns
// on one host thread; see fiber.cc. Here: launches, shared memory, threads that meet; what a thread
// does by itself is in intrinsics.h. What has no counterpart (floating-point atomics, textures,
// cooperative groups, clocks, __activemask) is missing on purpose: kernels that use it do not
// compile.
#pragma once

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <math.h>
#include <stdlib.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "tests/fakegpu/intrinsics.h"
#include "tests/fakegpu/matrix.h"

namespace fakegpu
{

// ---- The running thread's place; one kernel runs at a time ----

struct Built {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern Built built;
extern uint64_t block_epoch; // another one for every block that is run

#define threadIdx (::fakegpu::built.thread)
#define blockIdx  (::fakegpu::built.block)
#define blockDim  (::fakegpu::built.block_dim)
#define gridDim   (::fakegpu::built.grid_dim)
#undef __launch_bounds__
#define __launch_bounds__(...)

// ---- Launches ----

// A kernel and its arguments, of the types of its parameters.
template <typename... P> struct Call {
    void (*kernel)(P...);
    std::tuple<P...> args;
};

// Runs threads of the launch until another fiber goes on with them.
bool next_thread();
template <typename... P> void run_threads(const void *p)
{
    const auto *call = static_cast<const Call<P...> *>(p);
    do {
        std::apply(call->kernel, call->args);
    } while (next_thread());
}

struct Launch {
    const char *what;
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    void (*threads)(const void *call);
    std::shared_ptr<const void> call;
};
// As the launch followed by cudaGetLastError.
cudaError_t launch(Launch l, cudaStream_t stream);

template <typename... P, typename... A>
cudaError_t launch(const char *what, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                   cudaStream_t stream, A &&...args)
{
    static_assert(sizeof...(P) == sizeof...(A), "a launch gives every parameter");
    static_assert((std::is_trivially_copyable_v<P> && ...), "parameters are copied as bytes");
    auto call = std::make_shared<const Call<P...>>(
        Call<P...>{kernel, std::tuple<P...>(static_cast<P>(args)...)});
    return launch(Launch{what, reinterpret_cast<const void *>(kernel), grid, block, shared,
                         run_threads<P...>, std::move(call)},
                  stream);
}

#define TR_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    (tr_cuda_check(::fakegpu::launch(#kernel, kernel, dim3(grid), dim3(block), (shared), (stream), \
                                     ##__VA_ARGS__),                                               \
                   "launch of " #kernel))

// ---- Shared memory ----

// One array a call site: blocks run one after the other. Bytes are 0xff (NaN, -1) when a block
// first comes here; guards on both sides are checked when it ends.
struct SharedHead {
    uint64_t epoch;
    size_t nbytes;
    SharedHead *next;
    const char *name;
    unsigned char *guard[2];
    void *touches; // races.cc
};
enum { SHARED_GUARD = 64 };
void open_shared(SharedHead *head, unsigned char *bytes, size_t nbytes, const char *name);
template <typename T, size_t N> struct Shared {
    SharedHead head;
    alignas(16) unsigned char bytes[SHARED_GUARD + sizeof(T) * N + SHARED_GUARD];
    using Array = T[N];
    Array &get(const char *name)
    {
        if (head.epoch != block_epoch) open_shared(&head, bytes, sizeof(T) * N, name);
        return reinterpret_cast<Array &>(bytes[SHARED_GUARD]);
    }
};
unsigned char *dynamic_shared();

#define TR_SHARED(type, name, n)                                                                   \
    static ::fakegpu::Shared<type, (n)> name##_of_block;                                           \
    type(&name)[n] = name##_of_block.get(#name)
#define TR_SHARED_BYTES(name) unsigned char *const name = ::fakegpu::dynamic_shared()

// ---- Meeting other threads ----

enum class Reduce { none, count, all, any };
int barrier(Reduce reduce, bool predicate);
enum class Meeting { shuffle, ballot, sync, mma, ldmatrix };
// What the last lane to come does with the bits of all, before they go on.
using Together = void (*)(const uint64_t (&bits)[32]);
// Of the lanes in mask: `bits` of lane `from`, or (ballot) a mask of the lanes whose bits are not
// 0.
uint64_t meet(Meeting kind, unsigned mask, uint64_t bits, int from, Together together = nullptr);
// All 32 lanes of the warp, each with something of its own; none may have ended.
void meet_all(Meeting kind, void *mine, Together together);
// n bytes from p on are the block's shared memory.
bool in_shared(const void *p, size_t n);
size_t copies_under_way(); // that no thread has waited for (matrix.cc)
[[noreturn]] void trap();

inline int lane()
{
    const Built &b = built;
    return (int)((b.thread.x + b.block_dim.x * (b.thread.y + b.block_dim.y * b.thread.z)) % 32);
}

template <typename T> T shuffle(unsigned mask, T v, int from)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || std::is_same_v<T, __half> ||
                      std::is_same_v<T, __nv_bfloat16>,
                  "the device shuffles 4 and 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof(T));
    bits = meet(Meeting::shuffle, mask, bits, from);
    memcpy(static_cast<void *>(&v), &bits, sizeof(T));
    return v;
}

} // namespace fakegpu

constexpr int warpSize = 32;

inline void __syncthreads()
{
    ::fakegpu::barrier(::fakegpu::Reduce::none, false);
}
inline int __syncthreads_count(int p)
{
    return ::fakegpu::barrier(::fakegpu::Reduce::count, p != 0);
}
inline int __syncthreads_and(int p)
{
    return ::fakegpu::barrier(::fakegpu::Reduce::all, p != 0);
}
inline int __syncthreads_or(int p)
{
    return ::fakegpu::barrier(::fakegpu::Reduce::any, p != 0);
}
inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    ::fakegpu::meet(::fakegpu::Meeting::sync, mask, 0, 0);
}
inline unsigned __ballot_sync(unsigned mask, int p)
{
    return (unsigned)::fakegpu::meet(::fakegpu::Meeting::ballot, mask, p != 0, 0);
}
inline int __any_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, p) != 0;
}
inline int __all_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, !p) == 0;
}

// Source lanes as in the programming guide's chapter on warp shuffles.
template <typename T> T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    const int lane = ::fakegpu::lane();
    return ::fakegpu::shuffle(mask, v, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32)
{
    const int lane = ::fakegpu::lane(), from = lane - (int)delta;
    return ::fakegpu::shuffle(mask, v, from < (lane & ~(width - 1)) ? lane : from);
}
template <typename T> T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32)
{
    const int lane = ::fakegpu::lane(), from = lane + (int)delta;
    return ::fakegpu::shuffle(mask, v, from > (lane | (width - 1)) ? lane : from);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32)
{
    const int lane = ::fakegpu::lane(), from = lane ^ with;
    return ::fakegpu::shuffle(mask, v, from > (lane | (width - 1)) ? lane : from);
}

inline void __threadfence()
{
}
inline void __threadfence_block()
{
}
inline void __threadfence_system()
{
}
[[noreturn]] inline void __trap()
{
    ::fakegpu::trap();
}

// ---- Templates of cuda_runtime.h that only the device compiler sees ----

template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return ::cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <typename... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, void (*kernel)(P...))
{
    return ::cudaFuncGetAttributes(out, reinterpret_cast<const void *>(kernel));
}
template <typename... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void (*kernel)(P...), int block,
                                                          size_t shared)
{
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        out, reinterpret_cast<const void *>(kernel), block, shared);
}
