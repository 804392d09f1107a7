/* ranks: 1 2 3 4 */
/* standin */
/* Checkpoints, on the CUDA backend: test_checkpoint.c with the same tolerances. */
#define TRAINING_DEVICE "cuda"
#include "test_checkpoint.c"
