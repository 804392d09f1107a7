/* links: trireme_cpu trireme_plan trireme_hdf5
 * The test of the CPU kernels, on a GPU. */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/test_golden_ops.c"

/* A hundred arrays to open and close around every task of the stand-in would take most of the
 * time. */
static __attribute__((constructor)) void unguarded(void)
{
    setenv("FAKEGPU_GUARD", "0", 0);
}
