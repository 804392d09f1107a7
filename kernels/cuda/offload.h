/* Slots of an optimizer that lie in pinned host memory, passed through the device while it updates.
 * All Local, in stream order. */
#ifndef TR_CUDA_OFFLOAD_H
#define TR_CUDA_OFFLOAD_H

#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/optimizer.h"

typedef struct tr_cuda_offload tr_cuda_offload;

/* Which of an update's arrays a pass reads, and which it writes. */
enum { TR_SLOT_M = 1, TR_SLOT_V = 2, TR_SLOT_A = 4, TR_SLOT_EMA = 8 };

/* Windows over the chunks (ascending, [n], in host memory), whose places in the slots become places
 * in a buffer. */
TR_CUDA_C tr_status tr_cuda_offload_open(tr_cuda *cuda, const tr_update *u, tr_update_chunk *chunks,
                                         size_t n, tr_cuda_offload **out);
TR_CUDA_C void tr_cuda_offload_close(tr_cuda_offload *o); /* NULL is fine */

typedef tr_status tr_offload_launch(cudaStream_t stream, const tr_update_plan *p,
                                    const tr_control *control);
/* `launch` once a window, on a part of the plan whose slots are in device memory. `control` may be
 * NULL. May be recorded. */
TR_CUDA_C tr_status tr_cuda_offload_run(tr_cuda_offload *o, const tr_update_plan *p,
                                        const tr_control *control, unsigned reads, unsigned writes,
                                        tr_offload_launch *launch);

#endif
