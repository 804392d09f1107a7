/* What the backend's own parts (not the ops) share: how each is opened and closed, and who may be
 * called while a section is open. */
#ifndef TR_CUDA_CORE_H
#define TR_CUDA_CORE_H

#include "kernels/cuda/internal.h"

/* Bytes that every array of the backend is aligned to. */
enum { TR_CUDA_ALIGN = 256 };
/* Bytes of each of the two pinned buffers that copies of pageable memory go through. */
enum { TR_CUDA_PIECE = 4 << 20 };

tr_status tr_cuda_memory_open(tr_cuda *cuda);
void tr_cuda_memory_close(tr_cuda *cuda);        /* what is still held by others stays allocated */
size_t tr_cuda_memory_held(const tr_cuda *cuda); /* tr_device_load.held */
tr_status tr_cuda_pieces_open(tr_cuda *cuda);    /* after the memory */
void tr_cuda_pieces_close(tr_cuda *cuda);
tr_status tr_cuda_pace_open(tr_cuda *cuda);
/* Never fails: without the driver's library less is known. */
void tr_cuda_monitor_open(tr_cuda *cuda);

/* Waits for all copies of batches, as far as that can be; says nothing. */
void tr_cuda_stages_quiet(const tr_cuda *cuda);

bool tr_cuda_recording(const tr_cuda *cuda); /* what is put into the stream now is recorded */
/* TR_INTERNAL inside a section, run, recorded or replayed alike: for calls whose effect must not be
 * recorded, because the next run would repeat it. */
tr_status tr_cuda_outside_section(const tr_cuda *cuda, const char *call);

#endif
