/* Images made of weighted sums over rows and columns of others: channels-last, at most 2^31
 * elements. */
#ifndef TR_CUDA_LOOPS_RESAMPLE_H
#define TR_CUDA_LOOPS_RESAMPLE_H

#include "kernels/cuda/launch.h"
#include "runtime/graph/ops.h"

typedef struct {
    tr_dtype type;
    unsigned batch, channels;
    int from[2], to[2]; /* height, width of what is read, written */
    float value;        /* where there are no taps */
    /* On the device, of rows and of columns (tr_taps): */
    const int32_t *begin[2];
    const tr_tap *taps[2];
} tr_cuda_resampling;

TR_CUDA_C tr_status tr_cuda_resample_run(cudaStream_t stream, const tr_cuda_resampling *p,
                                         const void *x, void *y);

#endif
