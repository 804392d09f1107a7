/* Time by op: events between the kernels of a plan. What an event says is when the device got
 * there, in steps of about half a microsecond; the host's speed shows where the device had to wait
 * for it. */
#include "kernels/cuda/core.h"

struct tr_cuda_marks {
    size_t n;
    cudaEvent_t *at;
};

tr_status tr_cuda_marks_reserve(void *ctx, size_t n)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    if (cuda->marks && cuda->marks->n >= n) return TR_OK;
    tr_cuda_marks_close(cuda);
    cuda->marks = TR_NEW(TR_MEM_OTHER, tr_cuda_marks);
    if (cuda->marks) cuda->marks->at = tr_alloc(TR_MEM_OTHER, n, sizeof *cuda->marks->at);
    if (!cuda->marks || !cuda->marks->at) st = TR_MEMORY;
    while (st == TR_OK && cuda->marks->n < n) {
        TR_CUDA_TRY(cudaEventCreate(&cuda->marks->at[cuda->marks->n]));
        cuda->marks->n++;
    }
out:
    if (st != TR_OK) tr_cuda_marks_close(cuda);
    return st;
}

void tr_cuda_marks_close(tr_cuda *cuda)
{
    tr_cuda_marks *m = cuda->marks;
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) (void)cudaEventDestroy(m->at[i]);
    (void)cudaGetLastError();
    tr_free(m->at);
    tr_free(m);
    cuda->marks = NULL;
}

tr_status tr_cuda_mark(void *ctx, size_t i)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    TR_NEED(cuda->marks && i < cuda->marks->n, TR_INTERNAL, "mark %zu is not reserved", i);
    TR_TRY(tr_cuda_outside_section(cuda, "mark"));
    TR_CUDA_TRY(cudaEventRecord(cuda->marks->at[i], cuda->stream));
out:
    return st;
}

tr_status tr_cuda_marks_read(void *ctx, double *seconds, size_t n)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    TR_NEED(cuda->marks && n < cuda->marks->n, TR_INTERNAL, "%zu marks are not reserved", n + 1);
    TR_CUDA_TRY(cudaEventSynchronize(cuda->marks->at[n]));
    for (size_t i = 0; i < n; i++) {
        float ms;
        TR_CUDA_TRY(cudaEventElapsedTime(&ms, cuda->marks->at[i], cuda->marks->at[i + 1]));
        seconds[i] = (double)ms / 1000;
    }
out:
    return st;
}
