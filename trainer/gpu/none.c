/* A program that was built without a GPU's backend. */
#include "trainer/gpu.h"

const tr_gpu tr_program_gpu = {NULL, NULL};
