/* links: trireme_cpu trireme_plan
 * The test of the CPU kernels, on a GPU: of our own kernels. Plans of cuDNN's:
 * test_op_attention_plan.c. */
#define MIRROR_WORKSPACE 0 /* no plan of cuDNN's */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/test_attention.c"
