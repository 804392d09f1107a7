/* A program that can train on NVIDIA GPUs. */
#include "kernels/cuda/cuda.h"
#include "collectives/nccl/nccl.h"
#include "trainer/gpu.h"

const tr_gpu tr_program_gpu = {&tr_cuda_backend, &tr_nccl_reducers};
