/* Batches on their way to the device: two slots of device memory, filled in turn by a stream of
 * copies of their own, beside the kernels. Each session has its own two; a context may have any
 * number of them.
 *
 * The order that callers keep: poll until it says so, begin and part for batch k, the
 * kernels that read it, and the same for batch k + 1. Two dependencies make it safe, both by
 * events: the kernels' stream waits for each copy where it is staged (before a section, so never in
 * what is recorded), and copies of batch k + 1 wait for `begun` of batch k, which marks in the
 * kernels' stream all that was put there before begin(k), and so all readers of batch k - 1:
 * the slot is free, while kernels of batch k still run. Nothing here waits on the host: a kernel
 * may be waiting for another rank, so callers poll, and watch their peers meanwhile. */
#include "kernels/cuda/core.h"

struct tr_cuda_stage {
    tr_cuda *cuda;
    tr_cuda_stage *next; /* of the context */
    cudaStream_t stream;
    char *slot[2];
    size_t size, used;
    uint64_t batches; /* begun */
    int at;           /* the slot of the batch begun last */
    cudaEvent_t begun[2];
    cudaEvent_t copied; /* all copies put into the stream so far */
    bool waiting;       /* for `copied`: nobody has since it was recorded */
};

tr_status tr_cuda_stage_open(void *ctx, size_t nbytes, void **out)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    tr_cuda_stage *s = TR_NEW(TR_MEM_OTHER, tr_cuda_stage);
    if (!s) return tr_last_status();
    s->cuda = cuda;
    s->next = cuda->stages;
    cuda->stages = s;
    s->size = tr_align_up(nbytes, TR_CUDA_ALIGN);
    s->at = 1;
    TR_CUDA_TRY(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    TR_CUDA_TRY(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++) {
        TR_CUDA_TRY(cudaEventCreateWithFlags(&s->begun[i], cudaEventDisableTiming));
        s->slot[i] = tr_cuda_alloc(cuda, TR_MEM_IO, s->size);
        TR_HAVE(s->slot[i]);
    }
out:
    if (st != TR_OK) {
        tr_cuda_stage_close(s);
        return st;
    }
    *out = s;
    return TR_OK;
}

void tr_cuda_stages_quiet(const tr_cuda *cuda)
{
    for (const tr_cuda_stage *s = cuda->stages; s; s = s->next)
        if (s->stream) (void)cudaStreamSynchronize(s->stream);
}

void tr_cuda_stage_close(void *stage)
{
    tr_cuda_stage *s = stage;
    if (!s) return;
    for (int i = 0; i < 2; i++) {
        if (s->begun[i]) (void)cudaEventDestroy(s->begun[i]);
        tr_cuda_free(s->cuda, s->slot[i]); /* waits for copies that are under way */
    }
    tr_cuda_stage **at = &s->cuda->stages;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    if (s->copied) (void)cudaEventDestroy(s->copied);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    (void)cudaGetLastError();
    tr_free(s);
}

tr_status tr_cuda_stage_begin(void *stage)
{
    tr_status st = TR_OK;
    tr_cuda_stage *s = stage;
    tr_cuda *cuda = s->cuda;
    TR_TRY(tr_cuda_outside_section(cuda, "a batch's begin"));
    s->at = 1 - s->at;
    s->used = 0;
    TR_CUDA_TRY(cudaEventRecord(s->begun[s->at], cuda->stream));
    if (s->batches++ > 0) TR_CUDA_TRY(cudaStreamWaitEvent(s->stream, s->begun[1 - s->at], 0));
out:
    return st;
}

tr_status tr_cuda_stage_part(void *stage, const void *data, size_t nbytes, void **where)
{
    tr_status st = TR_OK;
    tr_cuda_stage *s = stage;
    tr_cuda *cuda = s->cuda;
    TR_NEED(s->batches > 0, TR_INTERNAL, "a part of a batch is staged before the batch is begun");
    TR_TRY(tr_cuda_outside_section(cuda, "a part of a batch"));
    TR_NEED(nbytes <= s->size - s->used, TR_INTERNAL,
            "a batch is larger than its slot: %zu bytes behind %zu of %zu", nbytes, s->used,
            s->size);
    char *to = s->slot[s->at] + s->used;
    if (nbytes > 0) {
        TR_CUDA_TRY(cudaMemcpyAsync(to, data, nbytes, cudaMemcpyHostToDevice, s->stream));
        TR_CUDA_TRY(cudaEventRecord(s->copied, s->stream));
        s->waiting = true;
        TR_CUDA_TRY(cudaStreamWaitEvent(cuda->stream, s->copied, 0));
    }
    /* The size is a multiple of it: what is left stays one, and a full slot may be pointed
     * behind. */
    s->used += tr_align_up(nbytes, TR_CUDA_ALIGN);
    *where = to;
out:
    return st;
}

static tr_status passed(cudaEvent_t e, bool *done)
{
    const cudaError_t rc = cudaEventQuery(e);
    *done = rc == cudaSuccess;
    if (rc != cudaErrorNotReady) return tr_cuda_check(rc, "cudaEventQuery");
    (void)cudaGetLastError(); /* no failure, but remembered as one */
    return TR_OK;
}

tr_status tr_cuda_stage_poll(void *stage, bool *done)
{
    tr_status st = TR_OK;
    tr_cuda_stage *s = stage;
    *done = true;
    TR_TRY(tr_cuda_outside_section(s->cuda, "a look at staged batches"));
    if (s->waiting) TR_TRY(passed(s->copied, done));
    if (*done) s->waiting = false;
    /* Also where a share is empty: the host stays so near that the ring of inputs (report.c) never
     * fills. */
    if (*done && s->batches > 1) TR_TRY(passed(s->begun[1 - s->at], done));
out:
    return st;
}

int tr_cuda_stage_slot(const void *stage)
{
    const tr_cuda_stage *s = stage;
    return s->batches > 0 ? s->at : 0;
}
