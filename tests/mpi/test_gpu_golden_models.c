/* ranks: long: 1 3 */
/* standin */
/* Whole models against PyTorch, on the CUDA backend: test_golden_models.c with the same tolerances,
 * as float32 products are not rounded to TF32. One rank, and three with uneven shares: a minute
 * each. */
#define TRAINING_DEVICE "cuda"
#include "test_golden_models.c"
