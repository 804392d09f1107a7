/* For tests of our own loops: the levels this CPU has, types and precisions to go through, and
 * central differences. */
#ifndef TR_TEST_LOOP_LEVELS_H
#define TR_TEST_LOOP_LEVELS_H

#include "tests/unit/cpu/op_harness.h"

#include "kernels/cpu/loops/loops.h"

#ifdef TEST_MIRROR /* a GPU: one set of kernels, one type more */
#define FOR_LEVELS(isa) for (int isa = 0; isa < 1; isa++)
static const tr_precision precisions[] = {TR_PRECISION_FP32, TR_PRECISION_BF16, TR_PRECISION_FP16};
#else
/* for every level from the lowest to what this CPU has */
#define FOR_LEVELS(isa) for (int isa = TR_ISA_BASE; isa <= tr_cpu_isa(); isa++)
static const tr_precision precisions[] = {TR_PRECISION_FP32, TR_PRECISION_BF16};
#endif
#define FOR_PRECISIONS(p)                                                                          \
    for (size_t p##_i = 0; p##_i < TR_COUNT(precisions); p##_i++)                                  \
        for (tr_precision p = precisions[p##_i], *p##_once = &p; p##_once; p##_once = NULL)

/* A harness whose kernels use the loops of one level. Our own loops do bf16 on every CPU, which the
 * backend offers only where oneDNN does too. */
static inline harness open_level(const char *op, tr_precision precision, int isa, int threads)
{
    harness h = h_open_with(op, precision, true, threads);
#ifdef TEST_MIRROR
    (void)isa;
#else
    tr_cpu *cpu = h.team;
    cpu->loops = tr_cpu_loops_at(isa);
    cpu->bf16 = true;
#endif
    return h;
}

/* Relative error of one rounding to the type of the activations, with room for a few operations. */
static inline double tolerance(tr_precision precision)
{
    return precision == TR_PRECISION_BF16   ? 0x1p-8
           : precision == TR_PRECISION_FP16 ? 0x1p-11
                                            : 0x1p-21;
}

static inline double *doubles(size_t n)
{
    double *p = tr_alloc(TR_MEM_OTHER, n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* Compares a tensor's values with `want`, which is freed. */
static inline void expect(const harness *h, int id, double *want, double tol, const char *what)
{
    double *got = h_values(h, id);
    h_close_to(got, want, NULL, h->tensors[id].count, tol, what);
    tr_free(got);
    tr_free(want);
}

static inline double uniform(uint32_t seed, size_t i, double low, double high)
{
    return low + (high - low) * (double)tr_uniform(tr_philox_at(seed, TR_RNG_TEST, 1, i, 0).v[0]);
}

#endif
