/* The GPU side that this program was linked with: trainer/gpu/cuda.c or trainer/gpu/none.c. */
#ifndef TR_GPU_H
#define TR_GPU_H

#include "collectives/collectives.h"
#include "runtime/backend.h"

typedef struct {
    const tr_backend *backend; /* NULL: none */
    const tr_gpu_reducers *reducers;
} tr_gpu;

extern const tr_gpu tr_program_gpu;

#endif
