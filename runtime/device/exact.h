/* Sums of float64 values that are the same bits in any order and however they are dealt to threads
 * and ranks: each value, at least 0, is cut into digits of 32 bits of one fixed-point number, whose
 * integer sums are exact (a superaccumulator; Kulisch 1997). Digits have room for 2^32 values; they
 * cover 2^-192 to 2^320, what lies below is cut off. Compiled for the host and for devices
 * alike. */
#ifndef TR_EXACT_H
#define TR_EXACT_H

#include <stdint.h>
#include <string.h>

#ifndef TR_HOST_DEVICE
#ifdef __CUDACC__
#define TR_HOST_DEVICE __host__ __device__
#else
#define TR_HOST_DEVICE
#endif
#endif

enum { TR_EXACT_DIGITS = 16, TR_EXACT_LOWEST = -192 };

/* A value as three digits from `at` on; false: there is nothing to add, or it is not finite. */
static inline TR_HOST_DEVICE int tr_exact_cut(double value, int *at, uint64_t digits[3])
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int exponent = (int)(bits >> 52 & 2047);
    uint64_t whole = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)(exponent > 0) << 52;
    int shift = exponent - 1075 - TR_EXACT_LOWEST; /* value = whole * 2^(exponent - 1075) */
    if (exponent == 2047 || bits >> 63) return 0;
    if (shift < 0) {
        whole = shift > -64 ? whole >> -shift : 0;
        shift = 0;
    }
    *at = shift / 32;
    if (!whole || *at + 3 > TR_EXACT_DIGITS) return 0;
    const int r = shift % 32;
    const uint64_t low = whole << r;
    digits[0] = low & 0xffffffffu;
    digits[1] = low >> 32;
    digits[2] = r ? whole >> (64 - r) : 0;
    return 1;
}

/* Digits without carries, each less than 2^32 but the last, as whole float64 numbers: so they can
 * be summed over up to 2^21 ranks. In place: `cells` are the integers before. */
static inline TR_HOST_DEVICE void tr_exact_settle(void *cells)
{
    unsigned char *p = (unsigned char *)cells;
    uint64_t carry = 0;
    for (int i = 0; i < TR_EXACT_DIGITS; i++, p += sizeof carry) {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        v += carry;
        carry = i + 1 < TR_EXACT_DIGITS ? v >> 32 : 0;
        const double digit = (double)(i + 1 < TR_EXACT_DIGITS ? v & 0xffffffffu : v);
        memcpy(p, &digit, sizeof digit);
    }
}

/* What sums of settled digits come to. */
static inline TR_HOST_DEVICE double tr_exact_value(const double *digits)
{
    uint64_t carry = 0;
    double sum = 0, unit = 0x1p-192; /* 2^TR_EXACT_LOWEST */
    for (int i = 0; i < TR_EXACT_DIGITS; i++, unit *= 4294967296.0) {
        const uint64_t v = (uint64_t)digits[i] + carry;
        sum += (double)(v & 0xffffffffu) * unit;
        carry = v >> 32;
    }
    return sum;
}

#endif
