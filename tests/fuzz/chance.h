/* What fuzzers that change their inputs by structure share: chance from a seed, and numbers at the
 * ends of ranges. */
#ifndef TR_FUZZ_CHANCE_H
#define TR_FUZZ_CHANCE_H

#include "runtime/base/base.h"

/* libFuzzer's change of bytes in place, at most `most` of them; how many there are then. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most);

typedef struct {
    uint64_t state;
} chance;

/* SplitMix64. */
static inline uint64_t chance_bits(chance *c)
{
    uint64_t z = c->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [0, n). */
static inline size_t chance_pick(chance *c, size_t n)
{
    return n > 0 ? (size_t)(chance_bits(c) % n) : 0;
}

/* Mostly small, or at an end of some type's range. */
static inline int64_t chance_whole(chance *c)
{
    static const int64_t ends[] = {INT8_MIN,   INT8_MAX,      UINT8_MAX, INT16_MAX,
                                   UINT16_MAX, INT32_MIN,     INT32_MAX, UINT32_MAX,
                                   INT64_MIN,  INT64_MAX,     1 << 20,   1ll << 40,
                                   1ll << 62,  INT64_MIN + 1, -1,        0};
    const size_t how = chance_pick(c, 8);
    if (how < 4) return (int64_t)chance_pick(c, 9) - 2;
    if (how < 6) return (int64_t)chance_pick(c, 70);
    const uint64_t end = (uint64_t)ends[chance_pick(c, TR_COUNT(ends))];
    return (int64_t)(how == 6 ? end : end + chance_pick(c, 3) - 1);
}

static inline double chance_real(chance *c)
{
    static const double some[] = {
        0,        1,         -1,  0.5, 2,   1e-5,      1e-12,    1e30,         -1e30, 3.5e38, 1e-45,
        INFINITY, -INFINITY, NAN, 6,   255, 1.0 / 255, 0.044715, 0.7978845608, 1.702, 1e300};
    return chance_pick(c, 3) ? some[chance_pick(c, TR_COUNT(some))]
                             : (double)((int64_t)chance_pick(c, 2001) - 1000) / 128;
}

#endif
