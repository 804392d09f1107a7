/* The tables of loops by instruction set level. */
#include "kernels/cpu/loops/loops.h"

extern const tr_cpu_loops tr_cpu_loops_base;
#if TR_ISA_LEVELS > 1
extern const tr_cpu_loops tr_cpu_loops_avx2, tr_cpu_loops_avx512;
#endif

const tr_cpu_loops *tr_cpu_loops_at(int isa)
{
#if TR_ISA_LEVELS > 1
    if (isa >= TR_ISA_AVX512) return &tr_cpu_loops_avx512;
    if (isa >= TR_ISA_AVX2) return &tr_cpu_loops_avx2;
#endif
    (void)isa;
    return &tr_cpu_loops_base;
}
