/* A candidate runs once, which loads its kernels, then in rounds of some launches in a row, so that
 * the host's calls hide behind the kernels; its time is that of its fastest round, as disturbances
 * can only lengthen one. Blocks are as large as the problem's operands: with other sizes or
 * addresses shared between operands the caches would hide what the candidates differ in. */
#include "kernels/cuda/timing.h"

enum { ROUNDS = 2, LAUNCHES = 3 };

tr_status tr_cuda_trial_open(tr_cuda_trial *t, tr_cuda *cuda, const char *what,
                             const size_t nbytes[TR_CUDA_TRIAL_BLOCKS], bool *room)
{
    tr_status st = TR_OK;
    *t = (tr_cuda_trial){.cuda = cuda};
    *room = true;
    for (int i = 0; i < TR_CUDA_TRIAL_BLOCKS && *room; i++) {
        if (nbytes[i] == 0) continue;
        t->block[i] = tr_cuda_alloc(cuda, TR_MEM_WORKSPACE, nbytes[i]);
        if (t->block[i]) continue;
        st = tr_last_status();
        if (st != TR_MEMORY) goto out;
        st = TR_OK;
        *room = false;
    }
    if (!*room) {
        tr_log(TR_LOG_WARN, "no device memory to time %s in: the library's first choice is taken",
               what);
        goto out;
    }
    TR_CUDA_TRY(cudaEventCreate(&t->from));
    TR_CUDA_TRY(cudaEventCreate(&t->to));
out:
    return st;
}

void tr_cuda_trial_close(tr_cuda_trial *t)
{
    if (t->to) (void)cudaEventDestroy(t->to);
    if (t->from) (void)cudaEventDestroy(t->from);
    for (int i = 0; i < TR_CUDA_TRIAL_BLOCKS; i++) tr_cuda_free(t->cuda, t->block[i]);
    *t = (tr_cuda_trial){.cuda = t->cuda};
}

/* *ms < 0: it does not run. */
static tr_status time_one(const tr_cuda_trial *t, int candidate, tr_cuda_trial_fn *put, void *arg,
                          float *ms)
{
    tr_status st = TR_OK;
    const cudaStream_t stream = t->cuda->stream;
    bool runs = true;
    *ms = -1;
    TR_TRY(put(arg, candidate, &runs));
    for (int round = 0; round < ROUNDS && runs; round++) {
        float took = 0;
        TR_CUDA_TRY(cudaEventRecord(t->from, stream));
        for (int i = 0; i < LAUNCHES; i++) TR_TRY(put(arg, candidate, &runs));
        TR_CUDA_TRY(cudaEventRecord(t->to, stream));
        TR_CUDA_TRY(cudaEventSynchronize(t->to));
        TR_CUDA_TRY(cudaEventElapsedTime(&took, t->from, t->to));
        if (*ms < 0 || took < *ms) *ms = took;
    }
out:
    return st;
}

tr_status tr_cuda_trial_best(const tr_cuda_trial *t, int n, tr_cuda_trial_fn *put, void *arg,
                             int *best)
{
    tr_status st = TR_OK;
    float least = -1;
    *best = 0;
    for (int i = 0; i < n; i++) {
        float ms;
        TR_TRY(time_one(t, i, put, arg, &ms));
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        least = ms;
        *best = i;
    }
out:
    return st;
}
