/* Candidates for one problem, each run on scratch memory before one of them is taken: one way for
 * products, convolutions and whole kernels. Without the option `benchmark` the first that runs is
 * taken, with it the fastest. What was found is remembered by the context. */
#ifndef TR_CUDA_TRIAL_H
#define TR_CUDA_TRIAL_H

#include "kernels/cuda/internal.h"

enum { TR_CUDA_TRIAL_BLOCKS = 11 };

typedef struct {
    tr_cuda *cuda;
    void *block[TR_CUDA_TRIAL_BLOCKS]; /* zeroed device memory; NULL where 0 bytes were asked for */
    void *workspace;                   /* of the candidate that runs now */
    size_t workspace_bytes;            /* that it has at least */
    bool taken;                        /* some candidate was the best so far */
    char why[TR_ERROR_TEXT];           /* of the candidate that failed last; "": none did */
    /* Inside. */
    const char *what;
    void *memory; /* that the blocks lie in; NULL: the device has no room for them */
    cudaEvent_t from, to;
    float least; /* milliseconds of the best so far */
} tr_cuda_trial;

typedef struct {
    const char *name; /* for the log: "cuDNN engine 38" */
    size_t workspace; /* bytes */
    /* Puts the work into the stream once. */
    tr_status (*put)(void *arg, const tr_cuda_trial *t);
    void *arg;
} tr_cuda_candidate;

/* Local. Blocks of these sizes. Where the device has no memory for them it warns, naming `what`:
 * the first candidate is then taken as it is. To be closed whatever comes back. */
tr_status tr_cuda_trial_open(tr_cuda_trial *t, tr_cuda *cuda, const char *what,
                             const size_t nbytes[TR_CUDA_TRIAL_BLOCKS]);
void tr_cuda_trial_close(tr_cuda_trial *t);

/* Local. Waits. *best: it ran, and nothing before it was taken, or (benchmark) was as fast. One
 * that fails is passed over, with a warning the first time for its name; TR_KERNEL where that has
 * spoiled the context. */
tr_status tr_cuda_trial_run(tr_cuda_trial *t, const tr_cuda_candidate *c, bool *best);
/* Local. The context is not lost: CUDA's calls can still succeed. Waits. */
bool tr_cuda_survives(const tr_cuda *cuda);
/* Whether another candidate could still be taken. */
bool tr_cuda_trial_goes_on(const tr_cuda_trial *t);

/* Local. A contest of `ways` kernels on blocks of these sizes, which `put` binds and runs each on.
 * *best: which; it stays where none runs. */
tr_status tr_cuda_trial_kernels(tr_cuda *cuda, const char *what,
                                const size_t nbytes[TR_CUDA_TRIAL_BLOCKS],
                                tr_status (*put)(void *kernel, const tr_cuda_trial *t),
                                tr_kernel *const *way, int ways, int *best);

/* ---- What was found, by a key of any bytes, for as long as the context is open ---- */

const int *tr_cuda_recall(const tr_cuda *cuda, const void *key, size_t nbytes); /* NULL: nothing */
tr_status tr_cuda_remember(tr_cuda *cuda, const void *key, size_t nbytes, int value);
void tr_cuda_forget(tr_cuda *cuda); /* all */

#endif
