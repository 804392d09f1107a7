// What a thread of a kernel does by itself: atomics, loads and stores with hints, bits, arithmetic,
// by the names that the device compiler has built in. Blocks run one after the other and their
// threads take turns, so an atomic is an ordinary update. Part of device.h. Sources: the CUDA
// programming guide's chapter on C++ language extensions, and the CUDA math API reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <math.h>

// ---- Atomics: integers only, of the types that the device has ----

namespace fakegpu
{
// Not watched for races (races.cc).
template <typename T, typename F>
__attribute__((noinline, no_sanitize("thread"))) T atomic(T *p, F f)
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

namespace fakegpu
{
[[noreturn]] void misaligned(const char *access, const void *p);
} // namespace fakegpu

#define FAKEGPU_LOAD(name)                                                                         \
    template <typename T> T name(const T *p)                                                       \
    {                                                                                              \
        return *p;                                                                                 \
    }
#define FAKEGPU_STORE(name)                                                                        \
    template <typename T> void name(T *p, T v)                                                     \
    {                                                                                              \
        if (reinterpret_cast<uintptr_t>(p) % alignof(T) != 0) ::fakegpu::misaligned(#name, p);     \
        memcpy(static_cast<void *>(p), &v, sizeof v);                                              \
    }
FAKEGPU_LOAD(__ldg)
FAKEGPU_LOAD(__ldcg)
FAKEGPU_LOAD(__ldca)
FAKEGPU_LOAD(__ldcs)
FAKEGPU_LOAD(__ldlu)
FAKEGPU_LOAD(__ldcv)
FAKEGPU_STORE(__stwb)
FAKEGPU_STORE(__stcg)
FAKEGPU_STORE(__stcs)
FAKEGPU_STORE(__stwt)
#undef FAKEGPU_LOAD
#undef FAKEGPU_STORE

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
// Four products of bytes, added.
inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
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
