/* The loops that add: as many sources at once as a machine likes to stream, every source read once,
 * the destination written once, squares summed in double on the way (in double neither overflows
 * nor underflows for any float, and costs nothing beside the memory traffic). Elements are added in
 * the order of the sources whatever the instruction set; compiled with -O3 -fopenmp-simd. */
#include "collectives/reducer/reducer.h"

#if !defined(__x86_64__) || !defined(__GLIBC__) || (defined(__clang__) && __clang_major__ < 18)
#define CLONES /* clang before 18 names clones so that other files do not find them */
#elif defined(__SANITIZE_THREAD__)
#define CLONES /* which one it is to be is asked before that sanitizer has begun */
#elif defined(__clang__) || __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else /* gcc 11 cannot tell these levels apart at run time */
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

/* floats: partial sums of more than four sources stay in the first-level cache */
#define BLOCK 1024

CLONES double tr_sum_squares(const float *v, size_t n)
{
    double q = 0;
#pragma omp simd reduction(+ : q)
    for (size_t i = 0; i < n; i++) q += (double)v[i] * (double)v[i];
    return q;
}

CLONES static double add2(float *d, const float *a, const float *b, size_t n)
{
    double q = 0;
#pragma omp simd reduction(+ : q)
    for (size_t i = 0; i < n; i++) {
        float v = a[i] + b[i];
        d[i] = v;
        q += (double)v * (double)v;
    }
    return q;
}

CLONES static double add3(float *d, const float *a, const float *b, const float *c, size_t n)
{
    double q = 0;
#pragma omp simd reduction(+ : q)
    for (size_t i = 0; i < n; i++) {
        float v = (a[i] + b[i]) + c[i];
        d[i] = v;
        q += (double)v * (double)v;
    }
    return q;
}

CLONES static double add4(float *d, const float *a, const float *b, const float *c, const float *e,
                          size_t n)
{
    double q = 0;
#pragma omp simd reduction(+ : q)
    for (size_t i = 0; i < n; i++) {
        float v = ((a[i] + b[i]) + c[i]) + e[i];
        d[i] = v;
        q += (double)v * (double)v;
    }
    return q;
}

static double add_few(float *d, const float *const *s, int few, size_t at, size_t n, const float *a)
{
    switch (few) {
    case 1:
        return add2(d, a, s[0] + at, n);
    case 2:
        return add3(d, a, s[0] + at, s[1] + at, n);
    default:
        return add4(d, a, s[0] + at, s[1] + at, s[2] + at, n);
    }
}

double tr_sum_sources(float *dst, const float *const *src, int sources, size_t n)
{
    if (sources == 1) return tr_sum_squares(dst, n); /* dst is src[0] */
    if (sources <= 4) return add_few(dst, src + 1, sources - 1, 0, n, src[0]);
    double q = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        float partial[BLOCK]; /* not dst: it is one of the sources, maybe a later one */
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        add_few(partial, src + 1, 3, at, len, src[0] + at);
        int k = 4;
        for (; sources - k > 3; k += 3) add_few(partial, src + k, 3, at, len, partial);
        q += add_few(dst + at, src + k, sources - k, at, len, partial);
    }
    return q;
}

CLONES void tr_sum_to_bf16(tr_bf16 *dst, const float *src, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) dst[i] = tr_f32_to_bf16(src[i]);
}

CLONES void tr_sum_from_bf16(float *dst, const tr_bf16 *src, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) dst[i] = tr_bf16_to_f32(src[i]);
}

CLONES void tr_sum_add_bf16(float *dst, const tr_bf16 *src, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) dst[i] += tr_bf16_to_f32(src[i]);
}

CLONES void tr_sum_add(float *dst, const float *src, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) dst[i] += src[i];
}

CLONES static void add_double(double *dst, const double *src, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) dst[i] += src[i];
}

CLONES static void add_int(uint64_t *dst, const uint64_t *src, size_t n)
{
#pragma omp simd
    /* unsigned: wraps instead of being undefined */
    for (size_t i = 0; i < n; i++) dst[i] += src[i];
}

void tr_sum_into(void *sum, const void *v, size_t n, tr_dtype type)
{
    if (type == TR_F32)
        tr_sum_add(sum, v, n);
    else if (type == TR_F64)
        add_double(sum, v, n);
    else
        add_int(sum, v, n);
}
