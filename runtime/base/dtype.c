/* Element types and time. */
#include "runtime/base/base.h"

#include <string.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

size_t tr_dtype_size(tr_dtype t)
{
    static const size_t sizes[TR_DTYPES] = {
        [TR_F32] = 4, [TR_BF16] = 2, [TR_F16] = 2, [TR_I32] = 4,
        [TR_I64] = 8, [TR_U8] = 1,   [TR_I8] = 1,  [TR_F64] = 8};
    return (unsigned)t < TR_DTYPES ? sizes[t] : 0;
}

const char *tr_dtype_name(tr_dtype t)
{
    static const char *const names[TR_DTYPES] = {
        [TR_F32] = "float32", [TR_BF16] = "bfloat16", [TR_F16] = "float16", [TR_I32] = "int32",
        [TR_I64] = "int64",   [TR_U8] = "uint8",      [TR_I8] = "int8",     [TR_F64] = "float64"};
    return (unsigned)t < TR_DTYPES ? names[t] : "unknown";
}

double tr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tr_since_launch(void)
{
    /* field 22 of /proc/self/stat: start in clock ticks since boot, of CLOCK_BOOTTIME */
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    char *p = strrchr(text, ')'); /* the name may hold spaces */
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    if (!p) return 0;
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    double start = strtod(p, NULL) / (double)sysconf(_SC_CLK_TCK);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - start;
}

/* The half's exponent and mantissa, moved to their places in a float, are right but for the bias:
 * one product with 2^112 mends it, for subnormals too. */
float tr_f16_to_f32(tr_f16 h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t bits;
    float f;
    memcpy(&f, &rest, sizeof f);
    f *= 0x1p112f;
    memcpy(&bits, &f, sizeof bits);
    if ((h & 0x7c00u) == 0x7c00u) bits = rest | 0x7f800000u; /* infinity, NaN */
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

tr_f16 tr_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const tr_f16 sign = (tr_f16)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00u;
    if (bits >= 0x477ff000u) return sign | 0x7c00u; /* 65520 and more round to infinity */
    if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded */
        float small;
        memcpy(&small, &bits, sizeof small);
        small += 0.5f;
        memcpy(&bits, &small, sizeof bits);
        return (tr_f16)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (tr_f16)(sign | (bits - 0x38000000u) >> 13);
}
