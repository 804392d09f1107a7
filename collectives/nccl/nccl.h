/* The reducers that work on NVIDIA GPUs: NCCL, and MPI through the host's memory. */
#ifndef TR_NCCL_H
#define TR_NCCL_H

#include "collectives/collectives.h"

/* For tr_reducer_options.gpu, with a backend whose stream is a cudaStream_t. */
extern const tr_gpu_reducers tr_nccl_reducers;

#endif
