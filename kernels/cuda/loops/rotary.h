/* Rotary position embedding and, turned back, its gradient. */
#ifndef TR_CUDA_LOOPS_ROTARY_H
#define TR_CUDA_LOOPS_ROTARY_H

#include "kernels/cuda/launch.h"

typedef struct {
    const void *x;
    void *y;                                        /* may be x */
    const float *turn;                              /* tr_rotary_table, on the device */
    size_t rows, positions, heads, D, pairs, apart; /* apart 0: pairs of neighbours */
    float sign;
    const int32_t
        *past; /* where each sample's rows begin in a table of `table` positions; NULL: at 0 */
    size_t table;
} tr_cuda_rotary_args;

TR_CUDA_C tr_status tr_cuda_rotary_run(tr_dtype t, const tr_cuda_rotary_args *a,
                                       cudaStream_t stream);

#endif
