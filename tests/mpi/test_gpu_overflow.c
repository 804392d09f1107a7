/* ranks: 2 3 4 */
/* standin */
/* Gradients that are not finite, on the CUDA backend: test_overflow.c. */
#define TRAINING_DEVICE "cuda"
#include "test_overflow.c"
