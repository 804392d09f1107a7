/* The CPU backend: oneDNN for matrix products, convolutions and pooling; our own fused loops for
 * normalization, activations, losses, dropout and the optimizers, compiled for several instruction sets
 * and chosen at run time. */
#ifndef TR_CPU_H
#define TR_CPU_H

#include "runtime/device/backend.h"

extern const tr_backend tr_cpu_backend;

/* Instruction set levels of our own loops. */
typedef enum { TR_ISA_BASE = 1, TR_ISA_AVX2, TR_ISA_AVX512 } tr_cpu_isa_level;
int tr_cpu_isa(void); /* best level this CPU has */

#endif
