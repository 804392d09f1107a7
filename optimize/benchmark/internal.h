/* What the folder's files share. */
#ifndef TR_BENCHMARK_INTERNAL_H
#define TR_BENCHMARK_INTERNAL_H

#include "optimize/benchmark/benchmark.h"

static inline double ms(double seconds)
{
    return seconds * 1e3;
}

const char *tr_bench_precision(int p); /* "fp32" */

#endif
