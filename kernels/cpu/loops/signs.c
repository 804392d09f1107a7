/* Sums of numbers with signs that are bits: a word of 32 turns 32 numbers by their top bits, so that a row of signs is a
 * thirty-second of the bytes of one of floats. gcc keeps the sums of a plain loop over 32 lanes in memory; vectors of its own
 * stay in registers. Two rows share each load. */
#include "kernels/cpu/loops/lanes.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { BLOCK = 64 }; /* words of a float32 sum */

/* TR_LANES numbers with the signs of the lowest bits of `w`. */
#ifdef __AVX512F__
/* The bits are a mask as they lie, which gcc makes of no plain loop: two thirds of the time of shifting them to the top. */
TR_INLINE tr_lanes turned(const float *x, uint32_t w)
{
    const __m512i v = _mm512_loadu_si512(x);
    return (tr_lanes)_mm512_mask_xor_epi32(v, (__mmask16)w, v, _mm512_set1_epi32(INT32_MIN));
}
#else
typedef uint32_t words __attribute__((vector_size(TR_LANE_BYTES)));

static const union {
    uint32_t bit[16];
    words v;
} top = {{31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16}};

TR_INLINE tr_lanes turned(const float *x, uint32_t w)
{
    const words bits = ((words){0} + w) << top.v;
    const tr_lanes v = *(const tr_lanes *)x;
    return (tr_lanes)((words)v ^ (bits & 0x80000000u));
}
#endif

TR_INLINE double total(tr_lanes v)
{
    double sum = 0.0;
    for (int i = 0; i < TR_LANES; i++) sum += (double)v[i];
    return sum;
}

TR_INLINE void two_rows(const float *x, const uint32_t *a, const uint32_t *b, size_t count,
                        double sums[2])
{
    sums[0] = sums[1] = 0.0;
    for (size_t from = 0; from < count; from += BLOCK) {
        const size_t end = tr_least(count, from + BLOCK);
        tr_lanes sa = {0}, sb = {0}, ta = {0}, tb = {0};
        for (size_t w = from; w < end; w++)
            for (int i = 0; i < 32; i += 2 * TR_LANES) {
                const float *xi = x + 32 * w + (size_t)i;
                sa += turned(xi, a[w] >> i);
                sb += turned(xi, b[w] >> i);
                ta += turned(xi + TR_LANES, a[w] >> (i + TR_LANES));
                tb += turned(xi + TR_LANES, b[w] >> (i + TR_LANES));
            }
        sums[0] += total(sa + ta);
        sums[1] += total(sb + tb);
    }
}

void TR_LOOP(signed_sums)(const float *x, const uint32_t *signs, size_t count, size_t rows,
                          float unit, bool add, float *y)
{
    double sums[2];
    for (size_t r = 0; r < rows; r += 2) {
        const size_t other = r + 1 < rows ? r + 1 : r;
        two_rows(x, signs + r * count, signs + other * count, count, sums);
        y[r] = (float)((double)unit * sums[0]) + (add ? y[r] : 0.0f);
        if (other > r) y[other] = (float)((double)unit * sums[1]) + (add ? y[other] : 0.0f);
    }
}
