/* The CPU backend: oneDNN for matrix products, convolutions and pooling; our own fused loops for
 * normalization, activations, losses, dropout and the optimizers, compiled for several instruction
 * sets and chosen at run time. */
#ifndef TR_CPU_H
#define TR_CPU_H

#include "runtime/device/backend.h"

extern const tr_backend tr_cpu_backend;

/* Instruction set levels of our own loops. */
typedef enum { TR_ISA_BASE = 1, TR_ISA_AVX2, TR_ISA_AVX512 } tr_cpu_isa_level;
int tr_cpu_isa(void); /* best level this CPU has */

/* c = a b of float32, m x depth by depth x n, in one thread, by the loops of this CPU: for what is
 * computed beside a model's kernels. Rows are a pitch apart; n: a multiple of TR_CPU_COLUMNS. A sum
 * of c goes over `depth` in order, with the same bits whatever else is computed with it. */
enum { TR_CPU_COLUMNS = 16 };
void tr_cpu_multiply(size_t m, size_t n, size_t depth, const float *a, size_t a_pitch,
                     const float *b, size_t b_pitch, float *c, size_t c_pitch);

/* Integer operations a second, 2 a multiply-add, of a product of two 512 x 512 matrices, u8 and s8,
 * summed as s32; the fastest of some runs. 0: oneDNN has but plain loops for it. */
tr_status tr_cpu_int8_rate(void *ctx, int threads, double *rate);

#endif
