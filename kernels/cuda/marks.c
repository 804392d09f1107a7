/* Time by op: events between the kernels of a plan. What an event says is when the device got
 * there, in steps of about half a microsecond; the host's speed shows where the device had to wait
 * for it. */
#include "kernels/cuda/core.h"

typedef struct {
    tr_cuda *cuda;
    size_t n;
    cudaEvent_t *at;
} marks;

tr_status tr_cuda_marks_open(void *ctx, size_t n, void **out)
{
    tr_status st = TR_OK;
    marks *m = TR_NEW(TR_MEM_OTHER, marks);
    if (!m) return tr_last_status();
    m->cuda = ctx;
    m->at = tr_alloc(TR_MEM_OTHER, n, sizeof *m->at);
    if (!m->at) st = tr_last_status();
    while (st == TR_OK && m->n < n) {
        TR_CUDA_TRY(cudaEventCreate(&m->at[m->n]));
        m->n++;
    }
out:
    if (st != TR_OK) {
        tr_cuda_marks_close(m);
        return st;
    }
    *out = m;
    return TR_OK;
}

void tr_cuda_marks_close(void *opened)
{
    marks *m = opened;
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) (void)cudaEventDestroy(m->at[i]);
    (void)cudaGetLastError();
    tr_free(m->at);
    tr_free(m);
}

tr_status tr_cuda_mark(void *opened, size_t i)
{
    tr_status st = TR_OK;
    marks *m = opened;
    TR_NEED(i < m->n, TR_INTERNAL, "there is no mark %zu", i);
    /* nothing is recorded without graphs, which is how a whole step of the trainer is timed */
    if (m->cuda->o.graphs) TR_TRY(tr_cuda_outside_section(m->cuda, "mark"));
    TR_CUDA_TRY(cudaEventRecord(m->at[i], m->cuda->stream));
out:
    return st;
}

tr_status tr_cuda_marks_read(void *opened, double *seconds, size_t n)
{
    tr_status st = TR_OK;
    const marks *m = opened;
    TR_NEED(n < m->n, TR_INTERNAL, "there are no %zu marks", n + 1);
    TR_CUDA_TRY(cudaEventSynchronize(m->at[n]));
    for (size_t i = 0; i < n; i++) {
        float ms;
        TR_CUDA_TRY(cudaEventElapsedTime(&ms, m->at[i], m->at[i + 1]));
        seconds[i] = (double)ms / 1000;
    }
out:
    return st;
}
