/* Candidates that a library offers for one problem, timed on scratch memory: one way for products
 * and convolutions. Only with the option `benchmark`. */
#ifndef TR_CUDA_TIMING_H
#define TR_CUDA_TIMING_H

#include "kernels/cuda/internal.h"

enum { TR_CUDA_TRIAL_BLOCKS = 6 };

typedef struct {
    tr_cuda *cuda;
    void *block[TR_CUDA_TRIAL_BLOCKS]; /* zeroed device memory; NULL where 0 bytes were asked for */
    cudaEvent_t from, to;
} tr_cuda_trial;

/* Local. Puts the work of a candidate into the stream once. *runs = false: it cannot run after all,
 * which is no error. */
typedef tr_status tr_cuda_trial_fn(void *arg, int candidate, bool *runs);

/* Local. Blocks of these sizes. *room is false, with a warning that names `what`, where the device
 * has no memory for them: the caller takes the library's first choice. To be closed whatever comes
 * back. */
tr_status tr_cuda_trial_open(tr_cuda_trial *t, tr_cuda *cuda, const char *what,
                             const size_t nbytes[TR_CUDA_TRIAL_BLOCKS], bool *room);
void tr_cuda_trial_close(tr_cuda_trial *t);

/* Local. *best: the fastest of candidates 0 .. n - 1; 0 where none runs. Waits. */
tr_status tr_cuda_trial_best(const tr_cuda_trial *t, int n, tr_cuda_trial_fn *put, void *arg,
                             int *best);

#endif
