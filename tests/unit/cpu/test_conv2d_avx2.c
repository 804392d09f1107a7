/* The same on a CPU with AVX2 and no more: other implementations of oneDNN, other loops. */
#define TEST_ISA TR_ISA_AVX2
#include "tests/unit/cpu/test_conv2d.c"
