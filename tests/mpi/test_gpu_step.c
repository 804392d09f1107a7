/* ranks: 2 3 4 */
/* standin */
/* Optimizer steps, on the CUDA backend: test_step.c with the same tolerances. */
#define TRAINING_DEVICE "cuda"
#include "test_step.c"
