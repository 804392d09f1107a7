/* What every file of loops shares: names with the level's suffix, the compile-time switch over
 * types, and conversions that gcc turns into vector code.
 *
 * A loop's body is an always-inline function that takes the type (and the activation) as arguments;
 * calls with constants make one plain loop each. */
#ifndef TR_CPU_LOOPS_VEC_H
#define TR_CPU_LOOPS_VEC_H

#include "kernels/cpu/loops/loops.h"

#include <math.h>
#include <string.h>

#ifndef TR_ISA
#define TR_ISA base
#endif
#define TR_PASTE2(a, b) a##_##b
#define TR_PASTE(a, b)  TR_PASTE2(a, b)
#define TR_LEVEL(name)  TR_PASTE(name, TR_ISA)
#define TR_LOOP(name)   TR_LEVEL(tr_loop_##name)

#define X(type, name, args) type TR_LOOP(name) args;
TR_CPU_LOOPS(X)
#undef X

#define TR_INLINE static inline __attribute__((always_inline))
#define TR_SIMD   _Pragma("omp simd")

/* Runs `call` with the constant T in place of the run-time type `t`. */
#define TR_BY_TYPE(t, call)                                                                        \
    do {                                                                                           \
        if ((t) == TR_BF16) {                                                                      \
            const tr_dtype T = TR_BF16;                                                            \
            call;                                                                                  \
        } else {                                                                                   \
            const tr_dtype T = TR_F32;                                                             \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* Runs `call` with the constant T, and the constant ACT in place of the run-time activation `a`. */
#define TR_BY_ACT_CASE(t, which, call)                                                             \
    case which: {                                                                                  \
        const tr_act ACT = which;                                                                  \
        TR_BY_TYPE(t, call);                                                                       \
        break;                                                                                     \
    }
#define TR_BY_TYPE_ACT(t, a, call)                                                                 \
    switch (a) {                                                                                   \
        TR_BY_ACT_CASE(t, TR_ACT_NONE, call)                                                       \
        TR_BY_ACT_CASE(t, TR_ACT_RELU, call)                                                       \
        TR_BY_ACT_CASE(t, TR_ACT_GELU, call)                                                       \
        TR_BY_ACT_CASE(t, TR_ACT_GELU_TANH, call)                                                  \
        TR_BY_ACT_CASE(t, TR_ACT_SILU, call)                                                       \
        TR_BY_ACT_CASE(t, TR_ACT_SIGMOID, call)                                                    \
        TR_BY_ACT_CASE(t, TR_ACT_TANH, call)                                                       \
    }

TR_INLINE uint32_t tr_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

TR_INLINE float tr_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Rounded to bfloat16 in the upper half, as tr_f32_to_bf16, without a branch. */
TR_INLINE uint32_t tr_rounded_bits(float f)
{
    const uint32_t u = tr_bits(f);
    return f != f ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
}

TR_INLINE tr_bf16 tr_round_bf16(float f)
{
    return (tr_bf16)(tr_rounded_bits(f) >> 16);
}

TR_INLINE float tr_load(tr_dtype t, const void *p, size_t i)
{
    return t == TR_BF16 ? tr_float((uint32_t)((const tr_bf16 *)p)[i] << 16) : ((const float *)p)[i];
}

TR_INLINE void tr_store(tr_dtype t, void *p, size_t i, float f)
{
    if (t == TR_BF16)
        ((tr_bf16 *)p)[i] = tr_round_bf16(f);
    else
        ((float *)p)[i] = f;
}

/* Two elements of bfloat16 at once, 2i and 2i + 1, which lie in one word: shifts and masks take
 * them apart without moving lanes. Coefficients and sums of a row of n then stand all first ones
 * before all second ones, (n + 1) / 2 behind: element e's at tr_pair_place. Float32 goes one by
 * one, in its own order. (Little endian, as all that this runs on.) */
typedef uint32_t __attribute__((aligned(2), may_alias)) tr_word;

TR_INLINE size_t tr_pair_place(tr_dtype t, size_t n, size_t e)
{
    return t != TR_BF16 ? e : e % 2 ? (n + 1) / 2 + e / 2 : e / 2;
}

/* Elements of a row of n that go in pairs. */
TR_INLINE size_t tr_paired(tr_dtype t, size_t n)
{
    return t == TR_BF16 ? n / 2 * 2 : 0;
}

TR_INLINE float tr_load_first(const void *p, size_t i)
{
    return tr_float(((const tr_word *)p)[i] << 16);
}

TR_INLINE float tr_load_second(const void *p, size_t i)
{
    return tr_float(((const tr_word *)p)[i] & 0xffff0000u);
}

TR_INLINE void tr_store_pair(void *p, size_t i, float first, float second)
{
    ((tr_word *)p)[i] = tr_rounded_bits(first) >> 16 | (tr_rounded_bits(second) & 0xffff0000u);
}

/* Element i on. */
TR_INLINE const void *tr_from(tr_dtype t, const void *p, size_t i)
{
    return (const char *)p + i * (t == TR_BF16 ? 2 : 4);
}

TR_INLINE void *tr_into(tr_dtype t, void *p, size_t i)
{
    return (char *)p + i * (t == TR_BF16 ? 2 : 4);
}

TR_INLINE size_t tr_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif
