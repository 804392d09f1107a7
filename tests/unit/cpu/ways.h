/* Products of bfloat16 in both ways that kernels make them: their own, as on CPUs where they are
 * faster, or of float32. */
#ifndef TR_TESTS_WAYS_H
#define TR_TESTS_WAYS_H

#include "tests/unit/cpu/op_harness.h"

static bool own_products;
#ifdef TEST_MIRROR
enum { WAYS = 1 };
#else
enum { WAYS = 2 };
#endif

static inline harness in_way(harness h)
{
#ifndef TEST_MIRROR
    ((tr_cpu *)h.team)->bf16_faster = own_products;
#endif
    return h;
}

static inline harness open_way(const char *op, tr_precision precision, bool train, int threads)
{
    return in_way(h_open_with(op, precision, train, threads));
}

/* Every precision and way that there is; of the file's `precisions` those that it `has`. */
#define FOR_WAYS(p)                                                                                \
    for (size_t p = 0, way_ = 0; p < TR_COUNT(precisions);                                         \
         way_ + 1 < WAYS && precisions[p] == TR_PRECISION_BF16 ? way_++ : (way_ = 0, p++))         \
        if (own_products = way_ == 0, has(precisions[p]))

#endif
