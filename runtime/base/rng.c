/* Counter-based random numbers: Philox4x32-10, and the keyed permutation of an index.
 *
 * Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11. The key's two
 * words hold seed, purpose and stream mixed by SplitMix64 (Steele, Lea, Flood, OOPSLA'14), so that
 * every (seed, purpose, stream) has a stream of its own; the counter's four words hold index and
 * block. */
#include "runtime/base/base.h"

#include <math.h>

static uint64_t mix(uint64_t x) /* SplitMix64's finalizer: a bijection */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t tr_philox_key(uint64_t seed, tr_rng_purpose purpose, uint32_t stream)
{
    return mix(mix(seed) ^ ((uint64_t)purpose << 32 | stream));
}

tr_philox tr_philox_block(uint64_t key, uint64_t index, uint32_t block)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = block, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (tr_philox){{c0, c1, c2, c3}};
}

tr_philox tr_philox_at(uint64_t seed, tr_rng_purpose purpose, uint32_t stream, uint64_t index,
                       uint32_t block)
{
    return tr_philox_block(tr_philox_key(seed, purpose, stream), index, block);
}

void tr_normal2(uint32_t a, uint32_t b, float out[2])
{
    double u = ((double)a + 0.5) * 0x1p-32, angle = 6.283185307179586 * (double)b * 0x1p-32;
    double radius = sqrt(-2.0 * log(u));
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

uint64_t tr_permute(uint64_t seed, uint64_t round, uint64_t n, uint64_t i)
{
    if (n < 2) return 0;
    unsigned half = 1; /* bits of each half of the network: 4^half >= n */
    while (half < 32 && (uint64_t)1 << (2 * half) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t key = tr_philox_key(seed, TR_RNG_SHUFFLE, 0);
    do { /* cycle walking: at most 4 steps expected */
        uint64_t left = i >> half, right = i & mask;
        for (uint32_t r = 0; r < 4; r++) {
            tr_philox f = tr_philox_block(key, round * 4 + r, (uint32_t)right);
            uint64_t next = left ^ (f.v[0] & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
