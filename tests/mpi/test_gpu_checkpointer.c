/* ranks: 1 2 3 4 */
/* standin */
/* The checkpointer, on the CUDA backend: test_checkpointer.c with the same tolerances. */
#define TRAINING_DEVICE "cuda"
#include "test_checkpointer.c"
