/* What every .cu file starts from: launching, shared memory, element types, reductions over a warp
 * and a block. Kernels are templates over the element type; what C calls is behind extern "C"
 * functions.
 *
 * Rules that keep the kernels fit for recording, for bitwise repeatability and for the stand-in of
 * tests/fakegpu, which runs them on the host:
 *  - launches only by TR_LAUNCH, shared memory only by TR_SHARED and TR_SHARED_BYTES;
 *  - 16 bytes at once by tr_pack; written to global memory by tr_put;
 *  - no floating-point atomics: partial results go to the workspace and are summed in a fixed
 * order;
 *  - no warp-synchronous code without a mask: __shfl_*_sync, __ballot_sync, __syncthreads;
 *  - no textures, cooperative groups, fast-math intrinsics, inline assembly (but tr_exp2_below
 *    here, mma.cuh and lap.cu's clock);
 *  - a grid is never empty: launchers return TR_OK for zero elements. */
#ifndef TR_CUDA_DEVICE_CUH
#define TR_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <string.h>

#include "kernels/cuda/launch.h"

#ifndef TR_LAUNCH /* else the compiler's stand-in defines these */
/* Evaluates to a tr_status. kernel: a name or TR_KERNEL(name<T, ...>); shared: dynamic bytes. */
#define TR_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    (kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__),                                 \
     tr_cuda_check(cudaGetLastError(), "launch of " #kernel))
/* `type name[n]` in the block's shared memory; contents are undefined at first. */
#define TR_SHARED(type, name, n) __shared__ type name[n]
/* The dynamic shared memory of the launch. */
#define TR_SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
#endif
/* A template instance with commas, as one macro argument. */
#define TR_KERNEL(...) __VA_ARGS__

/* Before a loop with a constant number of rounds over an array that should stay in registers. */
#ifdef __CUDACC__
#define TR_UNROLL _Pragma("unroll")
#define TR_NO_UNROLL                                                                               \
    _Pragma("unroll 1") /* where several rounds at a time would need too many registers */
#else
#define TR_UNROLL
#define TR_NO_UNROLL
#endif

enum { TR_WARP = 32 };
#define TR_ALL_LANES 0xffffffffu

/* ---- Element types ---- */

template <typename T> __device__ inline float tr_load(T v);
template <> __device__ inline float tr_load<float>(float v)
{
    return v;
}
template <> __device__ inline float tr_load<__nv_bfloat16>(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
template <> __device__ inline float tr_load<__half>(__half v)
{
    return __half2float(v);
}
template <typename T> __device__ inline T tr_store(float v); /* round to nearest even */
template <> __device__ inline float tr_store<float>(float v)
{
    return v;
}
template <> __device__ inline __nv_bfloat16 tr_store<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ inline __half tr_store<__half>(float v)
{
    return __float2half_rn(v);
}

/* N elements that are read and written at once: 16 bytes with N = 16 / sizeof(T). */
template <typename T, int N> struct alignas(sizeof(T) * N) tr_pack {
    T v[N];
};

/* Writes a pack to global memory by stores of 16 bytes, or one of 8 or 4 where it has no more. An
 * assignment is taken apart where the compiler sees what the elements are made of: nvcc 13 then
 * writes each by itself, and memory moves a sector of 32 bytes for 2. It cannot look into this
 * store. */
template <typename T, int N> __device__ inline void tr_put(T *to, const tr_pack<T, N> &pack)
{
    constexpr size_t nbytes = sizeof(T) * N;
    if constexpr (nbytes % sizeof(uint4) == 0) {
        uint4 words[nbytes / sizeof(uint4)];
        memcpy(words, &pack, nbytes);
        TR_UNROLL
        for (int i = 0; i < (int)(nbytes / sizeof(uint4)); i++)
            __stwb(reinterpret_cast<uint4 *>(to) + i, words[i]);
    } else if constexpr (nbytes == sizeof(uint2)) {
        uint2 words;
        memcpy(&words, &pack, nbytes);
        __stwb(reinterpret_cast<uint2 *>(to), words);
    } else if constexpr (nbytes == sizeof(unsigned) && N > 1) {
        unsigned word;
        memcpy(&word, &pack, nbytes);
        __stwb(reinterpret_cast<unsigned *>(to), word);
    } else {
        static_assert(N == 1, "a pack of 4 or 8 bytes, or whole 16");
        *to = pack.v[0];
    }
}

/* V elements as they lie in memory: 16 bytes, or one element. Kept in words until they are needed,
 * as a register would else hold half a word: to take each out of a tr_pack that was loaded costs
 * two instructions. */
template <typename T, int V> struct tr_words {
    static_assert(sizeof(T) * V == sizeof(uint4), "16 bytes, or one element");
    using type = uint4;
};
template <typename T> struct tr_words<T, 1> {
    using type = T;
};
template <typename T, int V> using tr_words_t = typename tr_words<T, V>::type;

template <typename T, int V> __device__ inline tr_words_t<T, V> tr_read_words(const T *p)
{
    return *reinterpret_cast<const tr_words_t<T, V> *>(p);
}

__device__ inline float tr_float_of(unsigned bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

template <typename T> __device__ inline void tr_floats(unsigned word, float *v);
template <> __device__ inline void tr_floats<float>(unsigned word, float *v)
{
    v[0] = tr_float_of(word);
}
template <> __device__ inline void tr_floats<__nv_bfloat16>(unsigned word, float *v)
{
    v[0] = tr_float_of(word << 16);
    v[1] = tr_float_of(word & 0xffff0000u);
}
template <> __device__ inline void tr_floats<__half>(unsigned word, float *v)
{
    __half2_raw pair;
    memcpy(&pair, &word, sizeof pair);
    const float2 f = __half22float2(__half2(pair));
    v[0] = f.x;
    v[1] = f.y;
}

/* The V elements as float32. */
template <typename T, int V>
__device__ inline void tr_unpack(const tr_words_t<T, V> &words, float *v)
{
    if constexpr (V == 1) {
        v[0] = tr_load(words);
    } else {
        tr_floats<T>(words.x, v);
        tr_floats<T>(words.y, v + V / 4);
        tr_floats<T>(words.z, v + V / 2);
        tr_floats<T>(words.w, v + V / 4 * 3);
    }
}

/* A pointer that an operand lacks hinders nothing. */
static inline bool tr_is_aligned(const void *p, size_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

/* Runs `...` with `T` being the activation type. */
#define TR_BY_TYPE(dtype, T, ...)                                                                  \
    switch (dtype) {                                                                               \
    case TR_BF16: {                                                                                \
        using T = __nv_bfloat16;                                                                   \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case TR_F16: {                                                                                 \
        using T = __half;                                                                          \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    default: {                                                                                     \
        using T = float;                                                                           \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    }

/* ---- Reductions ---- */

template <typename V> __device__ inline V tr_warp_sum(V v)
{
    for (int offset = TR_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(TR_ALL_LANES, v, offset);
    return v;
}

template <typename V> __device__ inline V tr_warp_max(V v)
{
    for (int offset = TR_WARP / 2; offset > 0; offset /= 2) {
        const V other = __shfl_xor_sync(TR_ALL_LANES, v, offset);
        v = other > v ? other : v;
    }
    return v;
}

/* Of all threads of the block (a multiple of 32, at most 1024), to all of them; `part` holds 32
 * values and may be used again after the call. Every thread of the block must take part. */
template <typename V> __device__ inline V tr_block_sum(V v, V *part)
{
    const int lane = threadIdx.x % TR_WARP, warp = threadIdx.x / TR_WARP;
    const int warps = (blockDim.x + TR_WARP - 1) / TR_WARP;
    v = tr_warp_sum(v);
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    V sum = part[0];
    for (int w = 1; w < warps; w++) sum += part[w];
    return sum;
}

template <typename V> __device__ inline V tr_block_max(V v, V *part)
{
    const int lane = threadIdx.x % TR_WARP, warp = threadIdx.x / TR_WARP;
    const int warps = (blockDim.x + TR_WARP - 1) / TR_WARP;
    v = tr_warp_max(v);
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    V most = part[0];
    for (int w = 1; w < warps; w++) most = part[w] > most ? part[w] : most;
    return most;
}

/* ---- Grids ---- */

/* A kernel goes over a large array in one of three ways:
 *  - a block a piece (`most`: what a grid may have): blocks are short, and the device deals out the
 *    next one whenever one ends, so that all multiprocessors end within one block's time;
 *  - in whole rounds (tr_rounds): blocks stride over the array;
 *  - sums: as many blocks as the shapes alone say, because their partial sums are added in turn. */

/* Blocks of `per_block` items for n of them, at most `most` (loops stride over the rest). */
static inline unsigned tr_blocks(size_t n, size_t per_block, size_t most)
{
    const size_t blocks = (n + per_block - 1) / per_block;
    return (unsigned)(blocks < most ? blocks : most);
}

/* An H100's multiprocessors times 24: a whole number of rounds with 1, 2, 3, 4, 6 or 8 blocks at a
 * time on each, which is what registers leave of blocks of 256 threads (or 5: then 24 of 25 places
 * are taken). Launchers do not know the device, so others use the same number, and pay with a last
 * round that is not full: with 8 at a time an A100's 108 multiprocessors have work for 3.7 rounds
 * of 4, a B200's 148 for 2.7 of 3, so that up to 11 % of the time goes unused. */
enum { TR_ROUND_BLOCKS = 24 * 132 };

/* tr_blocks for blocks that stride. Not for sums: each item is on its own. */
static inline unsigned tr_rounds(size_t n, size_t per_block)
{
    return tr_blocks(n, per_block, TR_ROUND_BLOCKS);
}

#define TR_LOG2_E 1.4426950408889634f

/* 2^x for x <= 0 by the hardware alone (good to 2^-22.5 of itself; PTX ISA, "ex2"). Below 2^-126:
 * 0. NaN stays. */
__device__ inline float tr_exp2_below(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* e^x for x <= 0, of rows of T below their largest value. For 16-bit types two instructions where
 * expf takes nine: with those a row's arithmetic took longer than its bytes on an H200. The
 * product's rounding adds |x| 2^-24 of a term that is the smaller the larger |x| is. */
template <typename T> __device__ inline float tr_exp_below(float x)
{
    return tr_exp2_below(x * TR_LOG2_E);
}
template <> __device__ inline float tr_exp_below<float>(float x)
{
    return expf(x);
}

/* Gelu's gate for the tanh form: sigmoid(2u) = (1 + tanh(u)) / 2, and d(2u)/dx in *slope. */
__device__ inline float tr_gelu_gate(float x, float *slope)
{
    const float z = x * x;
    *slope = 1.5957691216057308f + 0.21406444881780f * z;
    return 1.0f / (1.0f + expf(-x * (1.5957691216057308f + 0.07135481627260f * z)));
}

/* dy * act'(..) from what is saved: y for relu, sigmoid and tanh, else x. */
__device__ inline float tr_activate_grad(tr_act act, float dy, float saved)
{
    switch (act) {
    case TR_ACT_RELU:
        return saved > 0.0f ? dy : 0.0f;
    case TR_ACT_GELU: {
        const float phi = 0.5f * (1.0f + erff(saved * 0.70710678118654752440f));
        return dy * (phi + saved * 0.39894228040143267794f * expf(-0.5f * saved * saved));
    }
    case TR_ACT_GELU_TANH: {
        float slope;
        const float gate = tr_gelu_gate(saved, &slope);
        return dy * (gate + saved * gate * (1.0f - gate) * slope);
    }
    case TR_ACT_SILU: {
        const float gate = 1.0f / (1.0f + expf(-saved));
        return dy * (gate + saved * gate * (1.0f - gate));
    }
    case TR_ACT_SIGMOID:
        return dy * saved * (1.0f - saved);
    case TR_ACT_TANH:
        return dy * (1.0f - saved * saved);
    default:
        return dy;
    }
}

/* The activation of tr_op.act, in float32; NaN stays NaN. */
__device__ inline float tr_activate(tr_act act, float x)
{
    switch (act) {
    case TR_ACT_RELU:
        return x < 0.0f ? 0.0f : x;
    case TR_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case TR_ACT_GELU_TANH: {
        const float u = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.0f + tanhf(u));
    }
    case TR_ACT_SILU:
        return x / (1.0f + expf(-x));
    case TR_ACT_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case TR_ACT_TANH:
        return tanhf(x);
    default:
        return x;
    }
}

#endif
