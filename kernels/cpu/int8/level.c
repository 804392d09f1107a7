/* Which level this process has. */
#include "kernels/cpu/int8/int8.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

const char *tr_int8_level_name(tr_int8_level level)
{
    static const char *const names[] = {"int8: portable", "int8: VNNI", "int8: AMX"};
    return names[level];
}

tr_int8_level tr_int8_level_of(const tr_cpu *cpu)
{
#if TR_INT8_LEVELS > 1
    enum { VNNI = 1 << 11 /* ecx */, AMX = 3 << 24 /* edx: tiles, int8 */ };
    unsigned a, b, c, d;
    if (cpu->isa < TR_ISA_AVX512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(c & VNNI))
        return TR_INT8_BASE;
    return (d & AMX) == AMX && tr_int8_amx_allowed() ? TR_INT8_AMX : TR_INT8_VNNI;
#else
    (void)cpu;
    return TR_INT8_BASE;
#endif
}
