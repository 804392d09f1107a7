/* ranks: long: 3 */
/* standin */
/* Whole models against PyTorch, on the CUDA backend: test_golden_models.c with the same tolerances,
 * as float32 products are not rounded to TF32. Three ranks with uneven shares, which takes a
 * minute; one rank alone has test_gpu_step. */
#define TRAINING_DEVICE "cuda"
#include "test_golden_models.c"
