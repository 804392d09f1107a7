// What a .cu file finds in place of the device compiler's language when it is compiled for the
// host: included before it (-include) by an ordinary C++17 compiler. Threads of a block take turns
// on one host thread; see fiber.cc. What has no counterpart here (floating-point atomics, textures,
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
enum class Meeting { shuffle, ballot, sync };
// Of the lanes in mask: `bits` of lane `from`, or (ballot) a mask of the lanes whose bits are not
// 0.
uint64_t meet(Meeting kind, unsigned mask, uint64_t bits, int from);
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

// ---- Atomics: integers only, of the types that the device has ----

namespace fakegpu
{
template <typename T, typename F> T atomic(T *p, F f)
{
    const T old = *p;
    *p = f(old);
    return old;
}
} // namespace fakegpu

#define FAKEGPU_ATOMICS(T)                                                                         \
    inline T atomicExch(T *p, T v)                                                                 \
    {                                                                                              \
        return ::fakegpu::atomic(p, [v](T) { return v; });                                         \
    }                                                                                              \
    inline T atomicCAS(T *p, T expected, T v)                                                      \
    {                                                                                              \
        return ::fakegpu::atomic(p, [=](T old) { return old == expected ? v : old; });             \
    }                                                                                              \
    inline T atomicAdd(T *p, T v)                                                                  \
    {                                                                                              \
        return ::fakegpu::atomic(                                                                  \
            p, [v](T old) { return (T)((unsigned long long)old + (unsigned long long)v); });       \
    }
#define FAKEGPU_ATOMIC_ORDER(T)                                                                    \
    inline T atomicMax(T *p, T v)                                                                  \
    {                                                                                              \
        return ::fakegpu::atomic(p, [v](T old) { return v > old ? v : old; });                     \
    }                                                                                              \
    inline T atomicMin(T *p, T v)                                                                  \
    {                                                                                              \
        return ::fakegpu::atomic(p, [v](T old) { return v < old ? v : old; });                     \
    }                                                                                              \
    inline T atomicOr(T *p, T v)                                                                   \
    {                                                                                              \
        return ::fakegpu::atomic(p, [v](T old) { return old | v; });                               \
    }                                                                                              \
    inline T atomicAnd(T *p, T v)                                                                  \
    {                                                                                              \
        return ::fakegpu::atomic(p, [v](T old) { return old & v; });                               \
    }                                                                                              \
    inline T atomicXor(T *p, T v)                                                                  \
    {                                                                                              \
        return ::fakegpu::atomic(p, [v](T old) { return old ^ v; });                               \
    }
FAKEGPU_ATOMICS(int)
FAKEGPU_ATOMICS(unsigned)
FAKEGPU_ATOMICS(unsigned long long)
FAKEGPU_ATOMIC_ORDER(int)
FAKEGPU_ATOMIC_ORDER(unsigned)
FAKEGPU_ATOMIC_ORDER(long long)
FAKEGPU_ATOMIC_ORDER(unsigned long long)
inline int atomicSub(int *p, int v)
{
    return atomicAdd(p, -v);
}
inline unsigned atomicSub(unsigned *p, unsigned v)
{
    return atomicAdd(p, 0u - v);
}
#undef FAKEGPU_ATOMICS
#undef FAKEGPU_ATOMIC_ORDER

// ---- Loads and stores with hints ----

template <typename T> T __ldg(const T *p)
{
    return *p;
}
template <typename T> T __ldcg(const T *p)
{
    return *p;
}
template <typename T> T __ldca(const T *p)
{
    return *p;
}
template <typename T> T __ldcs(const T *p)
{
    return *p;
}
template <typename T> T __ldlu(const T *p)
{
    return *p;
}
template <typename T> T __ldcv(const T *p)
{
    return *p;
}
template <typename T> void __stwb(T *p, T v)
{
    *p = v;
}
template <typename T> void __stcg(T *p, T v)
{
    *p = v;
}
template <typename T> void __stcs(T *p, T v)
{
    *p = v;
}
template <typename T> void __stwt(T *p, T v)
{
    *p = v;
}

// ---- Integers, bits, mathematics ----

inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
inline int __clz(int v)
{
    return v == 0 ? 32 : __builtin_clz((unsigned)v);
}
inline int __clzll(long long v)
{
    return v == 0 ? 64 : __builtin_clzll((unsigned long long)v);
}
inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
inline int __mulhi(int a, int b)
{
    return (int)(((long long)a * b) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)(((uint64_t)a * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)(((wide)a * b) >> 64);
}

#define FAKEGPU_BITS(name, To, From)                                                               \
    inline To name(From v)                                                                         \
    {                                                                                              \
        To to;                                                                                     \
        static_assert(sizeof(to) == sizeof(v), "the same bits");                                   \
        memcpy(&to, &v, sizeof(to));                                                               \
        return to;                                                                                 \
    }
FAKEGPU_BITS(__float_as_int, int, float)
FAKEGPU_BITS(__float_as_uint, unsigned, float)
FAKEGPU_BITS(__int_as_float, float, int)
FAKEGPU_BITS(__uint_as_float, float, unsigned)
FAKEGPU_BITS(__double_as_longlong, long long, double)
FAKEGPU_BITS(__longlong_as_double, double, long long)
#undef FAKEGPU_BITS

inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
inline int __float2int_rn(float v)
{
    return (int)rintf(v);
}
inline int __float2int_rz(float v)
{
    return (int)v;
}
inline float __int2float_rn(int v)
{
    return (float)v;
}
inline float __uint2float_rn(unsigned v)
{
    return (float)v;
}
inline float __double2float_rn(double v)
{
    return (float)v;
}
inline float __saturatef(float v)
{
    return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f;
}

// As in the programming guide's table: one step of float32 around the exact value at most.
inline float rsqrtf(float v)
{
    return (float)(1.0 / sqrt((double)v));
}
inline double rsqrt(double v)
{
    return 1.0 / sqrt(v);
}

#define FAKEGPU_MIN_MAX(T)                                                                         \
    inline T min(T a, T b)                                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    inline T max(T a, T b)                                                                         \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
FAKEGPU_MIN_MAX(int)
FAKEGPU_MIN_MAX(unsigned)
FAKEGPU_MIN_MAX(long)
FAKEGPU_MIN_MAX(unsigned long)
FAKEGPU_MIN_MAX(long long)
FAKEGPU_MIN_MAX(unsigned long long)
#undef FAKEGPU_MIN_MAX
inline unsigned min(unsigned a, int b)
{
    return min(a, (unsigned)b);
}
inline unsigned min(int a, unsigned b)
{
    return min((unsigned)a, b);
}
inline unsigned max(unsigned a, int b)
{
    return max(a, (unsigned)b);
}
inline unsigned max(int a, unsigned b)
{
    return max((unsigned)a, b);
}
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
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
