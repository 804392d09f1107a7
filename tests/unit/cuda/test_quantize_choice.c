/* links: trireme_quantize trireme_profile trireme_inference trireme_cpu trireme_runtime
 * trireme_collectives `layers: auto` on a GPU: the test of the CPU's, with products of both kinds
 * in one network. */
#include "kernels/cuda/cuda.h"

#define TEST_BACKEND tr_cuda_backend
#include "tests/unit/quantize/test_choice.c"
