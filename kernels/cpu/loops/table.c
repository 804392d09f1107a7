/* One level's table. */
#include "kernels/cpu/loops/vec.h"

#define TR_STRING2(x) #x
#define TR_STRING(x)  TR_STRING2(x)

extern const tr_cpu_loops TR_LEVEL(tr_cpu_loops);
const tr_cpu_loops TR_LEVEL(tr_cpu_loops) = {.name = TR_STRING(TR_ISA),
#define X(type, name, args) .name = TR_LOOP(name),
                                             TR_CPU_LOOPS(X)
#undef X
};
