/* The GPU side of the program: a module, libtrireme_cuda.so (kernels/cuda, collectives/nccl), that
 * is loaded when a job wants GPUs. CUDA's libraries come with it, so that a job on CPUs pays for
 * none of them. Program and module must be of one build. */
#ifndef TR_GPU_H
#define TR_GPU_H

#include "collectives/collectives.h"
#include "runtime/device/backend.h"

typedef struct {
    const tr_backend *backend;
    const tr_gpu_reducers *reducers;
} tr_gpu;

/* *Local.* Whether a module was built for this program. */
bool tr_gpu_built(void);
/* *Local.* Loads the module, from beside the program or ../lib/trireme; it stays until the process
 * ends. `if_driver`: only where the driver's library opens, without which there is no usable GPU.
 * TR_KERNEL where that fails, saying what to do. */
tr_status tr_gpu_load(bool if_driver, const tr_gpu **out);

/* The one symbol that the module exports. NULL for a program of another build. */
const tr_gpu *tr_gpu_module(const char *build_id);

#endif
