/* Weights into messages to ranks that do not own them, and out of these. */
#ifndef TR_CUDA_LOOPS_WIRE_H
#define TR_CUDA_LOOPS_WIRE_H

#include "kernels/cuda/launch.h"

enum { TR_WIRE_CHUNK = 8192 }; /* elements that a block takes at a time, at most */

/* `parts` in device memory, each of at most TR_WIRE_CHUNK elements, aligned to 32 bytes on both
 * sides; nparts > 0. Pack: wire = weights, rounded; else weights = wire, widened. Types are float32
 * or `type`. */
TR_CUDA_C tr_status tr_wire_launch(cudaStream_t stream, tr_dtype type, const tr_wire_part *parts,
                                   size_t nparts, bool unpack);

#endif
