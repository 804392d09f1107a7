/* links: trireme_cpu trireme_plan
 * The test of the CPU kernels, on a GPU. */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/test_take_rows.c"
