/* Whether this build's kernels run on the device at hand. */
#ifndef TR_CUDA_LOOPS_PROBE_H
#define TR_CUDA_LOOPS_PROBE_H

#include "kernels/cuda/launch.h"

/* Puts a kernel that does nothing into the stream: fails where the build has no code for the
 * device. */
TR_CUDA_C tr_status tr_cuda_probe(cudaStream_t stream);
/* The compute capabilities that nvcc compiled for, times 100, with commas: "750,800,900"; "": not
 * known. */
TR_CUDA_C const char *tr_cuda_architectures(void);

#endif
